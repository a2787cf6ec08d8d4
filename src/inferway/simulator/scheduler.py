"""Which request runs when: continuous batching without I/O. Time is an argument, in seconds.

A step, as vLLM's (v1/core/sched/scheduler.py), has two halves: first the tokens that are due come
out, requests that end give their blocks back, and the events so far are taken; then the requests
that go on get room for their next token, and waiting ones are admitted in the order they came.
So an event leaves with the first token that comes out after it, and an engine without work keeps
its last events to itself (a reset's among them), as vLLM does.

Latency, as llm-d-inference-sim has it: prefill takes `time_to_first_token` if that is set, else
`prefill_overhead + uncached tokens * prefill_time_per_token`; each further token
`inter_token_latency`. Both times `1 + (time_factor_under_load - 1) * (running - 1) /
(max_num_seqs - 1)`. A prompt that reuses blocks still being computed waits for them. Ours alone:
`prefill_in_turn`, where a prefill begins when the one before has ended. Without it prefills run
side by side, and only `max_num_seqs` and the factor make anybody wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from inferway.simulator.cache import KvCache, Run
from inferway.simulator.config import LatencyModel
from inferway.simulator.events import Event


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request inside the engine. `planned` is what it will say, at least one token."""

    run: Run
    planned: Sequence[int]
    arrived: float
    due: float = 0.0  # when its next token comes out
    num_emitted: int = 0
    num_cached_tokens: int = 0  # of the prompt, when first admitted
    num_stored_tokens: int = 0  # of the prompt, that were computed then and can be found again
    was_admitted: bool = False

    @property
    def in_prefill(self) -> bool:
        return self.num_emitted == 0


@dataclass(frozen=True, slots=True)
class Emitted:
    """One token of a request that came out."""

    job: RunningRequest
    token: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The output of a step, in order. Events come before the tokens they belong to."""

    events: Sequence[Event]
    emitted: Sequence[Emitted]


@dataclass(slots=True)
class Totals:
    """The numbers of the engine's counters. The scheduler writes them, the metrics read them."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Scheduler:
    """The jobs of one engine. Not re-entrant; whoever owns it calls `step` when `next_due`."""

    cache: KvCache
    latency: LatencyModel
    max_num_seqs: int
    max_waiting: int
    totals: Totals = field(default_factory=Totals)
    running: dict[RunningRequest, None] = field(default_factory=dict)  # in the order of admission
    waiting: deque[RunningRequest] = field(default_factory=deque)
    prefilled: float = 0.0  # when the prefill admitted last ends

    @property
    def is_full(self) -> bool:
        """No place is left, not even to wait."""
        return len(self.running) + len(self.waiting) >= self.max_num_seqs + self.max_waiting

    def add(self, job: RunningRequest) -> None:
        """Queue `job`; the next step admits it if there is a place."""
        self.waiting.append(job)

    def abort(self, job: RunningRequest) -> list[Event]:
        """Drop `job` and free its blocks; one that ended already is left alone. Returns the
        events of the step it was part of: vLLM finishes that step too."""
        if job in self.waiting:
            self.waiting.remove(job)
        if job not in self.running:
            return []
        del self.running[job]
        self.cache.release(job.run)
        return self.cache.take_events()

    def next_due(self, now: float) -> float | None:
        """Return when `step` has something to do, or None if that is not before a request is
        added."""
        if not self.running:
            return now if self.waiting else None
        return min(job.due for job in self.running)

    def step(self, now: float) -> Step:
        """Let out what is due at `now`, then plan what comes next."""
        emitted = [self._emit(job) for job in self.running if job.due <= now]
        for item in emitted:
            if item.is_last:
                del self.running[item.job]
                self.cache.release(item.job.run)
        events = self.cache.take_events() if emitted else []
        preempted = self._continue([item.job for item in emitted if not item.is_last])
        if not preempted:
            self._admit(now)
        return Step(events, emitted)

    def _emit(self, job: RunningRequest) -> Emitted:
        token = job.planned[job.num_emitted]
        job.num_emitted += 1
        self.totals.generation_tokens += 1
        is_last = job.num_emitted == len(job.planned)
        if not is_last:
            # The last token is never computed, so it never takes room in the cache.
            job.run.tokens.append(token)
        return Emitted(job, token, is_last)

    def _continue(self, jobs: Sequence[RunningRequest]) -> bool:
        """Room for one token more for each job; True if another lost its place for it."""
        preempted = False
        for job in jobs:
            while job in self.running and not self.cache.reserve(job.run):
                self._preempt(next(reversed(self.running)))
                preempted = True
            job.due += self.latency.inter_token_latency * self._load_factor()
        return preempted

    def _preempt(self, job: RunningRequest) -> None:
        del self.running[job]
        self.cache.release(job.run)
        self.waiting.appendleft(job)
        self.totals.preemptions += 1

    def _admit(self, now: float) -> None:
        while self.waiting and len(self.running) < self.max_num_seqs:
            job = self.waiting[0]
            num_cached = self.cache.admit(job.run)
            if num_cached is None:
                return
            self.waiting.popleft()
            ready = self._when_computed(job.run, now)
            self.running[job] = None
            begin = max(now, self.prefilled) if self.latency.prefill_in_turn else now
            self.prefilled = begin + self._prefill(len(job.run.tokens) - num_cached)
            job.due = max(ready, self.prefilled)
            self._count(job, num_cached)

    def _when_computed(self, run: Run, now: float) -> float:
        """When the last block that `run` reuses is there: another may be computing it."""
        reused = set(run.blocks[: run.num_reused])
        return max(
            (
                other.due
                for other in self.running
                if other.in_prefill and not reused.isdisjoint(other.run.blocks)
            ),
            default=now,
        )

    def _count(self, job: RunningRequest, num_cached: int) -> None:
        """A job admitted again after preemption counts once, as in vLLM."""
        if job.was_admitted:
            return
        job.was_admitted = True
        job.num_cached_tokens = num_cached
        job.num_stored_tokens = self.cache.num_kept_tokens(job.run) - num_cached
        self.totals.prompt_tokens += len(job.run.tokens)
        self.totals.prompt_tokens_cached += num_cached

    def _prefill(self, num_uncached: int) -> float:
        latency = self.latency
        seconds = latency.time_to_first_token or (
            latency.prefill_overhead + num_uncached * latency.prefill_time_per_token
        )
        return seconds * self._load_factor()

    def _load_factor(self) -> float:
        if self.max_num_seqs == 1:
            return 1.0
        share = (len(self.running) - 1) / (self.max_num_seqs - 1)
        return 1 + (self.latency.time_factor_under_load - 1) * share
