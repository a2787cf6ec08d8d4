"""What is noted of a request when it is decided, and not looked at before it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.model import BlockKey, Candidates, Column, Endpoint, HolderId
from inferway.records.packing import CANDIDATE, MOST_BLOCKS, MOST_LOAD, TERMS, Names, halved
from inferway.records.record import MOST_CANDIDATES, Miss
from inferway.scheduling.per_endpoint import PerEndpoint

Whose = tuple[str, bytes, bytes, int]  # picked by; tenant, session: hashes; candidates


class Elsewhere(msgspec.Struct, frozen=True):
    """An endpoint that held more of a prompt than any that might be chosen."""

    endpoint: str
    blocks: int
    why: str  # it was no candidate


class DecidedRequest(msgspec.Struct):
    """A request that was decided, until it is recorded."""

    at: float  # seconds, by the director's clock
    endpoints: Sequence[Endpoint]
    chosen: int  # row of them
    # The bytes of columns: names, blocks that each holds; and, where they are known, costs, TTFT,
    # terms.
    columns: tuple[bytes, ...]
    block_size: int
    keys: Sequence[BlockKey]  # of the only prompt; empty where nothing is compared afterwards
    found: Mapping[HolderId, int]  # blocks of it, without what was on its way there
    lower: Mapping[HolderId, Mapping[int, int]]  # kv.index.protocol.MatchResult
    score: float | None  # of the chosen one; None: there are costs
    tells: bool  # what the engine says it reused is of the whole prompt
    may_cut: bool  # the engine may cut the prompt off
    whose: Whose
    names: Names  # those that `columns` has the numbers of
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
        return self.endpoints[self.chosen]


class CandidatePacker:
    """Packs the candidates of many requests at a time. `names` are those of the ring."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._numbers = PerEndpoint(self._numbers_of)
        self._loads = np.zeros((2, 0), np.uint16)  # running, waiting: by the endpoint's number

    def renew(self, names: Names) -> None:
        """Go on with another table of names."""
        self.names = names
        self._numbers.forget()

    def pack(self, noted: Sequence[DecidedRequest], loads: Iterable[Candidates]) -> None:
        """Fill in what these lack; equally many candidates at a time are done together. `loads`: a
        table of each list of endpoints in them, with their load: of all requests of a moment it is
        the same."""
        self._note_loads(loads)
        groups: dict[tuple[int, int], list[DecidedRequest]] = {}
        for each in noted:
            columns = each.columns
            key = (len(columns[0]), len(columns))
            if key in groups:
                groups[key].append(each)
            else:
                groups[key] = [each]
        for (size, num_columns), group in groups.items():
            self._pack(group, size // _NUMBER.itemsize, has_costs=num_columns > _PLAIN)

    def numbers(self, endpoints: Sequence[Endpoint]) -> bytes:
        """Return the first of a request's columns: the numbers of its endpoints' names."""
        return self._numbers(endpoints)

    def _numbers_of(self, endpoints: Sequence[Endpoint]) -> bytes:
        return np.array([self.names.add(each.name) for each in endpoints], _NUMBER).tobytes()

    def _note_loads(self, loads: Iterable[Candidates]) -> None:
        numbers = [(np.frombuffer(self._numbers(each.endpoints), _NUMBER), each) for each in loads]
        if self._loads.shape[1] < len(self.names.names):
            self._loads = np.zeros((2, 2 * len(self.names.names)), np.uint16)
        for ids, each in numbers:
            self._loads[0, ids] = np.minimum(each.running, MOST_LOAD)
            self._loads[1, ids] = np.minimum(each.waiting, MOST_LOAD)

    def _pack(self, group: Sequence[DecidedRequest], number: int, *, has_costs: bool) -> None:
        shape = (len(group), number)
        numbers, *parts = zip(*[each.columns for each in group], strict=True)
        blocks, *costs = [np.frombuffer(b"".join(part)) for part in parts]
        ids = np.frombuffer(b"".join(numbers), _NUMBER)
        cost, expected, terms = costs if has_costs else _scored(group, number)
        first: Rows = np.arange(len(group)) * number
        chosen: Rows = first + np.array([each.chosen for each in group])
        longest = first + blocks.reshape(shape).argmax(axis=1)
        rows = _kept_rows(cost, shape, chosen, longest)
        table = np.zeros(len(rows), CANDIDATE)
        table["endpoint"] = ids.take(rows)
        table["blocks"] = np.minimum(blocks.take(rows), MOST_BLOCKS)
        table["running"], table["waiting"] = self._loads.take(table["endpoint"], axis=1)
        table["expected"] = halved(expected.take(rows))
        table["cost"] = halved(cost.take(rows))
        if has_costs:
            table["terms"] = halved(terms.reshape(-1, len(TERMS)).take(rows, axis=0))
        spared = (cost.take(longest) - cost.take(chosen)).tolist() if has_costs else None
        reachable, reached = blocks.take(longest).tolist(), (longest - first).tolist()
        width, whole = len(rows) // len(group) * CANDIDATE.itemsize, table.tobytes()
        end = 0
        for place, each in enumerate(group):
            start, end = end, end + width
            each.packed, each.columns = whole[start:end], ()
            if (held := reachable[place]) > 0:
                each.reachable, each.reached = int(held), reached[place]
                if spared is not None:
                    each.spared_ms = spared[place]
            if each.lower:
                each.tiers = _tiers(each)


Rows = NDArray[np.intp]
_NUMBER = np.dtype(np.uint16)
_PLAIN = 2  # columns that there are without costs


def _scored(group: Sequence[DecidedRequest], number: int) -> tuple[Column, Column, Column]:
    """Of a choice by scores: that of the chosen one is known."""
    scores = np.zeros((len(group), number))
    for row, each in zip(scores, group, strict=True):
        row[each.chosen] = each.score or 0.0
    flat = scores.reshape(-1)
    return -flat, flat, flat


def _kept_rows(
    cost: Column,
    shape: tuple[int, int],
    chosen: Rows,
    longest: Rows,
) -> Rows:
    """Return the rows to keep of each request: all, or the chosen one, the longest holder, and the
    cheapest."""
    if shape[1] <= MOST_CANDIDATES:
        return np.arange(len(cost))
    key = cost.copy()
    key[longest] = key[chosen] = -np.inf
    kept = key.reshape(shape).argpartition(MOST_CANDIDATES, axis=1)[:, :MOST_CANDIDATES]
    return (kept + np.arange(0, len(cost), shape[1])[:, None]).reshape(-1)


def _tiers(noted: DecidedRequest) -> dict[str, tuple[tuple[int, int], ...]]:
    """Runs of blocks in each tier, of endpoints where not all lie in the first."""
    return {
        each.name: runs(below, noted.found.get(each.holder, 0))
        for each in noted.endpoints
        if (below := noted.lower.get(each.holder))
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
