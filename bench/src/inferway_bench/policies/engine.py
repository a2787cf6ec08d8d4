"""An engine's time, step by step, as vLLM's scheduler shapes it (v1/core/sched/scheduler.py):
a step computes one token for each request that decodes and fills what is left of its token budget
with prompts, in the order they came; a prompt longer than that goes on in the next step (chunked
prefill). A step takes

    step_seconds + decoding requests * decode_seconds + prompt tokens * prefill_seconds

(a prompt token costs more the further back it looks, if `attention_tokens` is given, a token of an
answer if `context_seconds` is; all of it may scatter), and a stretch of steps that only decode is
one event, cut short when a request arrives.

A request may come in two legs (NIXL in vLLM 0.32). The prefill leg ends with its first token, and
its blocks stay in use until they have been fetched. The decode leg fetches what its engine does not
hold once its turn has come and it has room; then it goes before all who wait, and computes a token.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferway_bench.policies.cache import BlockCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inferway.kv.index.speculative import Speculation
    from inferway.model import Target
    from inferway.scheduling.plugin import RequestListener
    from inferway_bench.policies.gateway import Gateway
    from inferway_bench.policies.requests import SimRequest


class EngineSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The constants of an engine: what its steps take, and what fits it."""

    step_seconds: float = 0.008
    decode_seconds: float = 0.00025
    context_seconds: float = 0.0  # of a token of an answer, for each token before it
    prefill_seconds: float = 0.00008  # a token
    # A token that looks at so many tokens before it takes twice its prefill_seconds. 0: attention
    # takes nothing. (An 8B model with 32 layers of 4,096: about 32,000.)
    attention_tokens: int = 0
    max_batched_tokens: int = 8192
    max_num_seqs: int = 256
    cache_tokens: int = 524_288
    request_seconds: float = 0.0  # from the gateway until it waits: HTTP, template, tokens
    scatter: float = 0.0  # the standard deviation of the logarithm of a step's time
    # 1: prompts are computed beside the answers, one after the other, and hold up no step; see
    # `BesideEngine`.
    prompts_beside: int = 0
    transfer_seconds: float = 0.005  # to fetch blocks of another engine, and for each token:
    transfer_token_seconds: float = 0.000005  # 128 kB at 25 GB/s

    @property
    def step_about(self) -> str:
        """The time that a step takes, in words."""
        said = (
            f"{self.step_seconds * 1e3:.4g} ms, plus {self.decode_seconds * 1e3:.4g} ms for each "
        )
        said += "request that decodes"
        if self.context_seconds:
            said += f" (and {self.context_seconds * 1e6:.4g} µs for each token of its context)"
        said += f", plus {self.prefill_seconds * 1e6:.4g} µs for each computed prompt token"
        if self.attention_tokens:
            said += f" (twice that for one that attends to {self.attention_tokens:,} others)"
        if self.scatter:
            said += f"; step times have a standard deviation of {self.scatter:.1%}"
        if self.prompts_beside:
            said += "; prompts are computed beside the answers and hold up no step"
        return said

    def slower(self, factor: float) -> EngineSpec:
        """Return an engine that is `factor` times as slow."""
        names = ("step_seconds", "decode_seconds", "context_seconds", "prefill_seconds")
        return msgspec.structs.replace(self, **{n: getattr(self, n) * factor for n in names})

    def prompt_seconds(self, first: int, end: int) -> float:
        """Return the seconds to compute a prompt's tokens from number `first` on, up to `end`."""
        seconds = (end - first) * self.prefill_seconds
        if self.attention_tokens:
            seen = (end * end - first * first) / 2
            seconds += seen / self.attention_tokens * self.prefill_seconds
        return seconds

    def idle_ttft(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Return the seconds to the first token on an engine with nothing else to do."""
        steps = -(-(prompt_tokens - cached_tokens) // self.max_batched_tokens)
        steps *= not self.prompts_beside
        seconds = steps * self.step_seconds + self.prompt_seconds(cached_tokens, prompt_tokens)
        return self.request_seconds + seconds


class Leg(Enum):
    """The part of a request that an engine is to do."""

    WHOLE = 0
    PREFILL = 1
    DECODE = 2


class Told(NamedTuple):
    """An engine's metrics. vLLM makes them at the end of a step, of what was scheduled for it
    (Scheduler.update_from_output): requests that have come since are not in them."""

    running: int = 0
    waiting: int = 0
    awaiting_first_token: int = 0  # whose first token has not come
    kv_usage: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through a gateway and an engine, which both write here."""

    index: int
    request: SimRequest
    arrived: float
    gateway: Gateway
    cached_blocks: int = 0
    left: int = 0  # prompt tokens still to be computed
    extra: int = 0  # blocks for the prompt's tail and the answer
    expected_uncached: int = 0  # tokens, by whoever chose
    followers: Sequence[RequestListener] = ()
    speculation: Speculation | None = None  # its prompt counts as held
    leg: Leg = Leg.WHOLE
    decodes_on: Target | None = None  # of a prefill leg
    prefilled: tuple[Engine, Job] | None = None  # of a decode leg: where its blocks are


class Engine:
    """A simulated engine. `plan` begins the next run of steps, `end` ends it, which is at `due`."""

    def __init__(
        self, number: int, spec: EngineSpec, block_tokens: int, seed: float = 0.0,
        cache: BlockCache | None = None,
    ) -> None:  # fmt: skip
        """`seed` is that of the times of its steps, if they scatter. `cache`: if it is another than
        that of a model with one group."""
        self.number = number
        self.spec = spec
        num_blocks = spec.cache_tokens // block_tokens
        self.cache = BlockCache(num_blocks) if cache is None else cache
        self.waiting: deque[Job] = deque()
        self.prefilling: deque[Job] = deque()
        self.fetching: list[tuple[float, Job]] = []  # begun with a stretch: (when it is done, job)
        self.num_fetching = 0
        self.fetched: deque[Job] = deque()
        # The gaps between tokens of answers: when each stretch began, a gap's seconds, the gaps.
        self.gaps = (array("d"), array("d"), array("d"))
        self.decoding: list[tuple[int, int, Job]] = []  # heap of (last step, index, job)
        self.due = 0.0
        self.version = 0  # of `due`
        self.told = Told()  # by its metrics
        self._block_tokens = block_tokens
        self._context = 0  # tokens that a step's answers look at
        self._step = 0  # steps done
        self._start = 0.0  # of the stretch that runs
        self._num_steps = 0  # of it; 0: idle
        self._step_seconds = 0.0
        self._pure = False  # it only decodes
        self._random = Random(seed)
        self._unadmitted = 0  # who waited when the stretch began, and still does

    def slow_down(self, factor: float) -> None:
        """Take so many times as long, from the next stretch of steps on."""
        self.spec = self.spec.slower(factor)

    @property
    def num_running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def is_busy(self) -> bool:
        return self._num_steps > 0

    def fits(self, request: SimRequest) -> bool:
        """Return whether a request could ever be admitted."""
        return len(request.blocks) + self._extra(request) <= self.cache.capacity

    def _extra(self, request: SimRequest, leg: Leg = Leg.WHOLE) -> int:
        answer = 0 if leg is Leg.PREFILL else request.output_tokens - 1
        total = request.prompt_tokens + answer
        return -(-total // self._block_tokens) - len(request.blocks)

    def add(self, job: Job, now: float) -> bool:
        """Let a request wait from now on. Return whether `due` has changed."""
        self.waiting.append(job)
        return self._wake(now)

    def add_fetched(self, job: Job, now: float) -> bool:
        """Go on with a decode leg that has its blocks. Return whether `due` has changed."""
        self.num_fetching -= 1
        self.fetched.append(job)
        return self._wake(now)

    def free(self, job: Job) -> None:
        """Let go of the blocks of a prefill leg that has ended."""
        self.cache.release(job.request.blocks, job.extra)

    def _release(self, ended: Sequence[Job]) -> None:
        """Blocks of a prefill leg stay until they have been fetched."""
        for job in ended:
            if job.leg is not Leg.PREFILL:
                self.cache.release(job.request.blocks, job.extra, job.request.answer_blocks)

    def _wake(self, now: float) -> bool:
        if not self._num_steps:
            return self.plan(now)
        if not self._pure:
            return False
        done = int((now - self._start) / self._step_seconds) + 1
        if done >= self._num_steps:
            return False
        self._num_steps = done
        self.due = self._start + done * self._step_seconds
        self.version += 1
        return True

    def plan(self, now: float) -> bool:
        """Begin the next stretch of steps. Return False if there is nothing to do."""
        spec, prefilling, decoding = self.spec, self.prefilling, self.decoding
        num_decoding = len(decoding)
        prompts = 0.0  # seconds
        if prefilling or self.waiting or self.fetched:
            budget = spec.max_batched_tokens - num_decoding
            for job in prefilling:
                chunk = min(job.left, budget)
                prompts += self._chunk(job, chunk)
                budget -= chunk
            if budget > 0:
                prompts += self._admit(budget, now)
        self._unadmitted = len(self.waiting)
        if not (prompts or num_decoding):
            self._num_steps = 0
            return False
        seconds = spec.step_seconds + num_decoding * spec.decode_seconds + prompts
        seconds += self._context * spec.context_seconds
        if spec.scatter:
            seconds *= self._scattered()
        self.version += 1
        self._start = now
        self._pure = not prompts
        self._num_steps = decoding[0][0] - self._step if self._pure else 1
        self._step_seconds = seconds
        self.due = now + self._num_steps * seconds
        return True

    def _scattered(self) -> float:
        """How many times as long as usual something takes."""
        scatter = self.spec.scatter
        return self._random.lognormvariate(-(scatter**2) / 2, scatter)

    def _chunk(self, job: Job, tokens: int) -> float:
        """The seconds that the next `tokens` of a prompt take; they are done with the step."""
        first = job.request.prompt_tokens - job.left
        job.left -= tokens
        return self.spec.prompt_seconds(first, first + tokens)

    def _admit(self, budget: int, now: float) -> float:
        """The seconds that the step spends on prompts that wait now."""
        waiting, prefilling = self.waiting, self.prefilling
        room = self.spec.max_num_seqs - self.num_running
        seconds = 0.0
        while self.fetched and budget and room:
            job = self.fetched.popleft()
            prefilling.append(job)
            seconds += self._chunk(job, 1)
            budget -= 1
            room -= 1
        while waiting and budget and room:
            admitted = self._admitted()
            if admitted is None:
                break
            if admitted.leg is Leg.DECODE:
                self._fetch(admitted, now)
                continue
            prefilling.append(admitted)
            chunk = min(admitted.left, budget)
            seconds += self._chunk(admitted, chunk)
            budget -= chunk
            room -= 1
        return seconds

    def _admitted(self) -> Job | None:
        """The first that waits, with its blocks; None if there is no room for them."""
        job, size = self.waiting[0], self._block_tokens
        request = job.request
        most = min((request.prompt_tokens - 1) // size, len(request.blocks))
        extra = self._extra(request, job.leg)
        reused = self.cache.admit(request.blocks, most, extra)
        if reused is None:
            return None
        self.waiting.popleft()
        job.cached_blocks, job.extra = reused, extra
        job.left = request.prompt_tokens - reused * size
        return job

    def _fetch(self, job: Job, now: float) -> None:
        spec = self.spec
        took = spec.transfer_seconds + job.left * spec.transfer_token_seconds
        job.left = 1
        self.fetching.append((now + took, job))
        self.num_fetching += 1

    def end(self) -> tuple[list[Job], list[Job]]:
        """End the stretch that ran. Return the jobs whose first token came out, and those that have
        ended; a job may be in both."""
        self._step += self._num_steps
        if self.decoding:
            values = (self._start, self._step_seconds, float(len(self.decoding) * self._num_steps))
            for column, value in zip(self.gaps, values, strict=True):
                column.append(value)
        step, decoding, prefilling = self._step, self.decoding, self.prefilling
        first: list[Job] = []
        ended: list[Job] = []
        while decoding and decoding[0][0] <= step:
            job = heappop(decoding)[2]
            self._context -= _context(job.request)
            ended.append(job)
        if not self._pure:
            while prefilling and not prefilling[0].left:
                job = prefilling.popleft()
                first.append(job)
                output = 1 if job.leg is Leg.PREFILL else job.request.output_tokens
                if output > 1:
                    heappush(decoding, (step + output - 1, job.index, job))
                    self._context += _context(job.request)
                else:
                    ended.append(job)
        self._release(ended)
        self._num_steps = 0
        waiting = self._unadmitted + self.num_fetching + len(self.fetched)
        awaiting_first_token = len(prefilling) + waiting
        self.told = Told(self.num_running, waiting, awaiting_first_token, self.cache.usage)
        return first, ended

    def step_remainder(self, now: float) -> float:
        """Return the seconds until the step that runs is over."""
        if not self._num_steps:
            return 0.0
        seconds = self._step_seconds
        return seconds - (now - self._start) % seconds if self._pure else self.due - now

    def steps_until_room(self, request: SimRequest) -> int:
        """Return the steps until so many of the requests that decode now have ended that all who
        wait, and `request` after them, have their blocks and a place in the batch."""
        cache = self.cache
        places = self.num_running + len(self.waiting) + 1 - self.spec.max_num_seqs
        blocks = self._new_blocks(request) - cache.num_free
        for job in self.waiting:
            blocks += self._new_blocks(job.request)
        if places <= 0 and blocks <= 0:
            return 0
        last = self._step
        for step, _, job in sorted(self.decoding, key=lambda item: item[0]):
            if places <= 0 and blocks <= 0:
                break
            last = step
            places -= 1
            prompt = job.request.blocks
            blocks -= len(prompt) - cache.used(prompt, least=2) + job.extra
        return max(0, last - self._step)

    def _new_blocks(self, request: SimRequest) -> int:
        """The number of blocks that the request would take into use."""
        blocks = request.blocks
        return len(blocks) - self.cache.used(blocks) + self._extra(request)


def _context(request: SimRequest) -> int:
    """The tokens that a token of the answer looks at, on average."""
    return request.prompt_tokens + request.output_tokens // 2


class BesideEngine(Engine):
    """An engine whose prompts hold up no answer: they are computed one after the other, in the
    order they came, beside the answers, as `inferway simulate --prefill-in-turn` does it. An
    answer's gaps are set by how many are written when its first token comes. `plan` says when the
    next token comes that begins or ends an answer, and `end` lets out what is due then."""

    def __init__(
        self, number: int, spec: EngineSpec, block_tokens: int, seed: float = 0.0,
        cache: BlockCache | None = None,
    ) -> None:  # fmt: skip
        super().__init__(number, spec, block_tokens, seed, cache)
        # heap of (when, index, whether it is the first token or the last, job)
        self._pending: list[tuple[float, int, bool, Job]] = []
        self._computed = 0.0  # when the prompt that was admitted last is
        self._is_told = False  # who waits for `due` knows it

    def add(self, job: Job, now: float) -> bool:
        """Let a request wait from now on, or begin. Return whether `due` has changed."""
        self.waiting.append(job)
        return self.plan(now)

    def add_fetched(self, job: Job, now: float) -> bool:
        """Go on with a decode leg that has its blocks. Return whether `due` has changed."""
        self.num_fetching -= 1
        self._begin(job, now)
        return self._set_due()

    @property
    def is_busy(self) -> bool:
        return bool(self._pending)

    def plan(self, now: float) -> bool:
        """Admit the waiting requests that fit. Return whether `due` has changed."""
        while self.waiting and self.num_running < self.spec.max_num_seqs:
            job = self._admitted()
            if job is None:
                break
            if job.leg is Leg.DECODE:
                self._fetch(job, now)
            else:
                self._begin(job, now)
        self._tell()
        return self._set_due()

    def _begin(self, job: Job, now: float) -> None:
        first = job.request.prompt_tokens - job.left
        seconds = self.spec.prompt_seconds(first, job.request.prompt_tokens) * self._slowed()
        self.prefilling.append(job)
        self._computed = max(now, self._computed) + seconds
        heappush(self._pending, (self._computed, job.index, True, job))

    def _slowed(self) -> float:
        """How many times as long something takes that begins now."""
        return self._scattered() if self.spec.scatter else 1.0

    def _set_due(self) -> bool:
        """Return whether there is anything to come that nobody has been told of."""
        pending = self._pending
        if not pending or (pending[0][0] == self.due and self._is_told):
            return False
        self.due = pending[0][0]
        self.version += 1
        self._is_told = True
        return True

    def end(self) -> tuple[list[Job], list[Job]]:
        """Let out what is due. Return the jobs whose first token came out, and those that have
        ended; a job may be in both."""
        first: list[Job] = []
        ended: list[Job] = []
        pending = self._pending
        self._is_told = False
        while pending and pending[0][0] <= self.due:
            now, _, is_first, job = heappop(pending)
            if not is_first:
                self.decoding.remove((0, job.index, job))
                ended.append(job)
                continue
            self.prefilling.remove(job)
            first.append(job)
            output = 1 if job.leg is Leg.PREFILL else job.request.output_tokens
            if output > 1:
                self.decoding.append((0, job.index, job))
                self._write(job, now, output - 1)
            else:
                ended.append(job)
        self._release(ended)
        self._tell()
        return first, ended

    def _write(self, job: Job, now: float, gaps: int) -> None:
        spec = self.spec
        seconds = spec.step_seconds + len(self.decoding) * (
            spec.decode_seconds + _context(job.request) * spec.context_seconds
        )
        seconds *= self._slowed()
        for column, value in zip(self.gaps, (now, seconds, float(gaps)), strict=True):
            column.append(value)
        heappush(self._pending, (now + gaps * seconds, job.index, False, job))

    def _tell(self) -> None:
        waiting = len(self.waiting) + self.num_fetching
        awaiting = len(self.prefilling) + waiting
        self.told = Told(self.num_running, waiting, awaiting, self.cache.usage)
