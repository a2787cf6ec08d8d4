"""Sends sessions at their times, or as fast as so many users go, and measures each request.

Nothing waits for a slow answer but the session that it belongs to, and latency counts from the time
at which a request was meant to be sent: a server that stalls is charged with all that it delays
(coordinated omission). `Sample` keeps both clocks.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from inferway_bench.loading.answers import Answer, Sample, read_answer
from inferway_bench.loading.client import Client, Target
from inferway_bench.loading.generated import Conversation, Session

OnSample = Callable[[Sample], None]

STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

_FIRST_CONNECTIONS = 32  # opened before the first request; more when all are in use
_HEAD_START = 0.02  # seconds, so that the first request is not late
_AHEAD = 0.02  # seconds before a session's first turn, at least, its body is written
_EARLY = 0.0005  # seconds: what is sent so early is measured from then on


@dataclass(frozen=True, slots=True)
class Pacing:
    """Open loop: each session's own times. Closed loop: `users` of them, each with one session
    after another. No turn begins `seconds` after the start, or after `requests` turns."""

    users: int | None = None
    seconds: float | None = None
    requests: int | None = None


@dataclass(slots=True)
class Driven:
    """The samples that `drive` has measured, in the order in which they ended."""

    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0  # wall time from the start to the last answer
    cpu_share: float = 0.0  # of a core, by this process: near 1 it measures itself
    is_whole: bool = True  # not stopped before its end


async def drive(
    target: Target,
    sessions: Iterable[Session],
    pacing: Pacing,
    *,
    model: str,
    fields: Mapping[str, Any] = STREAMED,
    on_sample: OnSample | None = None,
    stop: asyncio.Event | None = None,
    reads_late: bool = False,
) -> Driven:
    """Send `sessions`, in the order of their first times, until they or `pacing` end; then wait for
    the last answers, and return what was measured. `fields` are in each body under the turn's own.
    When `stop` is set, the requests that are under way are given up.

    With `reads_late`, answers that no later turn needs are read when all is over, so that reading
    one delays nobody's clock: where tenths of a millisecond matter."""
    client = Client(target)
    await client.open(min(_FIRST_CONNECTIONS, pacing.users or _FIRST_CONNECTIONS))
    defaults = {"model": model, **fields}
    stage = _Stage(client, defaults, pacing, on_sample, reads_late)
    cpu = time.process_time()
    sending = asyncio.ensure_future(stage.run(iter(sessions)))
    stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
    try:
        await asyncio.wait((sending, stopping), return_when=asyncio.FIRST_COMPLETED)
        stage.driven.is_whole = sending.done()
    finally:
        for task in (sending, stopping):
            task.cancel()
        ended = await asyncio.gather(sending, stopping, return_exceptions=True)
        client.close()
    if isinstance(ended[0], Exception):  # a fault of ours: it is no result
        raise ended[0]
    driven = stage.driven
    driven.seconds = max(time.perf_counter() - stage.start, 1e-9)
    driven.cpu_share = (time.process_time() - cpu) / driven.seconds
    stage.read_rest()
    return driven


@contextmanager
def without_collections() -> Iterator[None]:
    """Let no garbage be looked for meanwhile: a collection would be somebody's latency."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@dataclass(slots=True)
class _Stage:
    """One run. Its tasks write `driven`."""

    client: Client
    defaults: Mapping[str, Any]
    pacing: Pacing
    on_sample: OnSample | None
    reads_late: bool
    driven: Driven = field(default_factory=Driven)
    start: float = field(default_factory=lambda: time.perf_counter() + _HEAD_START)
    unread: list[tuple[Answer, Sample]] = field(default_factory=list)
    num_sent: int = 0

    async def run(self, sessions: Iterator[Session]) -> None:
        async with asyncio.TaskGroup() as group:
            if self.pacing.users is not None:
                for _ in range(self.pacing.users):
                    group.create_task(self._user(sessions))
                return
            # What is drawn and written before it is due makes nobody late.
            for session in sessions:
                if not session.at:
                    raise ValueError(f"session {session.number}: an open loop needs its times")
                at = session.at[0]
                if not self._may_send(at):
                    return
                if at - self._now() > 2 * _AHEAD:  # wake once for all that are near
                    await self._sleep_until(at - _AHEAD)
                group.create_task(self._send(session, at))

    async def _user(self, sessions: Iterator[Session]) -> None:
        """One after another, and before each one its first turn's thinking."""
        await self._sleep_until(0.0)
        for session in sessions:
            await self._send(session, None)
            if not self._may_send(self._now()):
                return

    async def _send(self, session: Session, first: float | None) -> None:
        """All turns of a session; one that fails ends it, because what follows would be another
        conversation."""
        conversation = Conversation()
        free = self._now() if first is None else first  # when the answer before was there
        for number, turn in enumerate(session.turns):
            is_planned = first is not None and number < len(session.at)
            intended = session.at[number] if is_planned else free + turn.think
            if not self._may_send(intended):
                return
            self.num_sent += 1
            path, body = conversation.ask(turn, self.defaults)
            await self._sleep_until(intended)
            sample = Sample(
                session=session.number,
                turn=number,
                intended=intended,
                held=max(0.0, free - intended) if number else 0.0,
                late=max(0.0, self._now() - max(intended, free)),
            )
            answer = await self.client.post(path, body)
            is_needed = turn.answer is None and number + 1 < len(session.turns)
            if self.reads_late and not is_needed:
                self.unread.append((answer, sample))
                text, is_whole = "", answer.error is None and answer.status == 200
            else:
                text = self._measured(answer, sample)
                is_whole = sample.ok
            free = self._now()
            if not is_whole:
                return
            conversation.hear(turn, text)

    def read_rest(self) -> None:
        for answer, sample in self.unread:
            self._measured(answer, sample)

    def _measured(self, answer: Answer, sample: Sample) -> str:
        """The answer's text."""
        text = read_answer(answer, sample, self.start)
        self.driven.samples.append(sample)
        if self.on_sample is not None:
            self.on_sample(sample)
        return text

    def _may_send(self, intended: float) -> bool:
        seconds, requests = self.pacing.seconds, self.pacing.requests
        return (seconds is None or intended < seconds) and (
            requests is None or self.num_sent < requests
        )

    def _now(self) -> float:
        return time.perf_counter() - self.start

    async def _sleep_until(self, at: float) -> None:
        """Or up to _EARLY before it: timers count whole milliseconds, and may wake early."""
        while (left := at - self._now()) > _EARLY:
            await asyncio.sleep(left)
