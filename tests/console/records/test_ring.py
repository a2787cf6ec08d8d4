"""Records come out of the ring as they went in, and the oldest go."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_console.records.packing import LATE, MOST_ID, SCORE, TERMS, row_of
from inferway_console.records.record import CandidateRecord, Miss, MissKind, RequestRecord
from inferway_console.records.ring import RecordRing

names = st.text(max_size=20)
counts = st.integers(0, 65_535)
times = st.floats(0, 1e6).map(lambda value: round(value, 3)) | st.just(-1.0)
hashes = st.binary(max_size=8).map(bytes.hex)


@st.composite
def candidates(draw: st.DrawFn, name: str) -> CandidateRecord:
    terms = {term: draw(st.floats(0, 1e5)) for term in TERMS}
    others, blocks = draw(st.floats(0, 1e5)), draw(counts)
    first = draw(st.integers(0, blocks))
    tiers = tuple(run for run in ((0, first), (1, blocks - first)) if run[1])
    cost = sum(terms.values()) + others
    return CandidateRecord(name, blocks, tiers, terms, others, cost, draw(counts), draw(counts))


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    number = draw(st.integers(0, 8))
    endpoints = [f"e{i}" for i in range(number)]
    return RequestRecord(
        id=draw(st.text(st.characters(codec="ascii"), max_size=MOST_ID)),
        at=draw(st.floats(0, 1e10)),
        model=draw(names),
        path=draw(names),
        tenant=draw(hashes),
        session=draw(hashes),
        streamed=draw(st.booleans()),
        prompt_tokens=draw(st.integers(-1, 10**7)),
        prompt_blocks=draw(st.integers(0, 10**6)),
        block_size=draw(counts),
        reason=draw(names),
        edits=tuple(draw(st.lists(st.sampled_from(["model", "tokens"]), unique=True))),
        waited_ms=draw(times),
        attempts=draw(st.integers(0, 5)),
        candidates=tuple([draw(candidates(name)) for name in endpoints]),
        num_candidates=number,
        chosen=draw(st.sampled_from(["", *endpoints])),
        delivered_tokens=draw(st.integers(-1, 10**7)),
        missed=tuple(draw(st.lists(st.builds(Miss, st.sampled_from(MissKind), counts, names)))),
        ttft_ms=draw(times),
        total_ms=draw(times),
        status=draw(st.sampled_from([0, 200, 429, 503])),
        outcome=draw(names),
    )


def close(one: float, other: float) -> bool:
    return one == pytest.approx(other, rel=0.006, abs=0.01)


@given(records())
def test_a_record_comes_back(record: RequestRecord) -> None:
    ring = RecordRing()
    ring.append(record)

    [found] = ring.newest()

    for name in set(RequestRecord.__struct_fields__) - {"candidates", "expected_ttft_ms"}:
        wanted, value = getattr(record, name), getattr(found, name)
        if name.endswith("_ms"):
            assert value == pytest.approx(wanted, abs=0.001), name
        else:
            assert value == wanted, name
    there = {each.endpoint: each for each in found.candidates}
    assert len(there) == len(record.candidates)
    for each in record.candidates:
        same = there[each.endpoint]
        assert (same.blocks, same.running, same.waiting) == (
            each.blocks,
            each.running,
            each.waiting,
        )
        assert same.tiers == each.tiers
        assert close(same.cost, each.cost)
        assert all(close(same.terms[term], each.terms[term]) for term in TERMS)
        assert LATE not in same.terms


def test_a_choice_by_scores_keeps_the_score() -> None:
    ring = RecordRing()
    chosen = CandidateRecord("e", 3, ((0, 3),), {SCORE: 0.75}, cost=-0.75)
    ring.append(RequestRecord(id="r", at=1.0, candidates=(chosen,), chosen="e"))

    [found] = ring.newest()

    assert found.candidates == (chosen,)
    assert found.expected_ttft_ms == -1


def numbered(number: int, **fields: object) -> RequestRecord:
    return RequestRecord(id=f"r{number}", at=float(number), **fields)  # type: ignore[arg-type]


def test_the_oldest_go_when_there_are_too_many() -> None:
    ring = RecordRing(3)
    for number in range(5):
        ring.append(numbered(number))

    assert [each.id for each in ring.newest()] == ["r4", "r3", "r2"]
    assert (len(ring), ring.last_seq, ring.oldest_at) == (3, 5, 2.0)
    assert ring.find("r1") is None
    assert ring.find("r2") == numbered(2)


def test_the_oldest_go_when_they_are_too_big() -> None:
    ring = RecordRing(1000, max_bytes=5_000)
    for number in range(500):
        ring.append(numbered(number))

    assert ring.num_bytes <= 5_000
    assert 0 < len(ring) < 500


def test_who_follows_gets_each_record_once() -> None:
    ring, seen, last = RecordRing(10), list[str](), 0
    for number in range(25):
        ring.append(numbered(number))
        if number % 7 == 0:
            last, found = ring.since(last)
            seen += [each.id for each in found]

    assert seen == [f"r{number}" for number in range(22)]


def test_who_follows_too_slowly_misses_what_is_forgotten() -> None:
    ring = RecordRing(3)
    for number in range(10):
        ring.append(numbered(number))

    last, found = ring.since(2, limit=2)

    assert [each.id for each in found] == ["r7", "r8"]
    assert ring.since(last)[1] == [numbered(9)]


def test_nothing_new_is_nothing() -> None:
    ring = RecordRing()
    assert ring.since(0) == (0, [])
    ring.append(numbered(0))

    assert ring.since(1) == (1, [])


def test_the_slowest_and_the_missed_are_found() -> None:
    ring = RecordRing()
    for number in range(10):
        missed = (Miss(MissKind.STALE, 1),) if number in (3, 6) else ()
        ring.append(numbered(number, ttft_ms=float(number * 7 % 10), missed=missed))

    assert [each.ttft_ms for each in ring.slowest(3)] == [9.0, 8.0, 7.0]
    assert [each.id for each in ring.missed()] == ["r6", "r3"]


def test_a_silent_engine_is_no_miss() -> None:
    ring = RecordRing()
    ring.append(numbered(0, missed=(Miss(MissKind.SILENT, 1),)))

    assert ring.missed() == []


def test_a_typical_record_takes_300_bytes() -> None:
    ring, terms = RecordRing(), dict.fromkeys(TERMS, 12.3)
    for number in range(64):
        kept = [
            CandidateRecord(f"10.0.0.{i}:8000", 249, ((0, 249),), terms, 5.0, 80.0, 3, 1)
            for i in range(8)
        ]
        ring.append(
            numbered(
                number,
                model="org/model",
                path="/v1/chat/completions",
                prompt_tokens=4_000,
                prompt_blocks=250,
                candidates=tuple(kept),
                chosen="10.0.0.0:8000",
                ttft_ms=81.4,
                total_ms=2_000.0,
            )
        )

    assert ring.num_bytes / len(ring) <= 300


def test_a_number_beyond_all_measure_costs_its_own_record_only() -> None:
    ring = RecordRing()
    rows = [
        row_of(numbered(i, output_tokens=10**30 if i == 1 else 5), ring.names) for i in range(3)
    ]

    ring.extend(rows)

    assert [each.id for each in ring.newest()] == ["r2", "r0"]
    assert (len(ring), ring.last_seq) == (2, 2)


def test_a_page_on_which_nothing_is_left_is_none() -> None:
    ring = RecordRing()

    kept = ring.extend([row_of(numbered(0, output_tokens=10**30), ring.names)])

    assert (list(kept), len(ring), ring.oldest_at) == ([], 0, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_costs_that_are_none_are_unknown(value: float) -> None:
    ring = RecordRing()
    strange = CandidateRecord("e", 1, ((0, 1),), {"own": value}, 0.0, value)
    ring.append(RequestRecord(id="r", at=1.0, candidates=(strange,), chosen="e"))

    [found] = ring.newest()

    assert found.candidates[0].cost == -1
    assert msgspec.json.decode(msgspec.json.encode(found), type=RequestRecord) == found
