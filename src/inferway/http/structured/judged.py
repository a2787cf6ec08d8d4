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

from inferway.errors import InferwayError, crash_report, panic_as_error
from inferway.http.ends import BodySource
from inferway.http.responder import Responder
from inferway.model import Headers
from inferway.routing.structured_gate.shape import Shape
from inferway_structured.report import UNENFORCED_HEADER, VALID_HEADER, validity

log = logging.getLogger("inferway.gate")


class JudgedAnswer:
    """Stands before a Responder, as one."""

    __slots__ = ("_aborted", "_judge", "_responder", "_shape", "_start")

    def __init__(self, responder: Responder, shape: Shape) -> None:
        self._responder = responder
        self._shape = shape
        self._judge = shape.answer_judge(reports=shape.reports_streams)
        self._start: tuple[int, Headers, int | None] | None = None  # held back
        self._aborted = False

    @property
    def started(self) -> bool:
        return self._start is not None or self._responder.started

    @property
    def ended(self) -> bool:
        return self._responder.ended

    @property
    def can_say_more(self) -> bool:
        return self._start is None and self._responder.can_say_more

    @property
    def is_kept_alive(self) -> bool:
        return self._responder.is_kept_alive

    def attach(self, source: BodySource) -> None:
        self._responder.attach(source)

    def start(self, status: int, headers: Headers, length: int | None = None) -> None:
        headers = _once(headers, UNENFORCED_HEADER)
        self._judge.start(status, headers, length)
        if self._judge.holds_all:
            self._start = (status, headers, length)
        else:
            self._responder.start(status, headers, length)

    def flush(self) -> None:
        if self._start is None:
            self._responder.flush()

    def write(self, chunk: bytes) -> None:
        if passed := self._fed(chunk):
            self._responder.write(passed)

    def end(self, chunk: bytes = b"") -> None:
        passed = self._fed(chunk) if chunk else b""
        if self._judge.holds_all or (self._judge.is_read and self._shape.reports_streams):
            if passed:
                self._responder.write(passed)
            self._shape.spawn(self._end_judged())
        else:
            self._shape.judge_later(self._judge)
            self._responder.end(passed)

    def _fed(self, chunk: bytes) -> bytes:
        passed = self._judge.feed(chunk)
        if self._start is not None and not self._judge.holds_all:  # it is too long
            start, self._start = self._start, None
            self._responder.start(*start)
        return passed

    def send_error(self, error: InferwayError) -> None:
        self._responder.send_error(error)

    def abort(self) -> None:
        self._aborted = True
        self._start = None
        self._responder.abort()

    async def _end_judged(self) -> None:
        valid = await self._valid()
        if self._aborted or self._responder.ended:
            return
        word = None if valid is None else validity(valid)
        rest = self._judge.rest(word)
        if self._start is not None:
            (status, headers, _), self._start = self._start, None
            if word is not None:
                headers = [*headers, (VALID_HEADER, word)]
            self._responder.start(status, headers, len(rest))
        self._responder.end(rest)

    async def _valid(self) -> bool | None:
        """A fault of ours must not cost the answer."""
        try:
            return await self._shape.judge(self._judge.said())
        except BaseException as e:
            log.error(
                "an answer could not be judged by the shape that was asked for: %s",
                crash_report(panic_as_error(e)),
            )
            return None


def _once(headers: Headers, name: bytes) -> Headers:
    """The engine's own comes first."""
    first = next((header for header in headers if header[0] == name), None)
    return [header for header in headers if header[0] != name or header is first]
