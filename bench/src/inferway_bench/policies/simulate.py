"""A fleet, its gateways and a workload in virtual time: a discrete-event simulation.

What happens, in order of time: an engine's stretch of steps ends; a request arrives at a gateway,
which has last scraped at its last tick before, and is added to the engine that the policy names. A
run depends on its arguments alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from random import Random
from time import process_time

import msgspec
import numpy as np

from inferway_bench.policies.engine import BesideEngine, Engine, EngineSpec, Job, Leg
from inferway_bench.policies.gateway import Feed, Gateway, Policy, Post
from inferway_bench.policies.groups import GroupCache, GroupFeed, HybridSpec
from inferway_bench.policies.outcome import Limits, Outcome
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError

_LOOK_SECONDS = 0.02  # as http.gate_queues has it for requests that wait for an engine


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident in the middle of a run, when the first request arrives after `at`."""

    at: float  # seconds
    factors: tuple[float, ...] = ()  # how many times as slow as before each engine becomes
    candidates: int | None = None  # so many of the engines are there from then on
    # Gateways are started anew: what they had learned and knew of caches is gone. Replayed events
    # tell what engines hold; without them a prompt's next new block tells that the rest is there
    # (as orphans are adopted). Models with several groups of KV caches are not restarted.
    restart: bool = False
    replay: bool = False


class FleetSpec(msgspec.Struct, frozen=True):
    """A fleet of engines, and the gateways before it."""

    num_engines: int = 8
    num_slow: int = 1
    slow_factor: float = 3.0
    engine: EngineSpec = EngineSpec()
    # How many times as slow as `engine` each engine is, whatever is drawn; those behind its end
    # are as fast.
    factors: tuple[float, ...] = ()
    num_gateways: int = 1
    event_delay: float = 0.01  # seconds from a step's end until a gateway believes it
    hybrid: HybridSpec | None = None  # None: models with one group of KV caches
    incidents: tuple[Incident, ...] = ()  # in order
    limits: Limits = Limits()

    @property
    def scrape_seconds(self) -> float:
        return max(0.2, self.num_engines * 0.002)

    @property
    def about(self) -> str:
        """The number of engines, the time of their steps, and the delay until gateways know."""
        engine, slow = self.engine, "all alike"
        if self.num_slow:
            slow = f"{self.num_slow} of them {self.slow_factor:g} × slower"
        if any(factor != 1.0 for factor in self.factors):
            slow = "as slow as " + ", ".join(f"{factor:g}" for factor in self.factors) + " of them"
        return (
            f"{self.num_engines:,} engines, {slow}. A step takes {engine.step_about}. A step has "
            f"at most {engine.max_batched_tokens:,} tokens and {engine.max_num_seqs} requests. "
            f"Metrics are scraped every {self.scrape_seconds * 1e3:,g} ms, KV events arrive "
            f"{self.event_delay * 1e3:g} ms after the step that caused them."
        )

    def engines(self, block_tokens: int, random: Random) -> list[Engine]:
        """Return the engines; the slow ones are drawn."""
        slow = set(random.sample(range(self.num_engines), self.num_slow))
        factors = [self.slow_factor if i in slow else 1.0 for i in range(self.num_engines)]
        factors[: len(self.factors)] = self.factors[: self.num_engines]
        specs = [self.engine.slower(f) if f != 1.0 else self.engine for f in factors]
        seeds = [random.random() if spec.scatter else 0.0 for spec in specs]
        kind = BesideEngine if self.engine.prompts_beside else Engine
        return [
            kind(i, specs[i], block_tokens, seeds[i], self._cache(block_tokens))
            for i in range(self.num_engines)
        ]

    def feed(
        self, engines: Sequence[Engine], block_tokens: int, policies: Sequence[Policy]
    ) -> Feed:
        """Return the way of their events to the gateways with these policies."""
        is_heard = any(policy.hears for policy in policies)
        if self.hybrid is None:
            return Feed(self.event_delay, is_heard=is_heard)
        caches = [engine.cache for engine in engines if isinstance(engine.cache, GroupCache)]
        knows = policies[0].knows_groups
        return GroupFeed(
            self.event_delay, caches, block_tokens, knows_groups=knows, is_heard=is_heard
        )

    def check(self, block_tokens: int) -> None:
        """Raises BenchError for groups of caches that cannot be simulated with such blocks."""
        self._cache(block_tokens)

    def _cache(self, block_tokens: int) -> GroupCache | None:
        if self.hybrid is None:
            return None
        groups = self.hybrid.kv_groups(block_tokens, self.engine.max_batched_tokens)
        return GroupCache(groups, self.engine.cache_tokens // block_tokens, block_tokens)


class World(msgspec.Struct, frozen=True):
    """The parts for making a policy. All policies but the oracle leave the engines alone."""

    engines: Sequence[Engine]
    requests: Sequence[SimRequest]
    block_tokens: int
    random: Random
    clock: Callable[[], float]  # virtual seconds
    limits: Limits = Limits()


MakePolicy = Callable[[World], Policy]


def simulate(
    workload: Workload, rate: float, fleet: FleetSpec, make_policy: MakePolicy, seed: int
) -> Outcome:
    """Run `workload` at `rate` requests a second until all have ended, and return what became of
    them. Raises BenchError for a request that no engine could ever hold."""
    return Simulation(workload, rate, fleet, make_policy, seed).run()


class Simulation:
    """One run's state."""

    def __init__(
        self, workload: Workload, rate: float, fleet: FleetSpec, make_policy: MakePolicy, seed: int
    ) -> None:
        random, size, requests = Random(seed), workload.block_tokens, workload.requests
        self.now = 0.0
        self._workload, self._random = workload, random
        self._engines = engines = fleet.engines(size, random)
        self._check_room()

        def made() -> list[Policy]:  # each gateway draws numbers of its own
            rngs = [Random(random.random()) for _ in range(fleet.num_gateways)]
            return [
                make_policy(World(engines, requests, size, rng, lambda: self.now, fleet.limits))
                for rng in rngs
            ]

        self._made, policies = made, made()
        self._incidents = deque(fleet.incidents)
        self._feed = fleet.feed(engines, size, policies)
        self._interval = fleet.scrape_seconds
        self._gateways, self._scraping = self._started(policies)
        self._ticks = [random.random() * self._interval for _ in self._scraping]  # the next
        self._next_tick = min(self._ticks)
        self._due: list[tuple[float, int, int]] = []  # heap of (when, engine, version)
        self._delay = fleet.engine.request_seconds
        self._coming: deque[tuple[float, int, Job]] = deque()  # (when, engine, job), in order
        # heap of (when, number, engine, job): transfers to it
        self._transfers: list[tuple[float, int, Engine, Job]] = []
        self._tie = count()
        starts = workload.starts(rate, seed)
        first = np.flatnonzero(workload.columns.follows < 0)
        self._arrivals = list(zip(starts[first].tolist(), first.tolist(), strict=True))
        heapify(self._arrivals)
        self._look_at = math.inf  # when gateways see whether requests that wait go on
        self._outcome = Outcome.of(len(requests), fleet.limits)

    def _started(self, policies: Sequence[Policy]) -> tuple[Sequence[Gateway], Sequence[Gateway]]:
        """Start gateways that share what their policy says. Return them, and those that scrape."""
        sharing, size = policies[0].sharing, self._workload.block_tokens
        gateways = [Gateway(self._engines, size, p, self._feed, self._interval) for p in policies]
        if sharing is None:
            return gateways, gateways
        post = Post(sharing, len(gateways), lambda: self.now)
        for place, gateway in enumerate(gateways):
            gateway.join(post, place, gateways[0])
        return gateways, gateways[:1] if sharing.one_machine else gateways

    def _happen(self, incident: Incident) -> None:
        for engine, factor in zip(self._engines, incident.factors, strict=False):
            engine.slow_down(factor)
        if incident.restart:
            self._feed.forget(self._engines if incident.replay else ())
            self._gateways, self._scraping = self._started(self._made())
            for gateway in self._scraping:
                gateway.scrape(1)
        if incident.candidates is not None:
            for gateway in self._gateways:
                gateway.show(incident.candidates)

    def _check_room(self) -> None:
        columns, engine = self._workload.columns, self._engines[0]
        longest = int((columns.prompt_tokens + columns.output_tokens).argmax())
        request = self._workload.requests[longest]
        if not engine.fits(request):
            raise BenchError(
                f"{self._workload.name}: a request of {request.prompt_tokens} tokens and "
                f"{request.output_tokens} to be written does not fit an engine's cache of "
                f"{engine.spec.cache_tokens}; fix: a larger cache"
            )

    def run(self) -> Outcome:
        began = process_time()
        arrivals, due = self._arrivals, self._due
        coming = self._coming
        transfers = self._transfers
        while arrivals or due or coming or transfers or self._look_at < math.inf:
            at = arrivals[0][0] if arrivals else math.inf
            if self._look_at < math.inf and self._is_first(self._look_at):
                self._look()
                continue
            if transfers and transfers[0][0] <= min(
                at, due[0][0] if due else at, coming[0][0] if coming else at
            ):
                self._end_transfer()
                continue
            if coming and coming[0][0] <= at and not (due and due[0][0] <= coming[0][0]):
                self._add(*coming.popleft())
                continue
            tick = None
            if arrivals and self._next_tick <= at:
                at, tick = self._last_tick(at)
            if due and due[0][0] <= at:
                self._end_stretch()
            elif tick is not None:
                self._scrape(tick, at)
            else:
                self._arrive()
        self._check_ended()
        self._outcome.num_engines = len(self._engines)
        self._outcome.cpu_seconds = process_time() - began
        self._outcome.gaps = tuple(
            np.concatenate([np.asarray(engine.gaps[which]) for engine in self._engines])
            for which in range(3)
        )
        return self._outcome

    def _check_ended(self) -> None:
        if not self._outcome.num_ended.all():
            raise BenchError(
                f"{self._workload.name}: requests wait for ever: engines are full of blocks that "
                "others are to fetch, which have no room for them; fix: a lower load"
            )

    def _last_tick(self, at: float) -> tuple[float, int]:
        """(when, gateway) of the scrape that comes next and is the gateway's last before `at`: what
        an earlier one read nobody would see."""
        ticks = [
            (tick + (at - tick) // self._interval * self._interval, which)
            for which, tick in enumerate(self._ticks)
            if tick <= at
        ]
        return min(ticks)

    def _scrape(self, which: int, at: float) -> None:
        skipped = round((at - self._ticks[which]) / self._interval)
        gateway = self._scraping[which]
        gateway.hear(at)
        gateway.scrape(skipped + 1)
        self._ticks[which] = at + self._interval
        self._next_tick = min(self._ticks)

    def _arrive(self) -> None:
        at, index = heappop(self._arrivals)
        self.now = at
        while self._incidents and self._incidents[0].at <= at:
            self._happen(self._incidents.popleft())
        self._outcome.arrived[index] = at
        self._dispatch(index, at)

    def _dispatch(self, index: int, arrived: float) -> None:
        """Have a gateway send on a request that arrived then."""
        gateways = self._gateways
        gateway = gateways[0] if len(gateways) == 1 else self._random.choice(gateways)
        job = Job(index, self._workload.requests[index], arrived, gateway)
        row = gateway.arrive(job, self._workload.llm(index), self.now)
        if row is not None:
            self._send(self.now, row, job)
        elif self._look_at == math.inf:
            self._look_at = self.now + _LOOK_SECONDS

    def _is_first(self, at: float) -> bool:
        """Return whether nothing happens before then."""
        heads = (self._arrivals, self._due, self._coming, self._transfers)
        return all(not each or at <= each[0][0] for each in heads)

    def _look(self) -> None:
        self.now = now = self._look_at
        for gateway in self._gateways:
            for row, job in gateway.turns(now):
                self._send(now, row, job)
        any_waits = any(gateway.holds_any for gateway in self._gateways)
        self._look_at = now + _LOOK_SECONDS if any_waits else math.inf

    def _send(self, now: float, row: int, job: Job) -> None:
        if self._delay:
            self._coming.append((now + self._delay, row, job))
        else:
            self._add(now, row, job)

    def _add(self, now: float, row: int, job: Job) -> None:
        self.now = now
        engine = self._engines[row]
        if engine.add(job, now):
            self._planned(engine)
        self._begin_transfers(engine)

    def _begin_transfers(self, engine: Engine) -> None:
        begun, engine.fetching = engine.fetching, []
        for at, job in begun:
            heappush(self._transfers, (at, next(self._tie), engine, job))

    def _end_transfer(self) -> None:
        self.now, _, engine, job = heappop(self._transfers)
        if job.prefilled is not None:
            source, leg = job.prefilled
            source.free(leg)
            self._go_on(source)
        if engine.add_fetched(job, self.now):
            self._planned(engine)
        self._begin_transfers(engine)

    def _go_on(self, engine: Engine) -> None:
        """Blocks have become free: who waits for them may be admitted."""
        if engine.waiting and not engine.is_busy and engine.plan(self.now):
            self._planned(engine)
            self._begin_transfers(engine)

    def _end_stretch(self) -> None:
        now, row, version = heappop(self._due)
        engine = self._engines[row]
        if engine.version != version:
            return
        self.now = now
        removed, engine.cache.evicted = engine.cache.evicted, []
        first, ended = engine.end()
        for job in first:
            self._begin(job, row, now, removed)
            removed = []
        for job in ended:
            self._finish(job, row, now)
        if removed:
            self._feed.send(now, row, (), removed)
        if engine.plan(now):
            self._planned(engine)
        self._begin_transfers(engine)

    def _planned(self, engine: Engine) -> None:
        heappush(self._due, (engine.due, engine.number, engine.version))

    def _begin(self, job: Job, row: int, now: float, removed: Sequence[int]) -> None:
        """Its first token comes out."""
        outcome, index = self._outcome, job.index
        if job.leg is not Leg.DECODE:
            outcome.cached_tokens[index] = job.cached_blocks * self._workload.block_tokens
            outcome.believed_tokens[index] = job.request.prompt_tokens - job.expected_uncached
        self._feed.send(now, row, job.request.blocks[job.cached_blocks :], removed, job)
        if job.leg is Leg.PREFILL:
            return  # nobody sees it
        outcome.ttft[index] = now - job.arrived
        outcome.engine[index] = row
        outcome.in_two_legs[index] = job.leg is Leg.DECODE
        job.gateway.on_first_token(job, now)

    def _finish(self, job: Job, row: int, now: float) -> None:
        """Its last token comes out; who waited for it thinks about it."""
        if job.leg is Leg.PREFILL:
            decode, row = job.gateway.on_prefilled(job, self._engines[row], now)
            self._send(now, row, decode)
            return
        outcome, index = self._outcome, job.index
        outcome.latency[index] = now - job.arrived
        outcome.num_ended[index] += 1
        if job.request.answer_blocks:
            self._feed.send(now, row, job.request.answer_blocks, ())
        job.gateway.on_end(job, row, now)
        for other in self._workload.followers.get(index, ()):
            heappush(self._arrivals, (now + self._workload.requests[other].think, other))
