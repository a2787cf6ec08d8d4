"""What is noted of a request when it is decided, and not looked at before it has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.kv.index.protocol import MatchResult
from inferway.model import BlockKey, Candidates, Column, Endpoint, Target
from inferway.records.packing import CANDIDATE, MOST_BLOCKS, MOST_LOAD, TERMS, Names, halved
from inferway.records.record import MOST_CANDIDATES, Miss
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.scheduling.per_endpoint import PerEndpoint

MANY = 128  # candidates: of more, few are kept at once
_COST, _TTFT, _TERMS = COST_MS.name, EXPECTED_TTFT_MS.name, TERMS_MS.name

# Of candidates: the blocks that each holds; and, where they are known, costs, TTFT, terms (a row
# each).
Columns = tuple[NDArray[np.float64], ...]
Whose = tuple[bytes, bytes]  # tenant, session: hashes


class Elsewhere(msgspec.Struct, frozen=True):
    """An endpoint that held more of a prompt than any that might be chosen."""

    endpoint: str
    blocks: int
    why: str  # it was no candidate


class Roster(msgspec.Struct, frozen=True):
    """Candidates, and the numbers of their names: the same for many requests."""

    endpoints: Sequence[Endpoint]
    names: Names  # that the numbers are of
    numbers: Sequence[int]
    raw_numbers: bytes  # the same
    total: int  # candidates that there were: of many, these are a few

    def of(self, rows: Sequence[int]) -> Roster:
        """Return a few of them."""
        numbers = [self.numbers[row] for row in rows]
        endpoints = [self.endpoints[row] for row in rows]
        return Roster(endpoints, self.names, numbers, _raw(numbers), self.total)


NOBODY = Roster((), Names(), (), b"", 0)
NOTHING_FOUND = MatchResult()


class DecidedRequest(msgspec.Struct):
    """A request that was decided, until it is recorded."""

    at: float  # seconds, by the director's clock
    target: Target  # that was chosen
    roster: Roster
    chosen: int  # row of them
    columns: Columns  # until it is packed
    block_size: int
    picked_by: str
    whose: Whose
    tells: bool  # what the engine says it reused is of the whole prompt
    may_cut: bool  # the engine may cut the prompt off
    has_costs: bool  # else its target has a score
    found: MatchResult = NOTHING_FOUND  # of the only prompt, without what was on its way there
    keys: Sequence[BlockKey] = ()  # of the same; empty where nothing is compared afterwards
    elsewhere: Elsewhere | None = None  # who held more of it and was no candidate
    missed: tuple[Miss, ...] = ()  # what was found out meanwhile
    # Once it is packed:
    packed: bytes = b""
    tiers: Mapping[str, tuple[tuple[int, int], ...]] | None = None
    reachable: int = 0  # blocks
    reached: int = 0  # row of the endpoint that held them
    spared_ms: float = 0.0  # the cost there, less that of the chosen one

    @property
    def endpoint(self) -> Endpoint:
        """The one that was chosen."""
        return self.target.endpoint

    @property
    def reached_endpoint(self) -> Endpoint:
        """The one that held the most."""
        return self.roster.endpoints[self.reached]


def columns_of(candidates: Candidates) -> Columns:
    """Return what is kept of the candidates, as it is: columns are new for each request."""
    added = candidates.added
    cost = added.get(_COST)
    if cost is None:
        return (candidates.matched_blocks,)
    return (candidates.matched_blocks, cost, added[_TTFT], added[_TERMS].T)


class CandidatePacker:
    """Packs the candidates of many requests at a time. `names` are those of the ring."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._rosters = PerEndpoint(self._roster_of)
        self._loads = np.zeros((2, 0), np.uint16)  # running, waiting: by the endpoint's number

    def renew(self, names: Names) -> None:
        """Go on with another table of names."""
        self.names = names
        self._rosters.forget()

    def roster(self, endpoints: Sequence[Endpoint]) -> Roster:
        """Return what is the same for all requests that have these endpoints."""
        return self._rosters(endpoints)

    def pack(self, noted: Sequence[DecidedRequest], loads: Iterable[Candidates]) -> None:
        """Fill in what these lack; equally many candidates at a time are done together. `loads`: a
        table of each list of endpoints in them, with their load: of all requests of a moment it is
        the same."""
        self._note_loads(loads)
        groups: dict[tuple[int, bool], list[DecidedRequest]] = defaultdict(list)
        for each in noted:
            groups[len(each.roster.endpoints), each.has_costs].append(each)
        for (number, has_costs), group in groups.items():
            self._pack(group, number, has_costs=has_costs)

    def _roster_of(self, endpoints: Sequence[Endpoint]) -> Roster:
        numbers = [self.names.add(each.name) for each in endpoints]
        return Roster(endpoints, self.names, numbers, _raw(numbers), len(endpoints))

    def _note_loads(self, loads: Iterable[Candidates]) -> None:
        numbers = [(self._rosters(each.endpoints).numbers, each) for each in loads]
        if self._loads.shape[1] < len(self.names.names):
            self._loads = np.zeros((2, 2 * len(self.names.names)), np.uint16)
        for ids, each in numbers:
            self._loads[0, ids] = np.minimum(each.running, MOST_LOAD)
            self._loads[1, ids] = np.minimum(each.waiting, MOST_LOAD)

    def _pack(self, group: Sequence[DecidedRequest], number: int, *, has_costs: bool) -> None:
        """Pack requests that have this number of candidates each: a matrix of each column."""
        requests = np.arange(len(group))
        chosen = np.array([each.chosen for each in group])
        blocks, cost, expected, terms = _matrices(group, number, chosen, has_costs=has_costs)
        longest = blocks.argmax(axis=1)
        kept = _kept(cost, requests, chosen, longest)
        ids = np.frombuffer(b"".join([each.roster.raw_numbers for each in group]), _NUMBER)
        table = np.zeros((len(group), min(number, MOST_CANDIDATES)), CANDIDATE)
        table["endpoint"] = ids.reshape(-1, number)[kept]
        table["blocks"] = np.minimum(blocks[kept], MOST_BLOCKS)
        table["running"], table["waiting"] = self._loads.take(table["endpoint"], axis=1)
        table["expected"] = halved(expected[kept])
        table["cost"] = halved(cost[kept])
        if terms is not None:
            table["terms"] = halved(terms[kept])
        reachable = blocks[requests, longest].tolist()
        spared = (cost[requests, longest] - cost[requests, chosen]).tolist()
        _fill_in(group, table, zip(reachable, longest.tolist(), spared, strict=True))


_NUMBER = np.dtype(np.uint16)
_Matrix = NDArray[np.float64]
_Places = NDArray[np.intp]  # one of each request


def _raw(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, _NUMBER).tobytes()


def _matrices(
    group: Sequence[DecidedRequest], number: int, chosen: _Places, *, has_costs: bool
) -> tuple[_Matrix, _Matrix, _Matrix, _Matrix | None]:
    """Return blocks, costs, TTFT and terms: a row for each request, a column for each candidate. Of
    a choice by scores, that of the chosen one is known, and stands for the TTFT."""
    held, *added = zip(*[each.columns for each in group], strict=True)
    blocks = _joined(held).reshape(-1, number)
    if has_costs:
        cost, expected = [_joined(each).reshape(-1, number) for each in added[:2]]
        terms = _joined(added[2]).reshape(-1, len(TERMS), number)
        return blocks, cost, expected, terms.transpose(0, 2, 1)
    scores = np.zeros_like(blocks)
    scores[np.arange(len(group)), chosen] = [each.target.score for each in group]
    return blocks, -scores, scores, None


def _joined(columns: Sequence[Column]) -> Column:
    try:
        return np.frombuffer(b"".join(columns))
    except TypeError:  # some are parts of larger tables, and do not lie in one piece
        return np.concatenate([each.ravel() for each in columns])


def _fill_in(
    group: Sequence[DecidedRequest],
    table: NDArray[np.void],
    found: Iterable[tuple[float, int, float]],
) -> None:
    """Write into each of these its row of the table, and what was `found`: the blocks that could be
    reached, where, and what it spared not to go there."""
    packed, end = table.tobytes(), 0
    width = len(packed) // len(group)
    for each, (reachable, reached, spared) in zip(group, found, strict=True):
        start, end = end, end + width
        each.packed, each.columns = packed[start:end], ()
        if reachable > 0:
            each.reachable, each.reached = int(reachable), reached
            each.spared_ms = spared
        if each.found.lower:
            each.tiers = _tiers(each)


def nearest(candidates: Candidates, chosen: int) -> list[int]:
    """Return the rows of candidates that may be kept: the chosen one first, the longest holder, and
    the cheapest."""
    longest = int(candidates.matched_blocks.argmax())
    cheapest: list[int] = []
    cost = candidates.added.get(_COST)
    if cost is not None:
        cheapest = cost.argpartition(MOST_CANDIDATES)[:MOST_CANDIDATES].tolist()
    return list(dict.fromkeys([chosen, longest, *cheapest]))


def _kept(cost: _Matrix, requests: _Places, chosen: _Places, longest: _Places) -> tuple[Any, ...]:
    """Return the index of those to keep of each request: all, or the chosen one, the longest
    holder, and the cheapest."""
    if cost.shape[1] <= MOST_CANDIDATES:
        return (...,)
    key = cost.copy()
    key[requests, longest] = key[requests, chosen] = -np.inf
    cheapest = key.argpartition(MOST_CANDIDATES, axis=1)[:, :MOST_CANDIDATES]
    return (requests[:, None], cheapest)


def _tiers(noted: DecidedRequest) -> dict[str, tuple[tuple[int, int], ...]]:
    """Runs of blocks in each tier, of endpoints where not all lie in the first."""
    return {
        each.name: runs(below, noted.found.blocks.get(each.holder, 0))
        for each in noted.roster.endpoints
        if (below := noted.found.lower.get(each.holder))
    }


def runs(lower: Mapping[int, int], blocks: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of tiers of `blocks` blocks, of whose lower tiers each begins at a place, as
    far as that says it: each goes as far as the next begins."""
    starts = sorted((place, tier) for tier, place in lower.items())
    starts = [(0, 0), *starts] if not starts or starts[0][0] else starts
    ends = [place for place, _ in starts[1:]] + [blocks]
    return tuple(
        (tier, end - place) for (place, tier), end in zip(starts, ends, strict=True) if end > place
    )
