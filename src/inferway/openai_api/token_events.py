"""Server-sent events of an answer -> whether they carry tokens.

dialect                      events without tokens
chats, completions           the assistant's role alone, the usage alone, an error, [DONE]
/v1/responses, /v1/messages  all whose name does not end in `delta`; `message_delta`: the usage

Generated text has its quotes escaped, so that nothing in it looks like one of these.
"""

from __future__ import annotations

_DONE = b"data: [DONE]"
_WITHOUT = (b'"choices":[]', b'"role":"assistant","content":""', b'data: {"error"', _DONE)


def bears_tokens(events: bytes) -> bool:
    """Whether at least one of these whole events does."""
    if events.startswith(b"event:"):
        return any(map(_is_delta, events.split(b"\n\n")))
    if events.startswith(_DONE):
        return False
    without = sum([events.count(mark) for mark in _WITHOUT])
    return num_events(events) > without


def num_events(events: bytes) -> int:
    """How many of them have data."""
    return events.count(b"data:")


def _is_delta(event: bytes) -> bool:
    name = event.partition(b"\n")[0].rstrip()
    return name.endswith(b"delta") and not name.endswith(b"message_delta")
