"""An engine's answer with status 503, which is read before it is judged: the engine may be unwell,
or be suspended (`routing.limits.suspension`)."""

from __future__ import annotations

from typing import Protocol

from inferway.errors import UpstreamError
from inferway.model import Headers
from inferway.upstream.exchange import Sink

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
