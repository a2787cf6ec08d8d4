"""Between the engine's answer and the client: whether the answer has the shape it was asked for.

answer                   what is done                              what the client sees
whole, not too long      held back until it has been judged        header `x-inferway-valid`
whole, too long          passes                                    no header
streamed, and reported   its end is held back until it is judged   `: x-inferway-valid true` before
                                                                   `data: [DONE]`, or at its end
streamed                 passes; judged when it is over            nothing
an error                 passes                                    nothing

What cannot be told, or not in time, has neither header nor comment. What an engine with our plugin
has said itself is not said twice. The bytes of the answer itself are never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from inferway.errors import InferwayError, crash_report, panic_as_error
from inferway.frontends.http.responder import Responder, Source
from inferway.gate.shape import Shape
from inferway.model import Headers
from inferway_structured.report import UNENFORCED_HEADER, VALID_HEADER, validity
from inferway_structured.sse import comment_in, done_at
from inferway_structured.texts import Said, StreamTexts, said_in

log = logging.getLogger("inferway.gate")

_COMMENT = b": %b " % VALID_HEADER


class JudgedAnswer:
    """Stands before a Responder, as one."""

    __slots__ = (
        "_aborted", "_held", "_over", "_responder", "_shape", "_size", "_start", "_texts", "_told",
    )  # fmt: skip

    def __init__(self, responder: Responder, shape: Shape) -> None:
        self._responder = responder
        self._shape = shape
        self._start: tuple[int, Headers, int | None] | None = None  # held back
        self._held: list[bytes] = []
        self._size = 0
        self._texts: StreamTexts | None = None
        self._over = False  # all of it has come
        self._aborted = False
        self._told = False  # by the engine

    @property
    def engine(self) -> str:
        return self._responder.engine

    @engine.setter
    def engine(self, name: str) -> None:
        self._responder.engine = name

    @property
    def started(self) -> bool:
        return self._start is not None or self._responder.started

    @property
    def ended(self) -> bool:
        return self._responder.ended

    @property
    def can_say_more(self) -> bool:
        return self._start is None and self._responder.can_say_more

    def attach(self, source: Source) -> None:
        self._responder.attach(source)

    def start(self, status: int, headers: Headers, length: int | None = None) -> None:
        headers = _once(headers, UNENFORCED_HEADER)
        kind, valid = _value(headers, b"content-type"), _value(headers, VALID_HEADER)
        if valid:
            self._shape.was_judged(valid)
        elif status == 200 and kind.startswith(b"text/event-stream"):
            self._texts = self._shape.texts()
        elif status == 200 and kind.startswith(b"application/json"):
            if length is None or length <= self._shape.answer_bytes:
                self._start = (status, headers, length)
                return
            self._shape.was_judged(None)
        self._responder.start(status, headers, length)

    def flush(self) -> None:
        if self._start is None:
            self._responder.flush()

    def write(self, chunk: bytes) -> None:
        if self._start is not None:
            self._hold(chunk)
        elif self._texts is not None:
            self._pass(chunk)
        else:
            self._responder.write(chunk)

    def end(self, chunk: bytes = b"") -> None:
        self._over = True
        if self._start is not None:
            self._hold(chunk)
        if self._start is not None:
            self._shape.spawn(self._judge_whole())
        elif self._texts is not None:
            self._end_stream(chunk)
        else:
            self._responder.end(chunk)

    def send_error(self, error: InferwayError) -> None:
        self._responder.send_error(error)

    def abort(self) -> None:
        self._aborted = True
        self._start = None
        self._held.clear()
        self._responder.abort()

    # ------------------------------------------------------------------------- a whole answer

    def _hold(self, chunk: bytes) -> None:
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size > self._shape.answer_bytes:
            assert self._start is not None
            self._shape.was_judged(None)
            start, self._start = self._start, None
            self._responder.start(*start)
            pieces, self._held = self._held, []
            for piece in pieces:
                self._responder.write(piece)
            if self._over:
                self._responder.end()

    async def _judge_whole(self) -> None:
        body = b"".join(self._held)
        valid = await self._valid(said_in(body))
        if self._start is None or self._responder.ended:
            return
        (status, headers, _), self._start = self._start, None
        if valid is not None:
            headers = [*headers, (VALID_HEADER, validity(valid))]
        self._responder.start(status, headers, len(body))
        self._responder.end(body)

    # ------------------------------------------------------------------------------- a stream

    def _pass(self, chunk: bytes) -> None:
        """Whole events, or pieces of one that is very long."""
        assert self._texts is not None
        if self._held:
            self._held.append(chunk)
            return
        self._texts.feed(chunk)
        if (valid := comment_in(chunk, VALID_HEADER)) and not self._told:
            self._told = True
            self._shape.was_judged(valid)
        if self._told or not self._shape.reports_streams:
            self._responder.write(chunk)
            return
        at = done_at(chunk)
        if at < 0:
            self._responder.write(chunk)
            return
        self._responder.write(chunk[:at])
        self._held.append(chunk[at:])

    def _end_stream(self, chunk: bytes) -> None:
        assert self._texts is not None
        if chunk:
            self._pass(chunk)
        if self._told:
            self._responder.end()
        elif self._shape.reports_streams:
            self._shape.spawn(self._judge_stream(self._texts.said()))
        else:
            self._shape.spawn(self._shape.judge(self._texts.said()))
            self._responder.end()

    async def _judge_stream(self, said: Sequence[Said] | None) -> None:
        valid = await self._valid(said)
        if self._aborted or self._responder.ended:
            return
        if valid is not None:
            self._responder.write(_COMMENT + validity(valid) + b"\n\n")
        self._responder.end(b"".join(self._held))

    async def _valid(self, said: Sequence[Said] | None) -> bool | None:
        """A fault of ours must not cost the answer."""
        try:
            return await self._shape.judge(said)
        except BaseException as e:
            log.error(
                "an answer could not be judged by the shape that was asked for: %s",
                crash_report(panic_as_error(e)),
            )
            return None


def _value(headers: Headers, name: bytes) -> bytes:
    return next((value for given, value in headers if given == name), b"")


def _once(headers: Headers, name: bytes) -> Headers:
    """The engine's own comes first."""
    first = next((header for header in headers if header[0] == name), None)
    return [header for header in headers if header[0] != name or header is first]
