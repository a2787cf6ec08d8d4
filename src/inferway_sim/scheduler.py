"""A scheduler of requests: continuous batching without I/O. Time is an argument, in seconds.

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

A request whose blocks another engine has (`kv_transfer`) gets blocks in its turn, and waits for
their content without a place among the running: who runs the scheduler asks for it (`Step.loads`)
and hands it in (`loaded`). Then it is the first to be admitted; only its last token is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from inferway_sim.cache import EngineCache, Run
from inferway_sim.config import LatencyModel
from inferway_sim.drafting import Drafter
from inferway_sim.events import Event
from inferway_sim.kv_transfer import Connector, CoreDiedError, Transfer


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
    num_external_tokens: int = 0  # of the prompt, that another engine computed
    transfer: Transfer | None = None
    contents: Sequence[Sequence[int]] | None = None  # of its blocks, as they came
    # Plans anew what it will say, where its blocks hold these tokens and not its own.
    retell: Callable[[list[int]], None] | None = None

    @property
    def in_prefill(self) -> bool:
        return self.num_emitted == 0

    @property
    def num_missing_blocks(self) -> int:
        """The number of its blocks that wait for their content."""
        return len(self.run.blocks) - self.run.num_reused


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
    loads: Sequence[RunningRequest] = ()  # whose blocks are to be fetched now
    failed: Sequence[RunningRequest] = ()  # which end with an error: their blocks could not be had


@dataclass(slots=True)
class Totals:
    """The numbers of the engine's counters. The scheduler writes them, the metrics read them."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_external: int = 0  # of the cached: what other engines computed
    generation_tokens: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Scheduler:
    """The jobs of one engine. Not re-entrant; whoever owns it calls `step` when `next_due`."""

    cache: EngineCache
    latency: LatencyModel
    max_num_seqs: int
    max_waiting: int
    totals: Totals = field(default_factory=Totals)
    running: dict[RunningRequest, None] = field(default_factory=dict)  # in the order of admission
    waiting: deque[RunningRequest] = field(default_factory=deque)
    prefilled: float = 0.0  # when the prefill admitted last ends
    transfer: Connector | None = None
    drafter: Drafter | None = None  # None: nothing is speculated
    loading: dict[RunningRequest, None] = field(default_factory=dict)
    is_paused: bool = False  # nothing that waits is admitted
    sleep_level: int | None = None  # None: the engine is awake
    _refused_at: int | None = None  # so many blocks were free, and the first in the queue not in

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
        self._refused_at = None
        if job in self.waiting:
            self.waiting.remove(job)
        if job in self.loading:
            del self.loading[job]
        self._drop_fetch(job)
        if job not in self.running:
            self.cache.release(job.run)  # of one that waits with its blocks loaded
            return []
        del self.running[job]
        self.cache.release(job.run)
        return self.cache.take_events()

    def cut_short(self, now: float) -> None:
        """Have all that runs end with its next token, at once."""
        for job in self.running:
            job.planned = job.planned[: job.num_emitted + 1]
            job.due = now

    def loaded(
        self, job: RunningRequest, contents: Sequence[Sequence[int]] | None, now: float
    ) -> None:
        """The other engine has been asked for the blocks of `job`: their contents, which are here
        when the transfer's time is over, or None if they cannot be had."""
        if job in self.loading and self.transfer is not None:
            job.contents = contents
            job.due = now + self.transfer.begin(contents)

    def next_due(self, now: float) -> float | None:
        """Return when `step` has something to do, or None if that is not before a request is
        added."""
        may_admit = self.waiting and not self.running and not self.is_paused
        if may_admit and self._refused_at != self.cache.num_free_blocks:
            return now
        due = min((job.due for job in self.running), default=inf)
        if self.transfer is not None:
            loaded = min((job.due for job in self.loading), default=inf)
            due = min(due, loaded, self.transfer.next_expiry)
        return None if due == inf else due

    def step(self, now: float) -> Step:
        """Let out what is due at `now`, then plan what comes next. Raises CoreDiedError for what
        ends vLLM's engine core."""
        due = [job for job in self.running if job.due <= now]
        emitted = [item for job in due for item in self._emit(job)]
        for item in emitted:
            if item.is_last:
                del self.running[item.job]
                self._end(item, now)
        events = self.cache.take_events() if emitted else []
        failed = [] if self.transfer is None else self._end_transfers(self.transfer, now)
        preempted = self._continue([job for job in due if job in self.running])
        loads = [] if preempted or self.is_paused else self._admit(now)
        return Step(events, emitted, loads, failed)

    def _end(self, last: Emitted, now: float) -> None:
        """A request has said all it had to say."""
        job = last.job
        if self.transfer is not None and job.transfer is not None and job.transfer.keep_as:
            self.transfer.keep(job.transfer, job.run, job.num_cached_tokens, now)
        else:
            self.cache.finish(job.run, last.token)

    def _end_transfers(self, transfer: Connector, now: float) -> list[RunningRequest]:
        """End transfers that came, or are over: requests whose blocks are here are the next to run.
        Returns those whose blocks could not be had."""
        transfer.expire(now)
        failed = []
        for job in [job for job in self.loading if job.due <= now]:
            del self.loading[job]
            if job.contents is not None:
                if len(job.contents) < job.num_missing_blocks:
                    raise CoreDiedError
                job.num_external_tokens = len(job.run.tokens) - job.run.num_written
                transfer.cache.fill(job.run, job.contents)
                self._drop_fetch(job)
                self.waiting.appendleft(job)
                continue
            self.cache.release(job.run)
            self._drop_fetch(job)
            if transfer.config.load_failure_policy == "recompute":
                self.waiting.appendleft(job)
            else:
                failed.append(job)
        return failed

    def _drop_fetch(self, job: RunningRequest) -> None:
        """Drop a fetch that is done, or is not wanted any more: the other engine is told."""
        if self.transfer is not None and job.transfer is not None:
            self.transfer.drop(job.transfer)

    def _emit(self, job: RunningRequest) -> list[Emitted]:
        """What comes out of one step: a token, and those that were drafted and are accepted."""
        if self.drafter is None or job.in_prefill:
            return [self._emit_token(job)]
        rest = len(job.planned) - job.num_emitted - 1
        return [self._emit_token(job) for _ in range(1 + self.drafter.accept(rest))]

    def _emit_token(self, job: RunningRequest) -> Emitted:
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

    def _admit(self, now: float) -> list[RunningRequest]:
        """Returns those of them whose blocks are to be fetched first."""
        loads = []
        while self.waiting and len(self.running) < self.max_num_seqs:
            job = self.waiting[0]
            if self.transfer is not None and self.transfer.is_to_fetch(job.transfer):
                if not self.transfer.cache.await_content(job.run):
                    break
                loads.append(self.waiting.popleft())
                job.due = inf
                self.loading[job] = None
                continue
            num_cached = self._take_blocks(job)
            if num_cached is None:
                break
            self.waiting.popleft()
            ready = self._when_computed(job.run, now)
            self.running[job] = None
            begin = max(now, self.prefilled) if self.latency.prefill_in_turn else now
            self.prefilled = begin + self._prefill(len(job.run.tokens) - num_cached)
            job.due = max(ready, self.prefilled)
            self._count(job, num_cached)
        else:
            return loads
        self._refused_at = self.cache.num_free_blocks
        return loads

    def _take_blocks(self, job: RunningRequest) -> int | None:
        """Returns how many tokens need not be computed; None if there is no room."""
        if job.run.blocks:  # loaded: its last token is computed all the same
            num_cached: int | None = len(job.run.tokens) - 1
        else:
            num_cached = self.cache.admit(job.run)
        if self.transfer is not None and num_cached is not None:
            self._retell(job, self.transfer)
        return num_cached

    def _retell(self, job: RunningRequest, transfer: Connector) -> None:
        """Let the request say what follows from the content of its blocks."""
        if job.retell is None or job.was_admitted:
            return
        held = transfer.cache.held_tokens(job.run)
        if held != job.run.tokens:
            job.retell(held)

    def _when_computed(self, run: Run, now: float) -> float:
        """Return when the last block that `run` reuses is there: another may be computing it."""
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
        if job.num_external_tokens:
            num_cached = len(job.run.tokens)  # the last one is computed, and not counted so
        job.num_cached_tokens = num_cached
        job.num_stored_tokens = max(0, self.cache.num_kept_tokens(job.run) - num_cached)
        self.totals.prompt_tokens += len(job.run.tokens)
        self.totals.prompt_tokens_cached += num_cached
        self.totals.prompt_tokens_external += job.num_external_tokens
        if job.transfer is not None and job.transfer.num_cached_tokens is not None:
            job.num_cached_tokens = job.transfer.num_cached_tokens

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
