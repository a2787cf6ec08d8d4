"""What the client of a stream of /v1/messages has been sent, and how another engine goes on. Pure.

vLLM tells no ids on this path. So the text that was sent is made tokens again, which must have the
same text. Nothing that is kept back is lost by that: the other engine makes it anew. Only an answer
of one text block can be gone on with: of other blocks the text is not all that was generated.

the rest's event          becomes
message_start             nothing: the client has one
content_block_start       nothing, if it is text and the client's block is open; else the end of
                          that block, and the start of the next
message_delta             the same, with the usage of the whole; the end of an open block before it
all others                the same, with the number of the client's block
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from inferway.openai_api.sent_stream import MOST_BYTES, Cut, SentEvents
from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import data_in

_TOGETHER = 64  # events of which the text is taken
_DELTA = b"event: content_block_delta\n"
_TEXT = re.compile(rb'"type":"text_delta","text":("(?:[^"\\]|\\.)*")')
_ERROR = b"event: error"
_ENDS = (b"event: message_delta", b"event: message_stop")

Json = dict[str, Any]


class SentMessages(SentEvents):
    """Fed with the whole events of one stream, in order."""

    __slots__ = ("_events", "_size", "_texts", "has_block")

    def __init__(self) -> None:
        super().__init__()
        self._events: list[bytes] = []
        self._texts: list[str] = []  # of earlier events
        self._size = 0
        self.has_block = False  # the client has the start of a text block, and not its end

    def feed(self, events: bytes) -> bytes:
        """Return whole events as the client gets them: as they came, up to an error."""
        if self.is_broken:
            return self._withhold(events)
        if events.startswith(_DELTA) and events.count(b"\n") == 3:
            self._events.append(events)
            if len(self._events) >= _TOGETHER:
                self._put_aside()
            return events
        return self._each(events)

    def _gives_up(self, event: bytes) -> bool:
        return event.startswith(_ERROR)

    def _one(self, event: bytes) -> bytes:
        if event.startswith(_ENDS):
            self.is_finished = True
        if event.startswith(b"event: message_start"):
            self._first = event
        elif event.startswith(_DELTA):
            self._events.append(event)
        elif event.startswith(b"event: content_block_start"):
            self._is_plain &= b'"type":"text"' in event and b'"index":0' in event
            self.has_block = True
        elif event.startswith(b"event: content_block_stop"):
            self.has_block, self._is_plain = False, False
        return event

    def _put_aside(self) -> None:
        events, self._events = self._events, []
        found = _TEXT.findall(b"".join(events))
        if len(found) != len(events) or self._size > MOST_BYTES:
            self._is_plain = False
            return
        self._size += sum(map(len, found))
        try:
            self._texts.append("".join([msgspec.json.decode(each) for each in found]))
        except UNREADABLE:
            self._is_plain = False

    def cut(
        self,
        prompt_ids: Sequence[int],
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
    ) -> Cut | None:
        """Return where another engine goes on; None if it cannot."""
        self._put_aside()
        if not self._is_plain or not self._first or self.is_finished:
            return None
        text = "".join(self._texts)
        ids = encode(text) if text else ()
        if ids and decode(ids) != text:
            return None
        told = b",".join([b"%d" % each for each in ids])
        prompt = b",".join([b"%d" % each for each in prompt_ids])
        (first,) = data_in(self._first)
        return Cut(prompt, told, len(ids), "", first)


class RestMessages:
    """Fed with the whole events of the rest, returns them as they follow those of the start."""

    def __init__(self, cut: Cut, *, has_block: bool) -> None:
        """`has_block`: the client has the start of a text block, and not its end."""
        self._num_ids = cut.num_ids
        self._num_prompt_ids = cut.num_prompt_ids
        self._is_open = has_block
        self._is_joined = False
        self._shift = 0

    def feed(self, events: bytes) -> bytes:
        """Return the events as the client gets them."""
        whole, border, rest = events.rpartition(b"\n\n")
        return b"".join([self._edited(event) for event in whole.split(border or None)]) + rest

    def _edited(self, event: bytes) -> bytes:
        data = list(data_in(event))
        if not event.startswith(b"event:") or len(data) != 1:
            return event + b"\n\n"
        try:
            told = msgspec.json.decode(data[0], type=Json)
        except UNREADABLE:
            return event + b"\n\n"
        kind = told.get("type")
        if kind == "message_start":
            return b""
        before = b""
        if kind == "content_block_start":
            if self._is_open and not self._is_joined and told["content_block"]["type"] == "text":
                self._is_joined, self._is_open = True, False
                return b""
            before = self._end()
        elif kind == "message_delta":
            before = self._end()
            self._count(told)
        if "index" in told:
            told["index"] += self._shift
        return before + _event(told)

    def _end(self) -> bytes:
        """End the client's block, if it is open and nothing follows in it."""
        if not self._is_open:
            return b""
        self._is_open, self._shift = False, 1
        return _event({"type": "content_block_stop", "index": 0})

    def _count(self, told: Json) -> None:
        usage = told.get("usage")
        if not usage:
            return
        usage["output_tokens"] = usage.get("output_tokens", 0) + self._num_ids
        if "input_tokens" in usage:
            usage["input_tokens"] = self._num_prompt_ids
        for name in ("cache_read_input_tokens", "cache_creation_input_tokens"):
            if usage.get(name):
                usage[name] = 0


def _event(told: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (told["type"].encode(), msgspec.json.encode(told))
