"""Server-sent events as bytes: pieces of a stream -> whole events, and the data in them.

Everything that looks into a stream, in the gateway and in the engine's plugin, reads it with these
functions. Not a byte of a stream is changed here. In the text of an answer, the end of a line is
escaped (it is JSON), so that no text can look like a line of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

MAX_HELD_BYTES = 64 * 1024  # an event, or comments, that are longer pass as they come
_BORDERS = (b"\n\n", b"\r\n\r\n")  # the end of an event
_BEGUN_BORDER = 3  # bytes that may be the beginning of one

_DATA = b"data:"
_DONE = b"data: [DONE]"  # a stream's end, as OpenAI has it
_STOP = b'data: {"type":"message_stop"}'  # as Anthropic has it
_WHOLE_DONE = tuple(end + lines for end in (_DONE, _STOP) for lines in (b"\n\n", b"\r\n\r\n"))


class WholeEvents:
    """The pieces of one stream, put together to whole events, so that an event of ours can follow
    at any moment. Comments are no answer: vLLM may send them before it has computed anything. As
    long as it matters who answers, they wait for the first event. Each byte is looked at once,
    however small the pieces are."""

    __slots__ = ("_comments", "_held", "_most_held", "_passed")

    def __init__(self, most_held: int = MAX_HELD_BYTES) -> None:
        """An event that is longer than `most_held` bytes passes in pieces."""
        self._most_held = most_held
        self._held = bytearray()  # comments, and the start of an event
        self._comments = 0  # bytes of it that are whole comments
        self._passed = b""  # what `whole` returned last

    def whole(self, chunk: bytes, comments_wait: bool = False) -> bytes:
        """Return the events that are whole with the next piece of the stream. May be empty."""
        held = self._held
        if not held and not comments_wait and chunk.endswith(_BORDERS):
            self._passed = chunk
            return chunk
        start = max(len(held) - _BEGUN_BORDER, self._comments)
        held += chunk
        border = _last_border(held, start)
        if not border and len(held) <= self._most_held:
            return b""
        if border and comments_wait and self._are_comments(border):
            self._comments = border
            return b""
        self._passed = passed = self.rest() if not border else bytes(held[:border])
        del held[:border]
        self._comments = 0
        return passed

    def _are_comments(self, border: int) -> bool:
        """Return whether there is nothing else before it, and not too much."""
        most = min(self._most_held, MAX_HELD_BYTES)
        return border <= most and only_comments(bytes(self._held[self._comments : border]))

    def rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        held = bytes(self._held)
        self._held.clear()
        self._comments = 0
        return held

    @property
    def are_done(self) -> bool:
        """True if the stream has said that it is whole, and nothing after that."""
        return self._passed.endswith(_WHOLE_DONE)


def is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether an answer with these headers is a stream of events. Names are in lower
    case."""
    for name, value in headers:
        if name == b"content-type":
            return value.startswith(b"text/event-stream")
    return False


def content_coding(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the coding of an answer with these headers, as gzip; empty if its bytes are as they
    were written. Names are in lower case."""
    for name, value in headers:
        if name == b"content-encoding" and value.lower() != b"identity":
            return value
    return b""


def only_comments(events: bytes) -> bool:
    """Return whether there is nothing but comments in whole events, or nothing at all."""
    return all(not line or line.startswith(b":") for line in events.splitlines())


def done_at(events: bytes) -> int:
    """Return where the event [DONE] begins among whole events; -1 if it is not among them."""
    return _last_line_at(events, _DONE)


def num_events(events: bytes) -> int:
    """Return how many of these whole events have data."""
    return events.count(b"\n" + _DATA) + events.startswith(_DATA)


def data_in(events: bytes) -> Iterator[bytes]:
    """Yield the data of each of these whole events, in order."""
    for line in events.splitlines():
        if line.startswith(_DATA):
            yield line[len(_DATA) :].strip()


def last_data(end: bytes, most: int) -> Iterator[bytes]:
    """Yield the data of the last `most` events in the end of a stream, the newest first, and then
    the first line of that end: it may be the rest of an event whose start is missing."""
    for line in reversed(end.rsplit(b"\n" + _DATA, most)):
        yield line.partition(b"\n")[0].removeprefix(_DATA)


def with_data(events: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """Return whole events with the data of each as `edit` returns it."""
    lines = events.splitlines(keepends=True)
    return b"".join(
        [_DATA + edit(line[len(_DATA) :]) if line.startswith(_DATA) else line for line in lines]
    )


def comment_in(events: bytes, name: bytes) -> bytes:
    """Return what the comment `: name ...` says among whole events; empty if there is none."""
    begin = b": %b " % name
    at = _last_line_at(events, begin)
    return events[at + len(begin) :].partition(b"\n")[0].strip() if at >= 0 else b""


def _last_line_at(events: bytes, begin: bytes) -> int:
    """Return where the last line with this beginning is, -1 if there is none."""
    at = events.rfind(b"\n" + begin)
    if at >= 0:
        return at + 1
    return 0 if events.startswith(begin) else -1


def _last_border(events: bytearray, start: int) -> int:
    """Return where the last whole event ends whose end lies behind `start`, 0 if none does."""
    lf, crlf = events.rfind(b"\n\n", start), events.rfind(b"\r\n\r\n", start)
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
