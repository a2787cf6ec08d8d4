"""A gateway in front of the simulated fleet: what it knows, which is never quite what is so.

It counts its own requests, reads the engines' metrics every `scrape_seconds`, and hears of blocks
when the events have arrived; prompts on their way count as held, as in `director`. The table that
it makes of this is filled as `fleet.columns` and `steps.match` fill it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inferway.fleet.table import RECENT_SECONDS
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import Candidates, Choice, Column, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.usage import Usage
from inferway.scheduling.idle import idle
from inferway.scheduling.plugin import Chooser, Ending, Following, Producer
from inferway_bench.policies.engine import Engine, Job
from inferway_bench.policies.holders import Holders
from inferway_bench.policies.requests import SimRequest

_FEW = 16  # engines; more are sooner written at once


@dataclass(slots=True)
class Policy:
    """How one gateway chooses. `sees_blocks`: it is told which engine holds what, by KV events;
    `sees_truth`: by looking into the engines' caches."""

    chooser: Chooser
    producers: Sequence[Producer] = ()
    following: Sequence[Following] = ()
    sees_blocks: bool = False
    sees_truth: bool = False

    @property
    def hears(self) -> bool:
        """Whether KV events matter to it."""
        return self.sees_blocks or self.sees_truth


class Feed:
    """KV events of all engines on their way, and what is believed once they have arrived."""

    __slots__ = ("_coming", "_delay", "_holders", "_is_heard")

    def __init__(self, delay: float, *, is_heard: bool = True) -> None:
        self._delay = delay
        self._is_heard = is_heard  # else nothing is kept
        self._coming: deque[tuple[float, int, Sequence[int], Sequence[int], Job | None]] = deque()
        self._holders = Holders()

    def send(
        self, now: float, engine: int, stored: Sequence[int], removed: Sequence[int],
        job: Job | None = None,
    ) -> None:  # fmt: skip
        """`job`: whose prompt the stored blocks are."""
        if self._is_heard:
            self._coming.append((now + self._delay, engine, stored, removed, job))

    def deliver(self, now: float) -> None:
        """What has arrived by `now` is believed."""
        coming, holders = self._coming, self._holders
        while coming and coming[0][0] <= now:
            _, engine, stored, removed, job = coming.popleft()
            holders.remove(engine, removed)
            holders.add(engine, stored)
            if job is not None:
                job.gateway.on_stored(job)

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """Engine -> how many of `blocks`, from the start, it is believed to hold."""
        return self._holders.match(blocks)


class Gateway:
    """One gateway. `feed` may be shared: all hear the same events at the same time."""

    __slots__ = (
        "_engines", "_fade", "_follows", "_num", "_table", "block_tokens", "endpoints", "feed",
        "in_flight", "kv_usage", "others", "overlay", "policy", "recent_tokens", "running",
        "unbegun", "waiting",
    )  # fmt: skip

    def __init__(
        self, engines: Sequence[Engine], block_tokens: int, policy: Policy, feed: Feed,
        scrape_seconds: float,
    ) -> None:  # fmt: skip
        num = len(engines)
        self.block_tokens = block_tokens
        self.policy = policy
        self.feed = feed
        self.overlay = SpeculativeOverlay()
        self.endpoints = endpoints_of(num)
        self._engines = engines
        self._num = num
        self._fade = math.exp(-scrape_seconds / RECENT_SECONDS)
        self._follows = bool(policy.following)
        self._table = table = idle(self.endpoints, block_tokens)
        self.in_flight, self.recent_tokens = table.in_flight, table.recent_tokens
        self.others, self.running, self.waiting = table.others, table.running, table.waiting
        self.kv_usage, self.unbegun = table.kv_usage, table.unbegun

    def scrape(self, ticks: int) -> None:
        """Read all engines' metrics, for the first time in `ticks` scrapes: fleet.Fleet._loaded."""
        told = [engine.told for engine in self._engines]
        self.running[:], self.waiting[:], self.unbegun[:], self.kv_usage[:] = zip(
            *told, strict=True
        )
        np.add(self.running, self.waiting, out=self.others)
        self.others -= self.in_flight
        np.maximum(self.others, 0.0, out=self.others)
        self.recent_tokens *= self._fade**ticks

    def route(self, job: Job, llm: LLMRequest, now: float) -> int:
        """The engine that it goes to. What is in flight is counted from here on."""
        policy, request = self.policy, job.request
        candidates = self._candidates(now)
        found: Mapping[int, int] = {}
        if policy.hears:
            found = self._found(request, now)
            # prompts on their way to an endpoint count as held by it
            held = self.overlay.extend(request.blocks, found)
            candidates.matched_blocks = candidates.matched_value = self._column(held)
            candidates.prompt_blocks = np.full(self._num, float(len(request.blocks)))
        for producer in policy.producers:
            producer.produce(llm, candidates)
        choice = policy.chooser.choose(llm, candidates)
        target = choice.targets[0]
        row = target.endpoint.holder
        if self._follows:
            self._follow(job, llm, candidates, choice, now)
        self._book(job, row, target.matched_blocks, found)
        return row

    def _found(self, request: SimRequest, now: float) -> dict[int, int]:
        """Endpoint -> blocks that it holds."""
        self.feed.deliver(now)
        if self.policy.sees_truth:
            most = len(request.blocks)
            return {e.number: e.cache.match(request.blocks, most) for e in self._engines}
        return self.feed.match(request.blocks)

    def _column(self, held: Mapping[int, int]) -> Column:
        column = np.zeros(self._num)
        size = len(held)
        if size <= _FEW:
            for row, blocks in held.items():
                column[row] = blocks
        else:
            column[np.fromiter(held, np.intp, size)] = np.fromiter(held.values(), float, size)
        return column

    def _book(self, job: Job, row: int, matched: int, found: Mapping[int, int]) -> None:
        """As director.Journey.attempt."""
        request, size = job.request, self.block_tokens
        reusable = min(matched, (request.prompt_tokens - 1) // size)
        job.expected_uncached = request.prompt_tokens - reusable * size
        self.in_flight[row] += 1
        self.recent_tokens[row] += job.expected_uncached
        if self.policy.hears:
            job.speculation = self.overlay.add(row, request.blocks, skip=found.get(row, 0))

    def _follow(
        self, job: Job, llm: LLMRequest, candidates: Candidates, choice: Choice, now: float
    ) -> None:
        followers = []
        for plugin in self.policy.following:
            follower = plugin.follow(llm, candidates, choice)
            if follower is not None:
                follower.on_attempt(choice.targets[0], now)
                followers.append(follower)
        job.followers = followers

    def on_first_token(self, job: Job, now: float) -> None:
        """The answer begins to pass through."""
        for follower in job.followers:
            follower.on_head(200)
            follower.on_first_chunk(now)

    def on_stored(self, job: Job) -> None:
        """The events that its prompt's blocks are stored have arrived."""
        if job.speculation is not None:
            self.overlay.remove(job.speculation)

    def on_end(self, job: Job, row: int, now: float) -> None:
        self.in_flight[row] -= 1
        if job.followers:
            request = job.request
            cached = job.cached_blocks * self.block_tokens
            usage = Usage(request.prompt_tokens, request.output_tokens, cached)
            for follower in job.followers:
                follower.on_end(Ending("ok", now, usage))

    def _candidates(self, now: float) -> Candidates:
        """As fleet.columns.ModelRows.candidates; matched columns are empty."""
        table = self._table
        candidates = table.narrowed(slice(None), self.endpoints, table.rows, table.adapters)
        candidates.now = now
        return candidates


def endpoints_of(num_engines: int) -> list[Endpoint]:
    """Holder i is engine i."""
    return [Endpoint(f"engine-{i}", f"http://engine-{i}", i) for i in range(num_engines)]
