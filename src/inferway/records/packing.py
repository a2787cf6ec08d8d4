"""Records as bytes. Names are numbers of a table, milliseconds halves of a float where they need
not be more exact than to 0.05 %.

head    numbers of fixed size
tail    the id, then the candidates, then what few requests have, as msgpack
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct as Layout
from struct import calcsize

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.records.record import MOST_CANDIDATES, CandidateRecord, Miss, RequestRecord

MOST_NAMES = 65_535
MOST_ID = 128  # bytes
MOST_MS = 65_504.0  # the largest half of a float
MOST_BLOCKS = MOST_LOAD = 65_535  # of a candidate

# learning.TTFT_FEATURES, in the words of x-inferway-expected-ttft-parts
TERMS = ("fixed", "own", "pairs", "waiting", "queue", "batch")
LATE, SCORE = "late", "score"
_ROUNDED = 0.002  # of an expectation: so much may be lost by halves of floats

CANDIDATE = np.dtype(
    [
        ("endpoint", "<u2"),
        ("blocks", "<u2"),
        ("terms", "<f2", (len(TERMS),)),
        ("expected", "<f2"),  # or the score
        ("others", "<f2"),
        ("running", "<u2"),
        ("waiting", "<u2"),
    ]
)
# when it came; sizes of id, candidates, rest; model, path, reason, picked by, edits, outcome,
# chosen, prefill, reachable at; tenant, session; the prompt's tokens, blocks, and their size;
# waited, decided, TTFT, two of ITL, total; attempts, candidates; blocks reachable and chosen;
# tokens delivered, of prompt and answer; status, flags
HEAD = Layout("<dBBH9H4s8siIHeefeefBHIIiiiHB")
_BEHIND_NAMES = 18  # fields
_TTFT = calcsize("<dBBH9H4s8siIHee")  # where it stands
LOOKED_AT = np.dtype(
    {
        "names": ["at", "ttft", "flags"],
        "formats": ["<f8", "<f4", "u1"],
        "offsets": [0, _TTFT, HEAD.size - 1],
        "itemsize": HEAD.size,
    }
)
STREAMED, MISSED, HAS_COSTS = 1, 2, 4  # flags


class Rest(msgspec.Struct, array_like=True, omit_defaults=True):
    """What few requests have."""

    missed: tuple[Miss, ...] = ()
    tiers: Mapping[int, tuple[tuple[int, int], ...]] = {}  # by the candidate's place


_REST = msgspec.msgpack.Decoder(Rest)
packed_rest = msgspec.msgpack.Encoder().encode


class Names:
    """Names and their numbers. 0 is no name, and any name that has no more room."""

    def __init__(self) -> None:
        self.names = [""]
        self._numbers = {"": 0}
        self.number = self._numbers.get  # of a name that is known

    @property
    def is_full(self) -> bool:
        return len(self.names) > MOST_NAMES

    def add(self, name: str) -> int:
        """Return the number of a name, new or not."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if self.is_full:
            return 0
        self._numbers[name] = number = len(self.names)
        self.names.append(name)
        return number


class Packed(msgspec.Struct, frozen=True):
    """One record."""

    head: bytes
    tail: bytes


def pack(record: RequestRecord, names: Names) -> Packed:
    """Pack a record; of candidates' terms those of TERMS are kept, or a score."""
    name = names.add
    kept = record.candidates[:MOST_CANDIDATES]
    has_costs = not any(SCORE in each.terms for each in kept)
    table = np.zeros(len(kept), CANDIDATE)
    for row, each in zip(table, kept, strict=True):
        expected = each.cost - each.others_ms if has_costs else each.terms[SCORE]
        row["endpoint"], row["blocks"] = name(each.endpoint), min(each.blocks, MOST_BLOCKS)
        row["terms"] = [min(each.terms.get(term, 0.0), MOST_MS) for term in TERMS]
        row["expected"] = min(expected, MOST_MS)
        row["others"] = min(each.others_ms, MOST_MS)
        row["running"], row["waiting"] = min(each.running, MOST_LOAD), min(each.waiting, MOST_LOAD)
    tiers = {place: each.tiers for place, each in enumerate(kept) if _has_lower(each.tiers)}
    rest = packed_rest(Rest(record.missed, tiers)) if record.missed or tiers else b""
    request_id = record.id.encode(errors="replace")[:MOST_ID]
    head = HEAD.pack(
        *(record.at, len(request_id), len(kept), len(rest)),
        *map(name, (record.model, record.path, record.reason, record.picked_by)),
        *map(name, (",".join(record.edits), record.outcome)),
        *map(name, (record.chosen, record.prefill, record.reachable_at)),
        *(bytes.fromhex(record.tenant), bytes.fromhex(record.session)),
        *(record.prompt_tokens, record.prompt_blocks, record.block_size),
        *(min(record.waited_ms, MOST_MS), min(record.decided_ms, MOST_MS), record.ttft_ms),
        *(min(record.itl_p50_ms, MOST_MS), min(record.itl_max_ms, MOST_MS), record.total_ms),
        *(min(record.attempts, 255), min(record.num_candidates, 65_535)),
        *(record.reachable_blocks, record.chosen_blocks, record.delivered_tokens),
        *(record.usage_prompt_tokens, record.output_tokens, record.status),
        STREAMED * record.streamed | MISSED * record.is_missed | HAS_COSTS * has_costs,
    )
    return Packed(head, request_id + table.tobytes() + rest)


def tail_size(sizes: tuple[int, int, int]) -> int:
    """Return the size of a tail, by the sizes that its head names."""
    return sizes[0] + sizes[1] * CANDIDATE.itemsize + sizes[2]


def unpack(head: bytes, tail: bytes, names: Sequence[str]) -> RequestRecord:
    at, size, count, _, *names_of, tenant, session, tokens, blocks, block_size = (
        fields := HEAD.unpack(head)
    )[:_BEHIND_NAMES]
    model, path, reason, picked, edits, outcome, chosen, prefill, reached = names_of
    waited, decided, ttft, p50, most, total, attempts, num, *fields_left = fields[_BEHIND_NAMES:]
    reachable, chosen_blocks, delivered, usage, output, status, flags = fields_left
    end = size + count * CANDIDATE.itemsize
    rest = _REST.decode(tail[end:]) if len(tail) > end else Rest()
    table = np.frombuffer(tail[size:end], CANDIDATE)
    candidates = tuple(_candidates(table, names, rest.tiers, has_costs=bool(flags & HAS_COSTS)))
    expected = [each for each in candidates if each.endpoint == names[chosen]]
    knows = bool(flags & HAS_COSTS) and bool(expected)
    return RequestRecord(
        id=tail[:size].decode(errors="replace"),
        at=at,
        model=names[model],
        path=names[path],
        tenant=_hex(tenant),
        session=_hex(session),
        streamed=bool(flags & STREAMED),
        prompt_tokens=tokens,
        prompt_blocks=blocks,
        block_size=block_size,
        reason=names[reason],
        picked_by=names[picked],
        edits=tuple(names[edits].split(",")) if edits else (),
        waited_ms=_short(waited),
        decided_ms=_short(decided),
        attempts=attempts,
        candidates=candidates,
        num_candidates=num,
        chosen=names[chosen],
        prefill=names[prefill],
        reachable_blocks=reachable,
        reachable_at=names[reached],
        chosen_blocks=chosen_blocks,
        delivered_tokens=delivered,
        usage_prompt_tokens=usage,
        output_tokens=output,
        missed=rest.missed,
        expected_ttft_ms=_short(expected[0].cost - expected[0].others_ms) if knows else -1.0,
        ttft_ms=_short(ttft),
        itl_p50_ms=_short(p50),
        itl_max_ms=_short(most),
        total_ms=_short(total),
        status=status,
        outcome=names[outcome],
    )


def _candidates(
    table: NDArray[np.void],
    names: Sequence[str],
    tiers: Mapping[int, tuple[tuple[int, int], ...]],
    *,
    has_costs: bool,
) -> Iterable[CandidateRecord]:
    for place, row in enumerate(table.tolist()):
        endpoint, blocks, parts, expected, others, running, waiting = row
        terms = {SCORE: _short(expected)}
        cost = -expected
        if has_costs:
            terms = {term: _short(part) for term, part in zip(TERMS, parts.tolist(), strict=True)}
            late = expected - sum(terms.values())
            if late > max(_ROUNDED * expected, 0.01):
                terms[LATE] = _short(late)
            cost = expected + others
        runs = tiers.get(place, ((0, blocks),) if blocks else ())
        yield CandidateRecord(
            *(names[endpoint], blocks, runs, terms, _short(others), _short(cost), running, waiting)
        )


def _has_lower(tiers: Sequence[tuple[int, int]]) -> bool:
    return any(tier for tier, _ in tiers)


def _hex(value: bytes) -> str:
    return value.hex() if any(value) else ""


def _short(value: float) -> float:
    """Milliseconds, or a score, with the digits that they really have."""
    return float(f"{value:.5g}")
