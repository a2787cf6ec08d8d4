"""What is noted of a request when it is decided, and not looked at before it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.model import BlockKey, Column, Endpoint, HolderId
from inferway.records.packing import CANDIDATE, MOST_BLOCKS, MOST_LOAD, MOST_MS, Names
from inferway.records.record import MOST_CANDIDATES, Miss
from inferway.scheduling.per_endpoint import PerEndpoint

_NO_COLUMN: Column = np.zeros(0)


class Whose(msgspec.Struct, frozen=True):
    """What stands in a record as it was noted."""

    picked_by: str = ""
    tenant: bytes = b"\0" * 4
    session: bytes = b"\0" * 8
    num_candidates: int = 0
    block_size: int = 0


class Elsewhere(msgspec.Struct, frozen=True):
    """An endpoint that held more of a prompt than any that might be chosen."""

    endpoint: str
    blocks: int
    why: str  # it was no candidate


class Noted(msgspec.Struct):
    """A request that was decided, until it is recorded."""

    at: float  # seconds, by the director's clock
    endpoints: Sequence[Endpoint]
    chosen: int  # row of them
    matched: Column  # blocks that each holds, a row each
    costs: tuple[Column, Column, NDArray[np.float64]] | None  # of all, TTFT, terms; or none
    load: tuple[bytes, bytes]  # running, waiting: columns, as they were
    keys: Sequence[BlockKey]  # of the only prompt; empty where nothing is compared afterwards
    found: Mapping[HolderId, int]  # blocks of it, without what was on its way there
    lower: Mapping[HolderId, Mapping[int, int]]  # kv.index.protocol.MatchResult
    scores: tuple[float, ...]  # of the targets, best first
    state: int  # of the picture of the chosen one: model.EXACT to BLIND
    tells: bool  # what the engine says it reused is of the whole prompt
    may_cut: bool  # the engine may cut the prompt off
    whose: Whose
    elsewhere: Elsewhere | None = None  # who held more of it and was no candidate
    missed: tuple[Miss, ...] = ()  # what was found out meanwhile
    # Once it is packed:
    names: Names | None = None  # with these names
    packed: bytes | None = None
    tiers: Mapping[int, tuple[tuple[int, int], ...]] = {}
    reachable: int = 0  # blocks
    reached: int = 0  # row of the endpoint that held them
    spared_ms: float = 0.0  # the cost there, less that of the chosen one

    @property
    def block_size(self) -> int:
        return self.whose.block_size

    @property
    def endpoint(self) -> Endpoint:
        """The one that was chosen."""
        return self.endpoints[self.chosen]


class CandidatePacker:
    """Packs the candidates of many requests at a time. `names` are those of the ring."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._numbers = PerEndpoint(self._numbers_of)

    def renew(self, names: Names) -> None:
        """Go on with another table of names."""
        self.names = names
        self._numbers.forget()

    def pack(self, noted: Sequence[Noted]) -> None:
        """Fill in what these lack; equally many candidates at a time are done together."""
        groups: dict[tuple[int, bool], list[Noted]] = {}
        for each in noted:
            key = (len(each.endpoints), each.costs is not None)
            groups.setdefault(key, []).append(each)
        for (number, has_costs), group in groups.items():
            self._pack(group, number, has_costs=has_costs)

    def _numbers_of(self, endpoints: Sequence[Endpoint]) -> NDArray[np.uint16]:
        return np.array([self.names.add(each.name) for each in endpoints], np.uint16)

    def _pack(self, group: Sequence[Noted], number: int, *, has_costs: bool) -> None:
        shape = (len(group), number)
        blocks = _joined([each.matched for each in group], shape)
        chosen = np.array([each.chosen for each in group])
        longest = blocks.argmax(axis=1)
        if has_costs:
            costs = [each.costs for each in group if each.costs is not None]
            cost = _joined([each[0] for each in costs], shape)
            expected = _joined([each[1] for each in costs], shape)
            terms = _joined([each[2] for each in costs], (*shape, -1))
        else:
            cost, expected = _scored(group, shape)
            terms = np.zeros((*shape, CANDIDATE["terms"].shape[0]))
        rows = _kept_rows(cost, chosen, longest)
        table = np.zeros(rows.shape, CANDIDATE)
        take = np.take_along_axis
        ids = _joined([self._numbers(each.endpoints) for each in group], shape)
        table["endpoint"] = take(ids, rows, 1)
        table["blocks"] = np.minimum(take(blocks, rows, 1), MOST_BLOCKS)
        table["terms"] = np.minimum(take(terms, rows[:, :, None], 1), MOST_MS)
        kept = take(expected, rows, 1)
        table["expected"] = np.minimum(kept, MOST_MS)
        if has_costs:
            table["others"] = np.minimum(take(cost, rows, 1) - kept, MOST_MS)
        for place, name in enumerate(("running", "waiting")):
            load = np.frombuffer(b"".join([each.load[place] for each in group])).reshape(shape)
            table[name] = np.minimum(take(load, rows, 1), MOST_LOAD)
        every = np.arange(len(group))
        spared = (cost[every, longest] - cost[every, chosen]).tolist()
        reachable = blocks[every, longest].tolist()
        reached, width = longest.tolist(), rows.shape[1] * CANDIDATE.itemsize
        whole = table.tobytes()
        for place, each in enumerate(group):
            each.reachable, each.reached = int(reachable[place]), reached[place]
            each.spared_ms = spared[place] if has_costs else 0.0
            if each.lower:
                each.tiers = _tiers(each, rows[place].tolist())
            each.packed = whole[place * width : (place + 1) * width]
            each.names = self.names
            # nothing else of the decision is needed any more
            each.costs, each.load, each.matched = None, (b"", b""), _NO_COLUMN
            if not each.keys:
                each.found = {}


def _joined(parts: Sequence[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    return np.concatenate(parts).reshape(shape)


def _scored(group: Sequence[Noted], shape: tuple[int, int]) -> tuple[Column, Column]:
    """Of a choice by scores: those of the targets are known. The chosen one comes first anyway."""
    expected = np.zeros(shape)
    for row, each in zip(expected, group, strict=True):
        row[each.chosen] = each.scores[0] if each.scores else 0.0
    return -expected, expected


def _kept_rows(
    cost: NDArray[np.float64], chosen: NDArray[np.intp], longest: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the rows to keep of each request: the chosen one, the longest holder, the cheapest."""
    key = cost.copy()
    every = np.arange(len(key))
    key[every, longest] = -np.inf
    order = key.argsort(axis=1)
    # the chosen one goes to the front, and the others keep their order
    is_chosen = order != chosen[:, None]
    return np.take_along_axis(order, is_chosen.argsort(axis=1, kind="stable"), 1)[
        :, :MOST_CANDIDATES
    ]


def _tiers(noted: Noted, rows: Sequence[int]) -> dict[int, tuple[tuple[int, int], ...]]:
    """By place: runs of blocks in each tier, where not all lie in the first."""
    found = {}
    for place, row in enumerate(rows):
        holder = noted.endpoints[row].holder
        below = noted.lower.get(holder)
        if below:
            found[place] = runs(below, noted.found.get(holder, 0))
    return found


def runs(lower: Mapping[int, int], blocks: int) -> tuple[tuple[int, int], ...]:
    """Return the runs of tiers of `blocks` blocks, of whose lower tiers each begins at a place, as
    far as that says it: each goes as far as the next begins."""
    starts = sorted((place, tier) for tier, place in lower.items())
    starts = [(0, 0), *starts] if not starts or starts[0][0] else starts
    ends = [place for place, _ in starts[1:]] + [blocks]
    return tuple(
        (tier, end - place) for (place, tier), end in zip(starts, ends, strict=True) if end > place
    )
