"""An answer that passes us as it is, held against its shape when it is over: it is counted, and no
more. What its engine has said of it counts, if it has said so."""

from __future__ import annotations

from inferway.gate.shape import Shape
from inferway.model import Headers
from inferway_structured.report import VALID_HEADER
from inferway_structured.texts import Said, StreamTexts, said_in


class PassingAnswer:
    __slots__ = ("_held", "_shape", "_size", "_texts")

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._texts: StreamTexts | None = None
        self._held: list[bytes] | None = None  # of a whole answer
        self._size = 0

    @property
    def is_read(self) -> bool:
        """Whether its bytes are wanted: known from `start` on."""
        return self._texts is not None or self._held is not None

    def start(self, status: int, headers: Headers) -> None:
        """Names in lower case."""
        told = dict(headers)
        valid, kind = told.get(VALID_HEADER), told.get(b"content-type", b"")
        if valid is not None:
            self._shape.was_judged(valid)
        elif status == 200 and kind.startswith(b"text/event-stream"):
            self._texts = self._shape.texts()
        elif status == 200 and kind.startswith(b"application/json"):
            self._held = []

    def feed(self, chunk: bytes) -> None:
        """The next piece."""
        if self._texts is not None:
            self._texts.feed(chunk)
        elif self._held is not None:
            self._held.append(chunk)
            self._size += len(chunk)
            if self._size > self._shape.answer_bytes:
                self._held = None
                self._shape.was_judged(None)

    def end(self) -> None:
        """It has come to its end. Only the first call counts."""
        if not self.is_read:
            return
        said = self._said()
        self._texts = self._held = None
        self._shape.spawn(self._shape.judge(said))

    def _said(self) -> list[Said] | None:
        if self._texts is not None:
            return self._texts.said()
        return said_in(b"".join(self._held or ()))
