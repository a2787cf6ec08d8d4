"""Details of a decision, noted when a request is decided, and not looked at before it has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.kv.index.protocol import MatchResult
from inferway.model import BlockKey, Candidates, Column, Endpoint, Target
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.learning import COST_MS, TERMS_MS
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway_console.records.packing import CANDIDATE, MOST_BLOCKS, MOST_LOAD, Names, halved
from inferway_console.records.record import MOST_CANDIDATES, Miss

MANY = 128  # candidates: of more, few are kept at once
_COST, _TTFT, _TERMS = COST_MS.name, EXPECTED_TTFT_MS.name, TERMS_MS.name

# Of candidates: the blocks that each holds; and, where they are known, costs, TTFT, terms.
Columns = tuple[NDArray[np.float64], ...]
Whose = tuple[bytes, bytes]  # tenant, session: hashes


class Elsewhere(msgspec.Struct, frozen=True):
    """An endpoint that held more of a prompt than any that might be chosen."""

    endpoint: str
    blocks: int
    why: str  # it was no candidate


class Surpassed(msgspec.Struct, frozen=True):
    """A candidate that held more of a prompt than the chosen one."""

    blocks: int
    row: int
    spared_ms: float  # the cost there, less that of the chosen one


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


NOBODY = Roster((), Names(), (0,), b"", 0)


class DecidedRequest(msgspec.Struct):
    """A request that was decided, until it is recorded."""

    at: float  # seconds, by the director's clock
    target: Target  # that was chosen
    roster: Roster
    chosen: int  # row of them
    block_size: int
    picked_by: str
    whose: Whose
    found: MatchResult  # of the only prompt, without what was on its way there
    keys: Sequence[BlockKey]  # of the same; empty where nothing is compared afterwards
    tells: bool  # what the engine says it reused is of the whole prompt
    may_cut: bool  # the engine may cut the prompt off
    has_costs: bool  # else its target has a score
    # What was found out meanwhile:
    elsewhere: Elsewhere | None = None  # the endpoint that held more of it and was no candidate
    missed: tuple[Miss, ...] = ()
    # Once its candidates are packed:
    packed: bytes = b""
    tiers: Mapping[str, tuple[tuple[int, int], ...]] | None = None
    surpassed: Surpassed | None = None  # None: none of them held more than the chosen one

    @property
    def endpoint(self) -> Endpoint:
        """The one that was chosen."""
        return self.target.endpoint

    @property
    def reachable(self) -> int:
        """The blocks that the candidate held that held the most."""
        surpassed = self.surpassed
        return self.target.matched_blocks if surpassed is None else surpassed.blocks

    @property
    def reached(self) -> Endpoint:
        """The candidate that held them."""
        surpassed = self.surpassed
        return self.endpoint if surpassed is None else self.roster.endpoints[surpassed.row]


@dataclass(slots=True)
class DecidedBatch:
    """Requests with the same candidates, which are to be packed, with the load that these have
    then."""

    roster: Roster
    num_columns: int
    candidates: Candidates  # of one of them
    are_all: bool  # no other endpoint is in the fleet
    most: int  # are packed together
    waiting: list[tuple[DecidedRequest, Columns]] = field(default_factory=list)


def columns_of(candidates: Candidates) -> Columns:
    """Return what is kept of the candidates, as it is: columns are new for each request."""
    added = candidates.added
    cost = added.get(_COST)
    if cost is None:
        return (candidates.matched_blocks,)
    return (candidates.matched_blocks, cost, added[_TTFT], added[_TERMS])


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

    def pack(self, batches: Iterable[DecidedBatch]) -> None:
        """Fill in what the requests lack; equally many candidates at a time are done together."""
        groups: dict[tuple[int, int], list[tuple[DecidedRequest, Columns]]] = defaultdict(list)
        for batch in batches:
            self._note_load(batch.roster, batch.candidates)
            groups[len(batch.waiting[0][0].roster.endpoints), batch.num_columns] += batch.waiting
        for waiting in groups.values():
            self._pack(*zip(*waiting, strict=True))

    def _roster_of(self, endpoints: Sequence[Endpoint]) -> Roster:
        numbers = [self.names.add(each.name) for each in endpoints]
        return Roster(endpoints, self.names, numbers, _raw(numbers), len(endpoints))

    def _note_load(self, roster: Roster, candidates: Candidates) -> None:
        if self._loads.shape[1] < len(roster.names.names):
            self._loads = np.zeros((2, 2 * len(roster.names.names)), np.uint16)
        ids = np.frombuffer(roster.raw_numbers, _NUMBER)
        self._loads[0, ids] = np.minimum(candidates.running, MOST_LOAD)
        self._loads[1, ids] = np.minimum(candidates.waiting, MOST_LOAD)

    def _pack(self, group: Sequence[DecidedRequest], columns: Sequence[Columns]) -> None:
        """Pack requests that have equally many candidates, all in one table."""
        held, *added = zip(*columns, strict=True)
        blocks, number = _joined(held), len(held[0])
        first: _Rows = np.arange(len(group)) * number
        chosen: _Rows = first + np.array([each.chosen for each in group])
        longest: _Rows = first + blocks.reshape(-1, number).argmax(axis=1)
        cost, expected = _rated(group, chosen, added[:2], len(blocks))
        rows = _kept(cost, number, chosen, longest)
        ids = np.frombuffer(b"".join([each.roster.raw_numbers for each in group]), _NUMBER)
        table = np.zeros(len(rows), CANDIDATE)
        table["endpoint"] = kept = ids.take(rows)
        table["blocks"] = np.minimum(blocks.take(rows), MOST_BLOCKS)
        table["running"], table["waiting"] = self._loads.take(kept, axis=1)
        table["expected"] = halved(expected.take(rows))
        table["cost"] = halved(cost.take(rows))
        if added:
            table["terms"] = halved(np.concatenate(added[2]).take(rows, axis=0))
        _hand_out(group, table.tobytes())
        for place in np.flatnonzero(blocks[longest] > blocks[chosen]).tolist():
            row, other = longest[place], chosen[place]
            spared = float(cost[row] - cost[other])
            group[place].surpassed = Surpassed(int(blocks[row]), int(row - first[place]), spared)


_NUMBER = np.dtype(np.uint16)
_Rows = NDArray[np.intp]  # of the candidates of all requests


def _raw(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, _NUMBER).tobytes()


def _joined(columns: Sequence[Column]) -> Column:
    try:
        return np.frombuffer(b"".join(columns))  # type: ignore[arg-type]  # they are buffers
    except TypeError:  # one is a part of a larger table, and does not lie in one piece
        return np.concatenate(columns)


def _rated(
    group: Sequence[DecidedRequest],
    chosen: _Rows,
    costs: Sequence[Sequence[Column]],
    number: int,
) -> tuple[Column, Column]:
    """Return the costs of all candidates, and their TTFT. Of a choice by scores, that of the chosen
    one is known, and stands for the TTFT."""
    if costs:
        return _joined(costs[0]), _joined(costs[1])
    scores = np.zeros(number)
    scores[chosen] = [each.target.score for each in group]
    return -scores, scores


def _hand_out(group: Sequence[DecidedRequest], table: bytes) -> None:
    """Give each of these its part of the table."""
    width = len(table) // len(group)
    for start, each in zip(range(0, len(table), width), group, strict=True):
        each.packed = table[start : start + width]
        if each.found.lower:
            each.tiers = _tiers(each)


def nearest(candidates: Candidates, chosen: int) -> list[int]:
    """Return the rows of candidates that are kept of very many: the chosen one first, the longest
    holder, and the cheapest. They are equally many for all requests."""
    longest = int(candidates.matched_blocks.argmax())
    cost = candidates.added.get(_COST)
    if cost is None:
        return list(dict.fromkeys([chosen, longest, 0, 1]))[:2]
    cheapest = cost.argpartition(MOST_CANDIDATES)[:MOST_CANDIDATES]
    cheapest = cheapest[cost.take(cheapest).argsort()]
    return list(dict.fromkeys([chosen, longest, *cheapest.tolist()]))[:MOST_CANDIDATES]


def _kept(cost: Column, number: int, chosen: _Rows, longest: _Rows) -> _Rows:
    """Return the rows to keep of requests that have this number of candidates each: all, or the
    chosen one, the longest holder, and the cheapest."""
    if number <= MOST_CANDIDATES:
        return np.arange(len(cost))
    key = cost.copy()
    key[longest] = key[chosen] = -np.inf
    kept = key.reshape(-1, number).argpartition(MOST_CANDIDATES, axis=1)[:, :MOST_CANDIDATES]
    return (kept + np.arange(0, len(cost), number)[:, None]).reshape(-1)


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
