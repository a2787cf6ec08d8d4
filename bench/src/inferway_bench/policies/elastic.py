"""A fleet that grows and shrinks while it serves.

It is looked at every `sync_seconds`, before the next request arrives. A row of the table is one
engine after the other: each has a name of its own, and begins with an empty cache.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from inferway.model import Candidates, Endpoint, Target
from inferway.telemetry.cache_worth import FadingTokens, found_alone
from inferway_bench.policies.engine import Job
from inferway_bench.policies.gateway import Gateway, ServingRows
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.scaling import Elastic, Signal
from inferway_bench.policies.simulate import FleetSpec, MakePolicy, Simulation

_WARM_SECONDS = 600.0  # what was used longer ago is not handed over
_MOST_HANDED_OVER = 2_000  # prefixes


class Size(NamedTuple):
    """How large the fleet was at a time."""

    at: float
    serving: int
    paid: int  # with those that start, and those that end their last answers


class ElasticSimulation(Simulation):
    """One run. `sizes` is written as it goes on."""

    def __init__(
        self,
        workload: Workload,
        rate: float,
        fleet: FleetSpec,
        make_policy: MakePolicy,
        seed: int,
        elastic: Elastic,
        first: int,
        make_signal: Callable[[Gateway], Signal],
    ) -> None:
        """`fleet` has as many engines as there may be at a time; it begins with `first` of them."""
        super().__init__(workload, rate, fleet, make_policy, seed)
        self.sizes: list[Size] = []
        self.handed_over = 0  # tokens
        self.num_started = 0
        self._elastic = elastic
        self._gateway = self._gateways[0]
        self._gateway.on_routed = self._routed
        self._block_tokens = workload.block_tokens
        self._names = count()
        self._serving: dict[int, Endpoint] = {}  # row -> who is there; the newest is last
        self._starting: dict[int, float] = {}  # row -> when it serves
        self._leaving: set[int] = set()
        self._off = list(range(fleet.num_engines))[::-1]
        self._next_sync = elastic.sync_seconds
        self._worth = FadingTokens()
        # row -> session -> the last job: what its cache is warm with
        self._warm: dict[int, OrderedDict[int, tuple[float, Job]]] = {}
        for _ in range(first):
            self._serve(self._off.pop())
        self._set_serving()
        self._signal = make_signal(self._gateway)

    def _arrive(self) -> None:
        at = self._arrivals[0][0]
        while self._next_sync <= at:
            self._sync(self._next_sync)
            self._next_sync += self._elastic.sync_seconds
        super()._arrive()

    def _sync(self, now: float) -> None:
        for row in [row for row in self._leaving if self._is_idle(row)]:
            self._remove(row)
        ready = [row for row, at in self._starting.items() if at <= now]
        for row in ready:
            del self._starting[row]
            self._serve(row)
        current = len(self._serving) + len(self._starting)
        serving = self._gateway.serving
        assert serving is not None
        table = serving.of(self._gateway.table)
        wanted = self._signal.wanted(now, table, current)
        for _ in range(wanted - current):
            self._start(now)
        left = [self._drain(now) for _ in range(current - wanted)]
        if ready or any(left):
            self._set_serving()
        paid = len(self._serving) + len(self._starting) + len(self._leaving)
        self.sizes.append(Size(now, len(self._serving), paid))

    # engines come

    def _start(self, now: float) -> None:
        if self._off:
            self._starting[self._off.pop()] = now + self._elastic.start_seconds
            self.num_started += 1

    def _serve(self, row: int) -> None:
        name = f"engine-{next(self._names)}"
        self._serving[row] = Endpoint(name, f"http://{name}", row)
        self._warm[row] = OrderedDict()

    def _set_serving(self) -> None:
        rows = sorted(self._serving)
        endpoints = [self._serving[row] for row in rows]
        self._gateway.serving = ServingRows(np.array(rows, np.intp), endpoints)

    # and go

    def _drain(self, now: float) -> bool:
        """Take one out. Return whether it got requests."""
        if self._starting:
            row = max(self._starting, key=self._starting.__getitem__)
            del self._starting[row]
            self._off.append(row)
            return False
        if len(self._serving) < 2:
            return False
        row = list(self._serving)[-1]
        if self._elastic.least_worth:
            worth = self._worth
            row = min(self._serving, key=lambda row: worth.of(self._serving[row].engine, now))
        del self._serving[row]
        self._leaving.add(row)
        if self._elastic.hand_over:
            self._hand_over(row, now)
        return True

    def _is_idle(self, row: int) -> bool:
        engine = self._engines[row]
        return not (engine.is_busy or engine.waiting or engine.num_running)

    def _remove(self, row: int) -> None:
        """Its row is free for a new one, with another cache."""
        old, table = self._engines[row], self._gateway.table
        new = type(old)(row, old.spec, self._block_tokens, self._random.random())
        new.version, new.gaps = old.version + 1, old.gaps
        self._engines[row] = new
        self._feed.deliver(math.inf)  # what is on its way is of the old one
        self._feed.holders.forget(row)
        table.in_flight[row] = table.others[row] = table.recent_prefill_tokens[row] = 0.0
        self._leaving.discard(row)
        self._off.append(row)

    # caches

    def _routed(self, candidates: Candidates, target: Target) -> None:
        row = candidates.rows[target.endpoint.holder]
        alone = found_alone(candidates.matched_blocks, row)
        if alone > 0:
            engine = target.endpoint.engine
            self._worth.add(engine, alone * self._block_tokens, candidates.now)

    def _begin(self, job: Job, row: int, now: float, removed: Sequence[int]) -> None:
        super()._begin(job, row, now, removed)
        warm = self._warm.setdefault(row, OrderedDict())
        warm[job.request.session] = (now, job)
        warm.move_to_end(job.request.session)

    def _hand_over(self, row: int, now: float) -> None:
        """Its sessions' last prompts go to who has the fewest requests, the last used first. That
        takes no time and no room of running requests here: next to nothing, beside a drain."""
        table, given = self._gateway.table, dict.fromkeys(self._serving, 0)
        for at, job in list(reversed(self._warm[row].values()))[:_MOST_HANDED_OVER]:
            blocks = job.request.blocks
            held = self._engines[row].cache.match(blocks, len(blocks))
            best = max(self._engines[other].cache.match(blocks, held) for other in given)
            if now - at > _WARM_SECONDS or held <= best:
                continue
            to = min(given, key=lambda other: (table.in_flight[other], given[other]))
            self._move(to, blocks[:held], now)
            given[to] += held - best

    def _move(self, row: int, blocks: tuple[int, ...], now: float) -> None:
        cache = self._engines[row].cache
        reused = cache.admit(blocks, len(blocks), 0)
        if reused is None:
            return
        cache.release(blocks, 0)
        removed, cache.evicted = cache.evicted, []
        self._feed.send(now, row, blocks[reused:], removed)
        self.handed_over += (len(blocks) - reused) * self._block_tokens
