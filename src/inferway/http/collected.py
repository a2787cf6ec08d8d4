"""An engine's answer that is for us, not for the client: of a prefill engine, of a server that
knows what prefill engines are called, or with status 503, which is read before it is judged: the
engine may be unwell, or be suspended (`routing.limits.suspension`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from inferway.errors import OurFaultError, UpstreamError, UpstreamTimeoutError
from inferway.model import Headers
from inferway.routing.record import LegOutcome
from inferway.upstream.exchange import Sink, UpstreamRequest
from inferway.upstream.pool import Pool

MAX_ANSWER_BYTES = 8 << 20  # of a prefill engine: the block ids of a million tokens are 0.5 MB


class CollectedAnswer:
    """Sink of an answer that is collected, within limits of size and of time; `done` is called once
    with what has come, unless it is dropped before. If `done` fails, it is called once more, and
    hears of a fault of ours."""

    __slots__ = ("_done", "_exchange", "_pieces", "_pool", "_size", "_timer",
                 "age", "error", "hosts", "outcome", "status")  # fmt: skip

    def __init__(self, pool: Pool, done: Callable[[CollectedAnswer], None]) -> None:
        self._pool = pool
        self._done: Callable[[CollectedAnswer], None] | None = done  # None: it is over
        self._exchange: UpstreamRequest | None = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None
        self.status = 0  # 0: no head has come
        self.age = 0.0  # seconds: the answer did not begin longer before its head was read
        self.hosts: Sequence[str] = ()  # where it came from
        self.outcome = ""  # why it is not whole; empty if it is
        self.error: UpstreamError | None = None

    @property
    def body(self) -> bytes:
        """The answer's body, as far as it has come."""
        return b"".join(self._pieces)

    def send(self, url: str, method: str, target: bytes, lines: bytes, body: bytes) -> None:
        """Send the request that is answered."""
        pool = self._pool
        self._timer = pool.loop.call_later(pool.timeouts.first_byte, self._too_late)
        self._exchange = pool.send(url, method, target, lines, body, self)

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        del headers
        self.status = status
        self.age = self._pool.unread
        assert self._exchange is not None
        self.hosts = self._exchange.hosts
        if length is not None and length > MAX_ANSWER_BYTES:
            self._stop(LegOutcome.TOO_LARGE)

    def on_chunk(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_ANSWER_BYTES:
            self._stop(LegOutcome.TOO_LARGE)

    def on_end(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._over()

    def on_error(self, error: UpstreamError) -> None:
        self.error = error
        self.outcome = (
            LegOutcome.TIMED_OUT if isinstance(error, UpstreamTimeoutError) else LegOutcome.FAILED
        )
        self._over()

    def drop(self) -> None:
        """Let it go: `done` is not called."""
        self._done = None
        self._stop("")

    def _too_late(self) -> None:
        seconds = self._pool.timeouts.first_byte
        self.error = UpstreamTimeoutError(f"no whole answer came within {seconds:g} s")
        self._stop(LegOutcome.TIMED_OUT)

    def _stop(self, outcome: str) -> None:
        self.outcome = outcome
        if self._exchange is not None:
            self._exchange.abort()
        self._over()

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done, self._done = self._done, None
        if done is None:
            return
        try:
            done(self)
        except Exception as error:  # also from the timer, where nobody would hear of it
            if isinstance(self.error, OurFaultError):
                raise
            assert self._exchange is not None
            self._done = done
            self._exchange.crashed(error)


MAX_REFUSAL_BYTES = 64 * 1024  # of a body that is judged; a longer one is no refusal


class Judge(Sink, Protocol):
    """Takes the answer after all, unless the body says that the engine is suspended."""

    def on_refusal(self, body: bytes, *, is_whole: bool) -> None:
        """Take the body, as far as it has come. If it is not whole, the rest comes in pieces."""


class Refusal:
    """Sink of the body of such an answer, whose head has come."""

    __slots__ = ("_judge", "_pieces", "_size")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._pieces: list[bytes] = []
        self._size = 0

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:  # noqa: ARG002
        raise AssertionError("its head has come")

    def on_chunk(self, chunk: bytes) -> None:
        self._pieces.append(chunk)
        self._size += len(chunk)
        if self._size > MAX_REFUSAL_BYTES:
            self._judge.on_refusal(b"".join(self._pieces), is_whole=False)

    def on_end(self, chunk: bytes) -> None:
        self._judge.on_refusal(b"".join([*self._pieces, chunk]), is_whole=True)

    def on_error(self, error: UpstreamError) -> None:
        self._judge.on_error(error)
