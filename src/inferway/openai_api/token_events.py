"""Server-sent events of an answer -> whether they carry tokens.

dialect                      events without tokens
chats, completions           the assistant's role alone, the usage alone, an error, [DONE]
/v1/responses, /v1/messages  all whose name does not end in `delta`; `message_delta`: the usage;
                             a thought's signature

In generated text quotes are escaped, so that nothing in it looks like a member.
"""

from __future__ import annotations

from inferway_structured.sse import num_events

_SIGNATURE = b'"type":"signature_delta"'
_CHOICES = b'"choices":['
# Those without tokens begin so.
_EMPTY = (
    _CHOICES + b"]",
    *(
        _CHOICES + b'{"index":%d,"delta":{"role":"assistant","content":""' % index
        for index in range(8)
    ),
)
_NO_CHOICES = (b"data: [DONE]", b'data: {"error"', b":")


def bears_tokens(events: bytes) -> bool:
    """Return whether at least one of these whole events carries tokens."""
    at = events.find(_CHOICES)
    if at < 0:
        if events.startswith(b"event:"):
            return any(map(_is_delta, events.split(b"\n\n")))
        return not events.startswith(_NO_CHOICES) and num_events(events) > 0
    while at >= 0:
        if not events.startswith(_EMPTY, at):
            return True
        at = events.find(_CHOICES, at + 1)
    return False


def _is_delta(event: bytes) -> bool:
    name = event.partition(b"\n")[0].rstrip()
    return (
        name.endswith(b"delta") and not name.endswith(b"message_delta") and _SIGNATURE not in event
    )
