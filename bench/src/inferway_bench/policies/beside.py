"""An engine whose prompts hold up no answer: they are computed one after the other, in the order
they came, beside the answers, as `inferway simulate --prefill-in-turn` does it. An answer's gaps
are set by how many are written when its first token comes."""

from __future__ import annotations

from heapq import heappop, heappush

from inferway_bench.policies.cache import BlockCache
from inferway_bench.policies.engine import Engine, EngineSpec, Job, Leg, Told


class BesideEngine(Engine):
    """One such engine: `plan` says when the next token comes that begins or ends an answer, and
    `end` lets out what is due then."""

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
        """Admit who waits and fits. Return whether `due` has changed."""
        while self.waiting and self.num_running < self.spec.max_num_seqs:
            job = self.waiting[0]
            request = job.request
            most = min((request.prompt_tokens - 1) // self._block_tokens, len(request.blocks))
            extra = self._extra(request, job.leg)
            reused = self.cache.admit(request.blocks, most, extra)
            if reused is None:
                break
            self.waiting.popleft()
            job.cached_blocks, job.extra = reused, extra
            job.left = request.prompt_tokens - reused * self._block_tokens
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
        spec = self.spec
        is_beside = self.neighbours and any(other.is_busy for other in self.neighbours)
        times = spec.beside if is_beside else 1.0
        if spec.scatter:
            times *= self._random.lognormvariate(-(spec.scatter**2) / 2, spec.scatter)
        return times

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
        for job in ended:
            if job.leg is not Leg.PREFILL:
                self.cache.release(job.request.blocks, job.extra, job.request.answer_blocks)
        self._tell()
        return first, ended

    def _write(self, job: Job, now: float, gaps: int) -> None:
        spec, request = self.spec, job.request
        context = request.prompt_tokens + request.output_tokens // 2
        seconds = spec.step_seconds + len(self.decoding) * (
            spec.decode_seconds + context * spec.context_seconds
        )
        seconds *= self._slowed()
        for column, value in zip(self.gaps, (now, seconds, float(gaps)), strict=True):
            column.append(value)
        heappush(self._pending, (now + gaps * seconds, job.index, False, job))

    def _tell(self) -> None:
        waiting = len(self.waiting) + self.num_fetching
        awaiting = len(self.prefilling) + waiting
        self.told = Told(self.num_running, waiting, awaiting, self.cache.usage)
