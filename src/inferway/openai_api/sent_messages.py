"""Record of a stream of /v1/messages that a client gets, from which another engine goes on. Pure.

vLLM tells no ids on this path. So the text that was sent is encoded again, to tokens that must have
the same text. Text that was kept back is not lost: the other engine generates it anew. An answer is
continued if it has a thought, a text, or a text behind a thought: other blocks' text is not all
that was generated. The tokens around a thought (`ThoughtMarks`) are in no event, and are put
back:

sent                                     the other engine's prompt ends with
a thought, which is open                 its start, unless the prompt has it, and the thought
a thought that has ended                 the same, and its end
a thought that has ended, and a text     the same, and the text
a text                                   the text

the rest's event          becomes
message_start             nothing: the client has one
content_block_start       nothing, if the client's block is open and of that kind; else the end of
                          that block, and the start of the next. A thought does not follow a text
message_delta             the same, with the usage of the whole; the end of an open block before it
all others                the same, with the number of the client's block
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from inferway.errors import SeamError
from inferway.openai_api.sent_stream import MOST_BYTES, Cut, SentEvents
from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import data_in

_TOGETHER = 64  # events of which the text is taken
_DELTA = b"event: content_block_delta\n"
_PIECE = re.compile(
    rb'"type":"(text|thinking|signature)_delta","(?:text|thinking|signature)":("(?:[^"\\]|\\.)*")'
)
_START = re.compile(rb'"content_block":\{"type":"(text|thinking)"')
_ERROR = b"event: error"
_ENDS = (b"event: message_delta", b"event: message_stop")
TEXT, THINKING = b"text", b"thinking"

Json = dict[str, Any]

Encode = Callable[[str], Sequence[int]]
Decode = Callable[[Sequence[int]], str]

# The tokens around a thought, by vLLM 0.32's parsers (vllm/reasoning, vllm/parser). Those of others
# are missing here where a parser does not find out from a prompt that a thought is open.
_MARKS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"))


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The token before a thought, and the token behind it."""

    start: int
    end: int

    def is_open(self, ids: Sequence[int]) -> bool:
        """Return whether these tokens end in the middle of a thought."""
        for each in reversed(ids):
            if each in (self.start, self.end):
                return each == self.start
        return False


def thought_marks(encode: Encode) -> ThoughtMarks | None:
    """Return the marks that are tokens of this model; None if it has none that are known."""
    for start, end in _MARKS:
        before, behind = encode(start), encode(end)
        if len(before) == len(behind) == 1 and before[0] != behind[0]:
            return ThoughtMarks(before[0], behind[0])
    return None


@dataclass(frozen=True, slots=True)
class LastBlock:
    """The client's last block: its number, and its kind while the client has not got its end."""

    number: int = -1  # there is none
    kind: bytes = b""  # TEXT or THINKING; empty: it has ended
    is_signed: bool = False  # a thought of which nothing but its end is to come


class SentMessages(SentEvents):
    """Fed with the whole events of one stream, in order."""

    __slots__ = ("_events", "_size", "_texts", "_thought", "block")

    def __init__(self) -> None:
        super().__init__()
        self._events: list[bytes] = []  # deltas of the last block, that are not read yet
        self._texts: list[str] = []  # of that block, by earlier events
        self._thought: str | None = None  # that has ended
        self._size = 0
        self.block = LastBlock()

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
            self._begin_block(event)
        elif event.startswith(b"event: content_block_stop"):
            self._end_block()
        return event

    def _begin_block(self, event: bytes) -> None:
        found, number = _START.search(event), self.block.number + 1
        self.block = LastBlock(number, b"" if found is None else found[1])
        # a thought comes first, and a text behind it or alone
        is_next = self.block.kind == TEXT and number == (self._thought is not None)
        self._is_plain &= is_next or (self.block.kind == THINKING and number == 0)
        self._is_plain &= b'"index":%d' % number in event

    def _end_block(self) -> None:
        self._put_aside()
        if self.block.kind == THINKING:
            self._thought, self._texts = "".join(self._texts), []
        else:
            self._is_plain = False
        self.block = LastBlock(self.block.number)

    def _put_aside(self) -> None:
        """Take the text of the events that are not read yet."""
        events, self._events = self._events, []
        found = _PIECE.findall(b"".join(events))
        if len(found) != len(events) or self._size > MOST_BYTES:
            self._is_plain = False
            return
        block = self.block
        if block.kind == THINKING and found and found[-1][0] == b"signature":
            self.block = LastBlock(block.number, THINKING, is_signed=True)
            found = found[:-1]
        self._size += sum([len(text) for _, text in found])
        self._is_plain &= all(kind == block.kind for kind, _ in found)
        try:
            self._texts.append("".join([msgspec.json.decode(text) for _, text in found]))
        except UNREADABLE:
            self._is_plain = False

    def cut(self, prompt_ids: Sequence[int], encode: Encode, decode: Decode) -> Cut | None:
        """Return where another engine goes on; None if it cannot."""
        self._put_aside()
        if not self._is_plain or not self._first or self.is_finished:
            return None
        ids = self._ids(prompt_ids, encode, decode)
        if ids is None:
            return None
        told = b",".join([b"%d" % each for each in ids])
        prompt = b",".join([b"%d" % each for each in prompt_ids])
        (first,) = data_in(self._first)
        return Cut(prompt, told, len(ids), "", first)

    def _ids(
        self, prompt_ids: Sequence[int], encode: Encode, decode: Decode
    ) -> Sequence[int] | None:
        """Return the tokens of all that was sent; None if they are not known."""
        last = _ids_of("".join(self._texts), encode, decode)
        thought = None if self._thought is None else _ids_of(self._thought, encode, decode)
        is_thought = self.block.kind == THINKING
        if last is None or (self._thought is not None and thought is None):
            return None
        if thought is None and not is_thought:
            return last
        marks = thought_marks(encode)
        if marks is None:
            return None
        start = [] if marks.is_open(prompt_ids) else [marks.start]
        if thought is not None:
            return [*start, *thought, marks.end, *last]
        return [*start, *last, marks.end] if self.block.is_signed else [*start, *last]


def _ids_of(text: str, encode: Encode, decode: Decode) -> Sequence[int] | None:
    """Return the tokens of a text; None if they have another one."""
    ids = encode(text) if text else ()
    return ids if not ids or decode(ids) == text else None


class RestMessages:
    """Fed with the whole events of the rest, returns them as they follow those of the start."""

    def __init__(self, cut: Cut, block: LastBlock, num_cached: int | None = None) -> None:
        """`block`: the last one that the client has. `num_cached`: tokens of the prompt that the
        first engine had in its cache, if that is known."""
        self._num_ids = cut.num_ids
        self._num_prompt_ids = cut.num_prompt_ids
        self._num_cached = num_cached or 0
        self._block = block
        self._is_begun = False
        self._shift = block.number + 1

    def feed(self, events: bytes) -> bytes:
        """Return the events as the client gets them. Raises SeamError if they are a thought, and
        the client has a text."""
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
            if self._joins(told["content_block"]["type"].encode()):
                return b""
            before = self._end()
        elif kind == "message_delta":
            before = self._end()
            self._count(told)
        if "index" in told:
            told["index"] += self._shift
        return before + _event(told)

    def _joins(self, kind: bytes) -> bool:
        """Return whether a block of this kind, which begins, is the one that the client has."""
        block, is_first = self._block, not self._is_begun
        self._is_begun = True
        is_open = block.kind == THINKING and not block.is_signed
        if is_first and kind == THINKING and block.number >= 0 and not is_open:
            raise SeamError("it begins with a thought where the client's thought has ended")
        if not is_first or kind != block.kind:
            return False
        self._block, self._shift = LastBlock(block.number), block.number
        return True

    def _end(self) -> bytes:
        """End the client's block, if it is open and nothing follows in it."""
        block, self._block = self._block, LastBlock(self._block.number)
        if not block.kind:
            return b""
        number, signed = block.number, b""
        if block.kind == THINKING and not block.is_signed:
            # as of vLLM's, it signs nothing: what it says must be given back is only text
            signature = {"type": "signature_delta", "signature": uuid4().hex}
            told = {"type": "content_block_delta", "index": number, "delta": signature}
            signed = _event(told)
        return signed + _event({"type": "content_block_stop", "index": number})

    def _count(self, told: Json) -> None:
        """Let the usage be that of the whole answer."""
        usage = told.get("usage")
        if not usage:
            return
        usage["output_tokens"] = usage.get("output_tokens", 0) + self._num_ids
        cached = 0
        if "cache_read_input_tokens" in usage:
            cached = usage["cache_read_input_tokens"] = self._num_cached
        if usage.get("cache_creation_input_tokens"):
            usage["cache_creation_input_tokens"] = 0
        if "input_tokens" in usage:
            usage["input_tokens"] = self._num_prompt_ids - cached


def _event(told: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (told["type"].encode(), msgspec.json.encode(told))
