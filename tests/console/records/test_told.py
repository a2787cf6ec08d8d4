"""What is read back of requests is what was told of them: by whom they were asked, where they could
have gone and went, and what came of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.kv.index.protocol import MatchResult
from inferway.model import Decision, Endpoint, Prompt, Reason, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest
from inferway.openai_api.usage import Usage
from inferway.prompts.served import NoPrompts, ServedModel
from inferway.routing.journey import Routed
from inferway.routing.match import Matched
from inferway.routing.objectives import objectives
from inferway.routing.record import Record
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.scheduling.idle import idle
from inferway_console.records.ended import OTHER
from inferway_console.records.record import RequestRecord
from inferway_console.records.recorder import Recorder
from inferway_console.records.ring import RecordRing

CLOCK_AT_ZERO = 1e9  # Unix time
MODEL = ServedModel("m", NoPrompts(Reason.NO_TOKENIZER, "these are keys"), (16,))
# Two lists of endpoints that share one, a list of many, and one of a single endpoint.
ENDPOINTS = [
    [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(start, end)]
    for start, end in ((0, 3), (2, 6), (10, 22), (30, 31))
]
PATHS = ["/v1/chat/completions", "/v1/embeddings", "/v1/rerank", "/unheard/of"]

seconds = st.floats(0, 1e4).map(lambda value: round(value, 6))
whole = st.integers(0, 10**6)


@dataclass
class Told:
    """All that the recorder is told of a request."""

    endpoints: Sequence[Endpoint]
    held: list[int]  # blocks, by endpoint
    chosen: int
    tried: int  # last
    by_cost: bool
    is_noted: bool
    costs: Any
    tenant: str
    session: bytes
    profile: str
    path: str
    status: int
    outcome: str
    took: float
    record: Record


@st.composite
def told(draw: st.DrawFn) -> Told:
    endpoints = draw(st.sampled_from(ENDPOINTS))
    number = len(endpoints)
    rows = st.integers(0, number - 1)
    record = Record(
        opened_at=draw(seconds),
        known_model=draw(st.sampled_from(["", "m", "n"])),
        reason=draw(st.sampled_from(["", *Reason])),
        attempts=draw(st.integers(0, 3)),
        waited=draw(seconds),
        decided_in=draw(seconds),
        is_streamed=draw(st.booleans()),
        prompt_tokens=draw(whole),
        edits=draw(st.lists(st.sampled_from([b"model", b"tokens", b"usage"]), unique=True)),
        median=draw(seconds),
        longest=draw(seconds),
        usage=draw(st.none() | st.builds(Usage, whole, whole, st.none() | whole)),
        outcome=draw(st.sampled_from(["", "ok", "client_gone", "upstream_error"])),
    )
    record.begun_at = draw(st.just(0.0) | seconds.map(lambda late: record.opened_at + late))
    record.first_at = draw(st.just(0.0) | seconds.map(lambda late: record.opened_at + late))
    return Told(
        endpoints,
        held=draw(st.lists(st.integers(0, 70_000), min_size=number, max_size=number)),
        chosen=(chosen := draw(rows)),
        tried=draw(st.just(chosen) | rows),
        by_cost=draw(st.booleans()),
        is_noted=draw(st.booleans()),
        costs=np.random.default_rng(draw(whole)).random((6, number)) * 100,
        tenant=draw(st.sampled_from(["", "one", "\udcff other"])),
        session=draw(st.sampled_from([b"", b"one", b"\xff other"])),
        profile=draw(st.sampled_from(["", "decode"])),
        path=draw(st.sampled_from(PATHS)),
        status=draw(st.sampled_from([0, 200, 404, 499, 503])),
        outcome=draw(st.sampled_from(["", "refused", "error"])),
        took=draw(seconds),
        record=record,
    )


def plain(record: Record) -> tuple[Any, ...]:
    """Of an ordinary request: from its tenant to its record."""
    return ("", b"", "", PATHS[0], 200, "ok", 1.0, record)


def tell(recorder: Recorder, each: Told, name: str, keys: Sequence[int] = (1,)) -> None:
    """Tell of a request as a gateway does: when it is decided, and at its end."""
    table = idle(each.endpoints, 16)
    table.matched_blocks = np.array(each.held, float)
    table.running[:] = [endpoint.holder for endpoint in each.endpoints]
    if each.by_cost:
        table.add(TERMS_MS, each.costs.T)
        table.add(EXPECTED_TTFT_MS, each.costs.sum(axis=0))
        table.add(COST_MS, each.costs.sum(axis=0) * 1.5)
    first, last = (
        Target(each.endpoints[row], 0.25, each.held[row], 80_000)
        for row in (each.chosen, each.tried)
    )
    headers = ((b"accept", b"*/*"), (b"x-session-id", each.session))
    request = LLMRequest(
        request_id="",
        target_model="m",
        body=ChatRequest(messages=[]),
        headers=headers,
        objectives=objectives(headers, {}),
        tenant=each.tenant,
    )
    found = MatchResult(
        {end.holder: held for end, held in zip(each.endpoints, each.held, strict=True)}
    )
    prompts = {16: [Matched(Prompt(np.zeros(16, np.uint32), keys), found)]}
    decision = Decision((first,), Reason.KV_AWARE, profile=each.profile)
    if each.is_noted:
        reuse = True
        routed = Routed(request, MODEL, prompts, decision, table, each.record, reuse)
        recorder.on_request(routed, 0.0)
    each.record.target = first if each.tried == each.chosen else last
    answer: Any = SimpleNamespace(
        request_id=name,
        path=each.path,
        status=each.status,
        outcome=each.outcome,
        seconds=each.took,
        record=each.record,
    )
    recorder.on_answers([answer])


@settings(max_examples=30)
@given(st.lists(told(), min_size=1, max_size=8))
def test_what_is_read_back_is_what_was_told(requests: list[Told]) -> None:
    recorder = Recorder(
        RecordRing(), lambda: 0.0, picked_by="policy", wall_clock=lambda: CLOCK_AT_ZERO
    )
    for number, each in enumerate(requests):
        tell(recorder, each, f"r{number}")

    found = recorder.ring.since(0)[1]

    assert [record.id for record in found] == [f"r{number}" for number in range(len(requests))]
    for each, record in zip(requests, found, strict=True):
        is_what_came_of_it(each, record)
        if each.is_noted:
            is_what_it_was_decided_by(each, record)
        else:
            assert (record.candidates, record.tenant, record.session) == ((), "", "")
    for field in ("tenant", "session"):
        names_and_hashes = {
            (getattr(each, field), getattr(record, field))
            for each, record in zip(requests, found, strict=True)
            if each.is_noted
        }
        hashes = {digest for _, digest in names_and_hashes}
        assert len(hashes) == len(names_and_hashes) == len({n for n, _ in names_and_hashes})


def is_what_came_of_it(each: Told, record: RequestRecord) -> None:
    told, usage = each.record, each.record.usage
    assert record.at == pytest.approx(CLOCK_AT_ZERO + told.opened_at, abs=1e-6)
    assert (record.model, record.reason) == (told.known_model, told.reason)
    assert record.path == (each.path if each.path != "/unheard/of" else OTHER)
    assert record.edits == tuple(edit.decode() for edit in told.edits)
    assert (record.streamed, record.attempts) == (told.is_streamed, told.attempts)
    assert record.status == each.status
    by_status = {0: "client_gone", 200: "ok", 404: "refused", 499: "client_gone", 503: "error"}
    assert record.outcome == (each.outcome or told.outcome or by_status[each.status])
    assert record.chosen == each.endpoints[each.tried].name
    assert (record.chosen_blocks, record.prompt_blocks) == (each.held[each.tried], 80_000)
    assert record.prompt_tokens == (told.prompt_tokens or -1)
    delivered = -1 if usage is None or usage.cached is None else usage.cached
    assert record.delivered_tokens == delivered
    counted = (-1, -1) if usage is None else (usage.prompt, usage.completion)
    assert (record.usage_prompt_tokens, record.output_tokens) == counted
    begun = told.first_at or told.begun_at
    for ms, told_seconds in (
        (record.waited_ms, told.waited),
        (record.decided_ms, told.decided_in),
        (record.total_ms, each.took),
        (record.ttft_ms, begun - told.opened_at if begun else -0.001),
        (record.itl_p50_ms, told.median or -0.001),
        (record.itl_max_ms, told.longest or -0.001),
    ):
        assert ms == pytest.approx(told_seconds * 1000, abs=0.0021)


def is_what_it_was_decided_by(each: Told, record: RequestRecord) -> None:
    assert record.picked_by == (each.profile or "policy")
    assert (record.num_candidates, record.block_size) == (len(each.endpoints), 16)
    most = max(each.held)
    assert record.reachable_blocks == most
    holders = {
        end.name for end, held in zip(each.endpoints, each.held, strict=True) if held == most
    }
    assert record.reachable_at in (holders if most else {""})
    assert sum(miss.blocks for miss in record.missed) == most - each.held[each.tried]
    kept = {candidate.endpoint: candidate for candidate in record.candidates}
    assert len(kept) == min(len(each.endpoints), 8)
    for row, endpoint in enumerate(each.endpoints):
        candidate = kept.get(endpoint.name)
        if candidate is None:
            assert row != each.chosen
            continue
        assert candidate.blocks == min(each.held[row], 65_535)
        assert candidate.running == endpoint.holder
        if each.by_cost:
            costs = each.costs[:, row]
            assert candidate.cost == pytest.approx(costs.sum() * 1.5, rel=0.005)
            assert list(candidate.terms.values())[:6] == pytest.approx(costs.tolist(), rel=0.005)
        else:
            assert candidate.terms == {"score": 0.25 if row == each.chosen else 0.0}


def test_blocks_stay_with_their_records_where_one_is_left_out() -> None:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    recorder.keeps_keys = True
    for number in range(3):
        record = Record(0.0, usage=Usage(10**30 if number == 1 else 5, 1))
        keys = [number]
        each = Told(ENDPOINTS[0], [1, 0, 0], 0, 0, False, True, None, *plain(record))
        tell(recorder, each, f"r{number}", keys)

    found = recorder.ring.since(0)[1]

    assert [record.id for record in found] == ["r0", "r2"]
    assert recorder.keys == [(1, [0]), (2, [2])]
