"""A server-sent stream, in pieces as they come -> in whole events, so that an event of ours can
follow at any moment. Not a byte is changed.

Comments are no answer: vLLM may send them before it has computed anything. As long as it matters
who answers, they wait for the first event.
"""

from __future__ import annotations

from inferway.model import Headers

MAX_HELD_BYTES = 64 * 1024  # an event, or comments, that are longer pass as they come
_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")  # a stream's end, as OpenAI has it


class WholeEvents:
    """One stream's."""

    __slots__ = ("_held", "_passed")

    def __init__(self) -> None:
        self._held = b""  # comments, or the start of an event
        self._passed = b""  # what `whole` gave last

    def whole(self, chunk: bytes, comments_wait: bool) -> bytes:
        """What can be passed on now, maybe nothing."""
        if self._held:
            chunk, self._held = self._held + chunk, b""
        if not chunk.endswith((b"\n\n", b"\r\n\r\n")):
            border = _last_border(chunk)
            if border or len(chunk) <= MAX_HELD_BYTES:
                chunk, self._held = chunk[:border], chunk[border:]
                if not chunk:
                    return b""
        if comments_wait and len(chunk) <= MAX_HELD_BYTES and only_comments(chunk):
            self._held = chunk + self._held
            return b""
        self._passed = chunk
        return chunk

    def rest(self) -> bytes:
        """What is left at the end."""
        held, self._held = self._held, b""
        return held

    @property
    def are_done(self) -> bool:
        """The stream has said that it is whole, and nothing after it."""
        return self._passed.endswith(_DONE)


def is_event_stream(headers: Headers) -> bool:
    """Whether an answer with these headers is one."""
    for name, value in headers:
        if name == b"content-type":
            return value.startswith(b"text/event-stream")
    return False


def only_comments(events: bytes) -> bool:
    """Also where there is nothing at all."""
    return all(not line or line.startswith(b":") for line in events.splitlines())


def _last_border(chunk: bytes) -> int:
    """Where the last whole event ends, 0 if none does."""
    lf, crlf = chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n")
    return max(lf + 2 if lf >= 0 else 0, crlf + 4 if crlf >= 0 else 0)
