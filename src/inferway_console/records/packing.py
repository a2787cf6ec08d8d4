"""Records as bytes: many together, as one msgpack array of rows. Names are numbers of a table, and
so are kinds: what many requests have in common. Times are whole microseconds. The candidates of a
row are a table of their own in it, CANDIDATE, whose milliseconds are the upper halves of floats:
exact to 0.4 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.openai_api.usage import Usage
from inferway_console.records.record import MOST_CANDIDATES, CandidateRecord, Miss, RequestRecord

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

Tiers = Mapping[str, tuple[tuple[int, int], ...]]  # by endpoint, of those with lower ones


class RequestKind(NamedTuple):
    """The values that many requests have in common."""

    model: str = ""
    path: str = ""
    reason: str = ""
    picked_by: str = ""
    edits: tuple[bytes, ...] = ()
    outcome: str = ""
    status: int = 0
    attempts: int = 0
    is_streamed: bool = False
    has_costs: bool = False  # its candidates; else the chosen one has a score
    continued: int = 0


class RecordRow(msgspec.Struct, frozen=True, array_like=True):
    """A record as it is packed. It is made as a tuple, in this order."""

    at: float
    id: str
    kind: int  # of Names.kinds
    chosen: int  # of Names.names, as are the next two
    prefill: int
    reachable_at: int
    whose: tuple[bytes, bytes]  # tenant, session: hashes
    prompt_tokens: int
    prompt_blocks: int
    block_size: int
    waited: int  # microseconds, as all times
    decided: int
    ttft: int
    itl_p50: int
    itl_max: int
    total: int
    num_candidates: int
    reachable: int  # blocks
    chosen_blocks: int
    usage: Usage | None
    candidates: bytes  # a CANDIDATE each
    missed: tuple[Miss, ...] | None
    tiers: Tiers | None


PackedRow = tuple[Any, ...]  # of the fields of RecordRow
_encode = msgspec.msgpack.Encoder().encode
decode_rows = msgspec.msgpack.Decoder(list[RecordRow]).decode


def encode_rows(rows: Sequence[PackedRow]) -> tuple[bytes, Sequence[int]]:
    """Return the rows as bytes, and the places of those that are among them: one with a number that
    no engine can mean (beyond 64 bits) is left out."""
    try:
        return _encode(rows), range(len(rows))
    except OverflowError:
        left = [place for place, row in enumerate(rows) if _is_encodable(row)]
        return _encode([rows[place] for place in left]), left


def _is_encodable(row: PackedRow) -> bool:
    try:
        return bool(_encode(row))
    except OverflowError:
        return False


class Names:
    """Names and kinds of requests, and their numbers. 0 is no name, and any name that has no more
    room."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self.names = [""]
        self.kinds = [RequestKind()]
        self._most = most
        self._numbers = {"": 0}
        self._kind_numbers: dict[tuple[Any, ...], int] = {}
        # The number of a kind that is known, else None. Any tuple that equals it will do.
        self.known_kind = self._kind_numbers.get

    @property
    def is_full(self) -> bool:
        return len(self.names) > self._most or len(self.kinds) > self._most

    def add(self, name: str) -> int:
        """Return the number of a name, new or not."""
        number = self._numbers.get(name)
        if number is not None:
            return number
        if len(self.names) > self._most:
            return 0
        self._numbers[name] = number = len(self.names)
        self.names.append(name)
        return number

    def add_kind(self, kind: RequestKind) -> int:
        """Return the number of a kind that is not known. There is always room for it."""
        self._kind_numbers[kind] = number = len(self.kinds)
        self.kinds.append(kind)
        return number


def halved(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Return the upper halves of the values as floats of four bytes, rounded."""
    bits = values.astype("<f4", order="C").view("<u4")
    bits += np.uint32(0x8000)
    return bits.view("<u2")[..., 1::2]


def _whole(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (halves.astype("<u4") << 16).view("<f4")


def row_of(record: RequestRecord, names: Names) -> PackedRow:
    """Return a record's row; of candidates' terms those of TERMS are kept, or a score."""
    name = names.add
    kept = record.candidates[:MOST_CANDIDATES]
    has_costs = not any(SCORE in each.terms for each in kept)
    kind = _kind_of(record, has_costs=has_costs)
    tiers = {each.endpoint: each.tiers for each in kept if any(tier for tier, _ in each.tiers)}
    return (
        *(record.at, record.id[:MOST_ID], names.known_kind(kind) or names.add_kind(kind)),
        *(name(record.chosen), name(record.prefill), name(record.reachable_at)),
        (bytes.fromhex(record.tenant), bytes.fromhex(record.session)),
        *(record.prompt_tokens, record.prompt_blocks, record.block_size),
        *(_microseconds(record.waited_ms), _microseconds(record.decided_ms)),
        *(_microseconds(record.ttft_ms), _microseconds(record.itl_p50_ms)),
        *(_microseconds(record.itl_max_ms), _microseconds(record.total_ms)),
        *(record.num_candidates, record.reachable_blocks, record.chosen_blocks, _usage_of(record)),
        _table_of(kept, names, has_costs=has_costs),
        *(record.missed or None, tiers or None),
    )


def _kind_of(record: RequestRecord, *, has_costs: bool) -> RequestKind:
    return RequestKind(
        model=record.model,
        path=record.path,
        reason=record.reason,
        picked_by=record.picked_by,
        edits=tuple([each.encode("latin-1") for each in record.edits]),
        outcome=record.outcome,
        status=record.status,
        attempts=record.attempts,
        is_streamed=record.streamed,
        has_costs=has_costs,
        continued=record.continued,
    )


def _usage_of(record: RequestRecord) -> Usage:
    delivered = record.delivered_tokens
    cached = None if delivered < 0 else delivered
    return Usage(record.usage_prompt_tokens, record.output_tokens, cached)


def _table_of(kept: Sequence[CandidateRecord], names: Names, *, has_costs: bool) -> bytes:
    table = np.zeros(len(kept), CANDIDATE)
    for row, each in zip(table, kept, strict=True):
        expected = each.cost - each.others_ms if has_costs else each.terms[SCORE]
        row["endpoint"], row["blocks"] = names.add(each.endpoint), min(each.blocks, MOST_BLOCKS)
        row["running"], row["waiting"] = min(each.running, MOST_LOAD), min(each.waiting, MOST_LOAD)
        row["expected"], row["cost"] = halved(np.array([expected, each.cost]))
        row["terms"] = halved(np.array([each.terms.get(term, 0.0) for term in TERMS]))
    return table.tobytes()


def record_of(row: RecordRow, table: Names) -> RequestRecord:
    """Return the record that the row is of."""
    names, kind, usage = table.names, table.kinds[row.kind], row.usage
    chosen = names[row.chosen]
    candidates = list(_candidates(row, names, has_costs=kind.has_costs))
    candidates.sort(key=lambda each: (each.endpoint != chosen, each.cost))
    is_kept = bool(candidates) and candidates[0].endpoint == chosen
    expected = candidates[0].cost - candidates[0].others_ms if is_kept and kind.has_costs else -1.0
    return RequestRecord(
        id=row.id,
        at=row.at,
        model=kind.model,
        path=kind.path,
        tenant=row.whose[0].hex(),
        session=row.whose[1].hex(),
        streamed=kind.is_streamed,
        prompt_tokens=row.prompt_tokens,
        prompt_blocks=row.prompt_blocks,
        block_size=row.block_size,
        reason=kind.reason,
        picked_by=kind.picked_by,
        edits=tuple([each.decode("latin-1") for each in kind.edits]),
        waited_ms=_milliseconds(row.waited),
        decided_ms=_milliseconds(row.decided),
        attempts=kind.attempts,
        continued=kind.continued,
        candidates=tuple(candidates),
        num_candidates=row.num_candidates,
        chosen=chosen,
        prefill=names[row.prefill],
        reachable_blocks=row.reachable,
        reachable_at=names[row.reachable_at],
        chosen_blocks=row.chosen_blocks,
        delivered_tokens=-1 if usage is None or usage.cached is None else usage.cached,
        usage_prompt_tokens=-1 if usage is None else usage.prompt,
        output_tokens=-1 if usage is None else usage.completion,
        missed=row.missed or (),
        expected_ttft_ms=_short(expected),
        ttft_ms=_milliseconds(row.ttft),
        itl_p50_ms=_milliseconds(row.itl_p50),
        itl_max_ms=_milliseconds(row.itl_max),
        total_ms=_milliseconds(row.total),
        status=kind.status,
        outcome=kind.outcome,
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
    """A value with the digits that it really has; -1 for one that is none."""
    return float(f"{value:.4g}") if isfinite(value) else -1.0
