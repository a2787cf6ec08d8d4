"""Records as bytes: many together, as one msgpack array of rows. Names are numbers of a table,
times are whole microseconds. The candidates of a row are a table of their own in it, CANDIDATE,
whose milliseconds are the upper halves of floats: exact to 0.4 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.records.record import MOST_CANDIDATES, CandidateRecord, Miss, RequestRecord

MOST_NAMES = 65_535
MOST_ID = 128  # characters
MOST_BLOCKS = MOST_LOAD = 65_535  # of a candidate

# learning.TTFT_FEATURES, in the words of x-inferway-expected-ttft-parts
TERMS = ("fixed", "own", "pairs", "waiting", "queue", "batch")
LATE, SCORE = "late", "score"
_ROUNDED = 0.02  # of an expectation: as much as the sum of its terms may be off

CANDIDATE = np.dtype(
    [
        ("endpoint", "<u2"),
        ("blocks", "<u2"),
        ("running", "<u2"),
        ("waiting", "<u2"),
        ("expected", "<u2"),  # or the score
        ("cost", "<u2"),
        ("terms", "<u2", (len(TERMS),)),
    ]
)
STREAMED, HAS_COSTS = 1, 2  # flags

Tiers = Mapping[str, tuple[tuple[int, int], ...]]  # by endpoint, of those with lower ones


class RecordRow(msgspec.Struct, frozen=True, array_like=True):
    """A record as it is packed. It is made as a tuple, in this order."""

    at: float
    id: str
    model: int
    path: int
    reason: int
    picked_by: int
    edits: int
    outcome: int
    chosen: int
    prefill: int
    reachable_at: int
    tenant: bytes
    session: bytes
    prompt_tokens: int
    prompt_blocks: int
    block_size: int
    waited: int  # microseconds, as all times
    decided: int
    ttft: int
    itl_p50: int
    itl_max: int
    total: int
    attempts: int
    num_candidates: int
    reachable: int  # blocks
    chosen_blocks: int
    delivered: int  # tokens
    usage_prompt: int
    output: int
    status: int
    flags: int
    candidates: bytes  # a CANDIDATE each
    missed: tuple[Miss, ...] | None
    tiers: Tiers | None


PackedRow = tuple[Any, ...]  # of the fields of RecordRow
encode_rows = msgspec.msgpack.Encoder().encode
decode_rows = msgspec.msgpack.Decoder(list[RecordRow]).decode


class Names:
    """Names and their numbers. 0 is no name, and any name that has no more room."""

    def __init__(self) -> None:
        self.names = [""]
        self._numbers = {"": 0}
        self.known = self._numbers.get  # the number of a name that is known, else None

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


def halved(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return the upper halves of the values as floats of four bytes, rounded."""
    bits = values.astype("<f4").view("<u4")
    bits += np.uint32(0x8000)
    return bits.view("<u2")[..., 1::2]


def _whole(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (halves.astype("<u4") << 16).view("<f4")


def row_of(record: RequestRecord, names: Names) -> PackedRow:
    """Return a record's row; of candidates' terms those of TERMS are kept, or a score."""
    name = names.add
    kept = record.candidates[:MOST_CANDIDATES]
    has_costs = not any(SCORE in each.terms for each in kept)
    table = np.zeros(len(kept), CANDIDATE)
    for row, each in zip(table, kept, strict=True):
        expected = each.cost - each.others_ms if has_costs else each.terms[SCORE]
        row["endpoint"], row["blocks"] = name(each.endpoint), min(each.blocks, MOST_BLOCKS)
        row["running"], row["waiting"] = min(each.running, MOST_LOAD), min(each.waiting, MOST_LOAD)
        row["expected"], row["cost"] = halved(np.array([expected, each.cost]))
        row["terms"] = halved(np.array([each.terms.get(term, 0.0) for term in TERMS]))
    tiers = {each.endpoint: each.tiers for each in kept if any(tier for tier, _ in each.tiers)}
    return (
        *(record.at, record.id[:MOST_ID], name(record.model), name(record.path)),
        *(name(record.reason), name(record.picked_by), name(",".join(record.edits))),
        *(name(record.outcome), name(record.chosen), name(record.prefill)),
        name(record.reachable_at),
        *(bytes.fromhex(record.tenant), bytes.fromhex(record.session)),
        *(record.prompt_tokens, record.prompt_blocks, record.block_size),
        *(_microseconds(record.waited_ms), _microseconds(record.decided_ms)),
        *(_microseconds(record.ttft_ms), _microseconds(record.itl_p50_ms)),
        *(_microseconds(record.itl_max_ms), _microseconds(record.total_ms)),
        *(record.attempts, record.num_candidates, record.reachable_blocks, record.chosen_blocks),
        *(record.delivered_tokens, record.usage_prompt_tokens, record.output_tokens),
        record.status,
        STREAMED * record.streamed | HAS_COSTS * has_costs,
        *(table.tobytes(), record.missed or None, tiers or None),
    )


def record_of(row: RecordRow, names: Sequence[str]) -> RequestRecord:
    """Return the record that the row is of."""
    chosen, has_costs = names[row.chosen], bool(row.flags & HAS_COSTS)
    candidates = list(_candidates(row, names, has_costs=has_costs))
    candidates.sort(key=lambda each: (each.endpoint != chosen, each.cost))
    is_kept = bool(candidates) and candidates[0].endpoint == chosen
    expected = candidates[0].cost - candidates[0].others_ms if is_kept and has_costs else -1.0
    return RequestRecord(
        id=row.id,
        at=row.at,
        model=names[row.model],
        path=names[row.path],
        tenant=row.tenant.hex(),
        session=row.session.hex(),
        streamed=bool(row.flags & STREAMED),
        prompt_tokens=row.prompt_tokens,
        prompt_blocks=row.prompt_blocks,
        block_size=row.block_size,
        reason=names[row.reason],
        picked_by=names[row.picked_by],
        edits=tuple(names[row.edits].split(",")) if row.edits else (),
        waited_ms=_milliseconds(row.waited),
        decided_ms=_milliseconds(row.decided),
        attempts=row.attempts,
        candidates=tuple(candidates),
        num_candidates=row.num_candidates,
        chosen=chosen,
        prefill=names[row.prefill],
        reachable_blocks=row.reachable,
        reachable_at=names[row.reachable_at],
        chosen_blocks=row.chosen_blocks,
        delivered_tokens=row.delivered,
        usage_prompt_tokens=row.usage_prompt,
        output_tokens=row.output,
        missed=row.missed or (),
        expected_ttft_ms=_short(expected),
        ttft_ms=_milliseconds(row.ttft),
        itl_p50_ms=_milliseconds(row.itl_p50),
        itl_max_ms=_milliseconds(row.itl_max),
        total_ms=_milliseconds(row.total),
        status=row.status,
        outcome=names[row.outcome],
    )


def _candidates(
    row: RecordRow, names: Sequence[str], *, has_costs: bool
) -> Iterable[CandidateRecord]:
    table, tiers = np.frombuffer(row.candidates, CANDIDATE), row.tiers or {}
    expected, costs = _whole(table["expected"]).tolist(), _whole(table["cost"]).tolist()
    terms = _whole(table["terms"].reshape(-1)).reshape(-1, len(TERMS)).tolist()
    places = table[["endpoint", "blocks", "running", "waiting"]].tolist()
    for place, (number, blocks, running, waiting) in enumerate(places):
        name, others, found = names[number], 0.0, {SCORE: _short(expected[place])}
        if has_costs:
            found = dict(zip(TERMS, map(_short, terms[place]), strict=True))
            late = expected[place] - sum(terms[place])
            if late > max(_ROUNDED * expected[place], 0.01):
                found[LATE] = _short(late)
            others = _short(max(costs[place] - expected[place], 0.0))
        runs = tiers.get(name, ((0, blocks),) if blocks else ())
        cost = _short(costs[place])
        yield CandidateRecord(name, blocks, runs, found, others, cost, running, waiting)


def _microseconds(milliseconds: float) -> int:
    return -1 if milliseconds < 0 else int(milliseconds * 1000)


def _milliseconds(microseconds: int) -> float:
    return -1.0 if microseconds < 0 else microseconds / 1000


def _short(value: float) -> float:
    """A value with the digits that it really has."""
    return float(f"{value:.4g}")
