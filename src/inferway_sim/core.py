"""The engine's loop: waits until the scheduler has something to do, and hands on what comes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import msgspec

from inferway.errors import RequestError
from inferway_sim.events import Event
from inferway_sim.kv_transfer import CoreDiedError
from inferway_sim.scheduler import Emitted, RunningRequest, Scheduler
from inferway_sim.side_channel import Contents, SideChannel

Clock = Callable[[], float]  # seconds, never back


class Disturbance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A disturbance of an engine's core, for drills: the body of POST /simulate."""

    stalled: bool = False  # it computes nothing, while its API answers
    scaling: bool = False  # it changes its number of ranks, and answers nothing else than that
    slower: Annotated[float, msgspec.Meta(ge=1)] = 1.0  # times as slow as it was configured


class EngineQueueFullError(RequestError):
    """The engine's waiting queue is at its limit."""

    status = 429
    code = "queue_full"


class GenerationError(RequestError):
    """A request ended with an error: its blocks could not be fetched."""

    status = 500
    code = "generation_error"


class EngineDeadError(RequestError):
    """The engine's core has died; nothing will ever be answered."""

    status = 500
    code = "engine_dead"


class EngineCore:
    """Runs one scheduler in real time. `publish` gets each step's events, if there are any;
    `first_token` the seconds from a job's arrival to its first token."""

    def __init__(
        self,
        scheduler: Scheduler,
        publish: Callable[[Sequence[Event]], None],
        first_token: Callable[[float], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._publish = publish
        self._first_token = first_token
        self._clock = clock
        self._changed = asyncio.Event()
        self._outlets: dict[RunningRequest, asyncio.Queue[Emitted | RequestError]] = {}
        self.side_channel: SideChannel | None = None
        self.is_dead = False
        self.is_scaling = False
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._is_stalled = False
        self._unheard: list[RunningRequest] = []  # aborted while the core was stalled
        self._latency = scheduler.latency  # as it was configured

    def disturb(self, disturbance: Disturbance) -> None:
        """Trouble the core like this from now on, whatever troubled it before."""
        self.is_scaling = disturbance.scaling
        self._is_stalled = disturbance.stalled
        (self._goes_on.clear if disturbance.stalled else self._goes_on.set)()
        if not disturbance.stalled:
            self._abort(self._unheard)
            self._unheard = []
        self._scheduler.latency = self._latency.times(disturbance.slower)

    @property
    def is_paused(self) -> bool:
        """True from `pause` on, until `resume`."""
        return self._scheduler.is_paused

    async def pause(self, mode: str) -> None:
        """Compute nothing more, but what runs: "keep" freezes it, "abort" cuts it short, "wait"
        lets it end. Returns when the engine is at rest."""
        self._scheduler.is_paused = True
        if mode == "keep":
            self._goes_on.clear()
            return
        if mode == "abort":
            self._scheduler.cut_short(self.now)
            self.wake()
        while self._scheduler.running:
            await asyncio.sleep(0.001)

    def fall_asleep(self, level: int) -> None:
        """Sleep from now on, which a paused engine does, until `wake_up`."""
        self._scheduler.sleep_level = level

    def wake_up(self) -> None:
        """Sleep no more, and go on."""
        self._scheduler.sleep_level = None
        self.resume()

    def resume(self) -> None:
        """Go on with what waits."""
        self._scheduler.is_paused = False
        self._goes_on.set()
        self.wake()

    @property
    def now(self) -> float:
        return self._clock()

    def wake(self) -> None:
        """Wake the core after a change that the scheduler did not make itself."""
        self._changed.set()

    async def run(self) -> None:
        """Run the engine's steps until the task is cancelled, or an assertion of vLLM's fails."""
        while True:
            await self._wait_until_due()
            await self._goes_on.wait()
            try:
                step = self._scheduler.step(self._clock())
            except CoreDiedError:
                self._die()
                return
            self._publish(step.events)
            for item in step.emitted:
                self._deliver(item)
            for job in step.loads:
                self._load(job)
            for job in step.failed:
                self._outlets[job].put_nowait(GenerationError("Internal server error"))

    @contextmanager
    def submit(self, jobs: Sequence[RunningRequest]) -> Iterator[AsyncIterator[Emitted]]:
        """Run `jobs`; iterate over their tokens as they come. Whatever is unfinished when the
        block is left is aborted, its blocks freed. Raises EngineQueueFullError and
        EngineDeadError."""
        if self.is_dead:
            raise _dead()
        if self._scheduler.is_full:
            for job in jobs:
                self._scheduler.abort(job)
            raise EngineQueueFullError(
                f"max-waiting-queue-length: {self._scheduler.max_waiting} requests wait already; "
                "try again later"
            )
        outlet: asyncio.Queue[Emitted | RequestError] = asyncio.Queue()
        for job in jobs:
            self._outlets[job] = outlet
            self._scheduler.add(job)
            if self.side_channel is not None and job.transfer is not None and job.transfer.fetch:
                self.side_channel.expect(job.transfer.fetch)
        self._changed.set()
        try:
            yield _drain(outlet, len(jobs))
        finally:
            for job in jobs:
                self._outlets.pop(job, None)
            if self._is_stalled:  # as vLLM's core, which reads nothing then
                self._unheard += jobs
            else:
                self._abort(jobs)

    def _abort(self, jobs: Sequence[RunningRequest]) -> None:
        for job in jobs:
            self._publish(self._scheduler.abort(job))
        self._changed.set()

    async def _wait_until_due(self) -> None:
        now = self._clock()
        due = self._scheduler.next_due(now)
        if due is not None and due <= now:
            self._changed.set()
        timer = None
        if due is not None:
            timer = asyncio.get_running_loop().call_later(due - now, self._changed.set)
        try:
            await asyncio.sleep(0)  # others run even if there is always something due
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()

    def _deliver(self, item: Emitted) -> None:
        if item.job.num_emitted == 1:
            self._first_token(self._clock() - item.job.arrived)
        outlet = self._outlets.get(item.job)
        if outlet is not None:
            outlet.put_nowait(item)

    def _load(self, job: RunningRequest) -> None:
        if self.side_channel is None or job.transfer is None or job.transfer.fetch is None:
            return  # its blocks are not fetched

        def then(contents: Contents | None) -> None:
            self._scheduler.loaded(job, contents, self._clock())
            self.wake()

        self.side_channel.fetch(job.transfer.fetch, job.num_missing_blocks, then)

    def _die(self) -> None:
        self.is_dead = True
        for outlet in self._outlets.values():
            outlet.put_nowait(_dead())


def _dead() -> EngineDeadError:
    return EngineDeadError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause."
    )


async def _drain(
    outlet: asyncio.Queue[Emitted | RequestError], num_jobs: int
) -> AsyncIterator[Emitted]:
    while num_jobs:
        item = await outlet.get()
        if isinstance(item, RequestError):
            raise item
        num_jobs -= item.is_last
        yield item
