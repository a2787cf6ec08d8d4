"""One answer as it passes -> what it says, and what of it must wait until that has been judged.

answer                          what is held back                what it is judged by
whole (JSON), not too long      all of it, and its head          its texts and calls
whole, too long                 nothing                          cannot be told
streamed, and to be reported    [DONE] and what follows          its texts and calls
streamed                        nothing                          its texts and calls
judged by its engine            nothing                          its engine's word
compressed                      nothing                          cannot be told
an error, or anything else      nothing                          not at all

The gateway, the endpoint picker and the engine's plugin judge answers by it. Its bytes are never
changed: a header beside a whole answer, or a comment before the end of a stream, tells the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferway_structured.report import VALID_HEADER
from inferway_structured.sse import comment_in, content_coding, done_at, is_event_stream
from inferway_structured.texts import AnswerText, StreamTexts, said_in

_VALID = {b"true": True, b"false": False}


class AnswerJudge:
    """Reads one answer, without I/O: its caller sends what it returns, and has what was said judged
    (`verdicts.Verdicts.is_valid`)."""

    __slots__ = (
        "_count", "_held", "_max_bytes", "_max_chars", "_reports", "_size", "_texts", "holds_all",
        "is_done",
    )  # fmt: skip

    def __init__(
        self,
        max_bytes: int,
        max_chars: int,
        *,
        count: Callable[[bool | None], None],
        reports: bool = False,
    ) -> None:
        """A whole answer of more than `max_bytes`, or a stream with a text of more than `max_chars`
        characters, cannot be judged. `count` is called with what is known of the answer without a
        judgement. `reports`: a stream is to end with a word on it."""
        self._max_bytes = max_bytes
        self._max_chars = max_chars
        self._count = count
        self._reports = reports
        self._texts: StreamTexts | None = None
        self._held: list[bytes] = []
        self._size = 0
        self.holds_all = False  # a whole answer, and its head has to wait with it
        self.is_done = False  # a stream has said [DONE]

    @property
    def is_read(self) -> bool:
        """True if the bytes of the answer are wanted; known once it has started."""
        return self.holds_all or self._texts is not None

    def start(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], length: int | None = None
    ) -> None:
        """Take the head of the answer. Names of headers are in lower case; `length` is that of the
        body, None if it is not known."""
        values = dict(headers)
        if told := values.get(VALID_HEADER):
            self._count(_VALID.get(told))
        elif status == 200 and content_coding(headers):
            self._count(None)
        elif status == 200 and is_event_stream(headers):
            self._texts = StreamTexts(self._max_chars)
        elif status == 200 and values.get(b"content-type", b"").startswith(b"application/json"):
            self.holds_all = length is None or length <= self._max_bytes
            if not self.holds_all:
                self._count(None)

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be passed on with the next piece of the body. May be empty."""
        if self.holds_all:
            return self._hold(chunk)
        if self._texts is None:
            return chunk
        events = self._texts.feed(chunk)
        if told := comment_in(events, VALID_HEADER):
            self._count(_VALID.get(told))
            rest, self._texts = self._texts.rest(), None
            return events + rest if self._reports else chunk
        at = -1 if self.is_done else done_at(events)
        self.is_done = self.is_done or at >= 0
        if not self._reports:
            return chunk
        if not self.is_done:
            return events
        at = max(at, 0)
        self._held.append(events[at:])
        return events[:at]

    def said(self) -> list[AnswerText] | None:
        """Return what the answer, which has come to its end, has said; None if that cannot be
        known."""
        return self._texts.said() if self._texts is not None else said_in(b"".join(self._held))

    def rest(self, word: bytes | None) -> bytes:
        """Return what was held back, once the answer has been judged: before the end of a stream
        that is to be reported comes `word` in a comment, unless that is None."""
        held, self._held = b"".join(self._held), []
        texts, self._texts, self.holds_all = self._texts, None, False
        if texts is None or not self._reports:
            return held
        comment = b": %b %b\n\n" % (VALID_HEADER, word) if word is not None else b""
        return comment + held + texts.rest()

    def _hold(self, chunk: bytes) -> bytes:
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size <= self._max_bytes:
            return b""
        self._count(None)
        return self.rest(None)
