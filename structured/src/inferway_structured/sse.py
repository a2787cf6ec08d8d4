"""Server-sent events as bytes: pieces of a stream -> whole events, and the data in them.

Everything that looks into a stream, in the gateway and in the engine's plugin, reads it with these
functions. Not a byte of a stream is changed here. In the text of an answer, the end of a line is
escaped (it is JSON), so that no text can look like a line of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

MAX_HELD_BYTES = 64 * 1024  # an event, or comments, that are longer pass as they come

_DATA = b"data:"
_DONE = b"data: [DONE]"  # a stream's end, as OpenAI has it
_STOP = b'data: {"type":"message_stop"}'  # as Anthropic has it
_WHOLE_DONE = tuple(end + lines for end in (_DONE, _STOP) for lines in (b"\n\n", b"\r\n\r\n"))


class WholeEvents:
    """The pieces of one stream, put together to whole events, so that an event of ours can follow
    at any moment. Comments are no answer: vLLM may send them before it has computed anything. As
    long as it matters who answers, they wait for the first event."""

    __slots__ = ("_held", "_most_held", "_passed")

    def __init__(self, most_held: int = MAX_HELD_BYTES) -> None:
        """An event that is longer than `most_held` bytes passes in pieces."""
        self._most_held = most_held
        self._held = b""  # comments, or the start of an event
        self._passed = b""  # what `whole` returned last

    def whole(self, chunk: bytes, comments_wait: bool = False) -> bytes:
        """Return the events that are whole with the next piece of the stream. May be empty."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            border = _last_border(chunk)
            if border or len(chunk) <= self._most_held:
                chunk, self._held = chunk[:border], chunk[border:]
                if not chunk:
                    return b""
        if comments_wait and len(chunk) <= self._most_held and only_comments(chunk):
            self._held = chunk + self._held
            return b""
        self._passed = chunk
        return chunk

    def rest(self) -> bytes:
        """Return what is left at the end of the stream."""
        held, self._held = self._held, b""
        return held

    @property
    def are_done(self) -> bool:
        """Whether the stream has said that it is whole, and nothing after that."""
        return self._passed.endswith(_WHOLE_DONE)


def is_event_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether an answer with these headers is a stream of events. Names are in lower
    case."""
    for name, value in headers:
        if name == b"content-type":
            return value.startswith(b"text/event-stream")
    return False


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


def _last_border(chunk: bytes) -> int:
    """Return where the last whole event ends, 0 if none does."""
    lf, crlf = chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
