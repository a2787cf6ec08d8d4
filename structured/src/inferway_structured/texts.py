"""An answer's bytes -> what it says: the texts and calls that a shape is asked of.

answer                      text                            call
/v1/chat/completions        choices[].message.content       .message.tool_calls[].function
the same, streamed          choices[].delta.content         .delta.tool_calls[].function
/v1/completions             choices[].text
/v1/responses               output[] message: output_text   output[] function_call
the same, streamed          the same, of `response` in the event response.completed
/v1/messages (Anthropic)    content[] text                  content[] tool_use
the same, streamed          content_block_delta: text       the same: partial_json

What a model reasons before its answer stands elsewhere (`reasoning`), and is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

import msgspec

from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import WholeEvents, data_in

MAX_CHARS = 1 << 20  # of an answer's text; what is longer is not judged
_MAX_TEXTS = 4096
_MAX_EVENT_BYTES = 8 << 20  # the last event of a response has all of it, and what was asked


class AnswerText(msgspec.Struct, frozen=True):
    """A text of an answer, or the arguments of one of its function calls."""

    text: str
    function: str | None = None  # that is called


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int = 0
    function: _Function | None = None


class _Message(msgspec.Struct):
    content: Any = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None
    name: str | None = None
    arguments: str | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()


class _BlockDelta(msgspec.Struct):
    text: str | None = None
    partial_json: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    output: list[_Item] | None = None
    content: list[_Block] | None = None
    error: Any = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    type: str | None = None  # of the Responses API's events, and Anthropic's
    response: _Body | None = None
    index: int = 0  # of Anthropic's block
    content_block: _Block | None = None
    delta: _BlockDelta | str | None = None
    error: Any = None


# A stream's event without any of them has nothing to tell.
_TELLING = (b'"choices"', b'"response', b'"content_block')

_ANSWER = msgspec.json.Decoder(_Body)
_EVENT = msgspec.json.Decoder(_Event)


def said_in(body: bytes) -> list[AnswerText] | None:
    """Return what a whole answer says; None if it is not one of those above."""
    try:
        answer = _ANSWER.decode(body)
    except UNREADABLE:
        return None
    return _said(answer)


def _said(answer: _Body) -> list[AnswerText] | None:
    if answer.error is not None:
        return None
    if answer.choices is not None:
        return [said for choice in answer.choices for said in _by_choice(choice)]
    if answer.output is not None:
        return [said for item in answer.output for said in _by_item(item)]
    if answer.content is not None:
        return list(_by_blocks(answer.content))
    return None


def _by_choice(choice: _Choice) -> Iterator[AnswerText]:
    message = choice.message
    if message is None:
        if choice.text is not None:
            yield AnswerText(choice.text)
        return
    for call in message.tool_calls or ():
        if call.function is not None:
            yield AnswerText(call.function.arguments or "", call.function.name or "")
    text = message.content if isinstance(message.content, str) else ""
    if text or not message.tool_calls:
        yield AnswerText(text)


def _by_item(item: _Item) -> Iterator[AnswerText]:
    if item.type == "message":
        parts = [part.text or "" for part in item.content or () if part.type == "output_text"]
        yield AnswerText("".join(parts))
    elif item.type == "function_call":
        yield AnswerText(item.arguments or "", item.name or "")


def _by_blocks(blocks: Sequence[_Block]) -> Iterator[AnswerText]:
    calls = [block for block in blocks if block.type == "tool_use"]
    for call in calls:
        yield AnswerText(bytes(call.input).decode(), call.name or "")
    text = "".join(block.text or "" for block in blocks if block.type == "text")
    if text or not calls:
        yield AnswerText(text)


class StreamTexts:
    """Fed with the pieces of one streamed answer, in order and cut anywhere. Keeps its text only,
    and none of it beyond `max_chars`."""

    __slots__ = ("_events", "_max_chars", "_names", "_response", "_size", "_texts", "failed")

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._events = WholeEvents(_MAX_EVENT_BYTES)
        self._size = 0
        self._texts: dict[tuple[int, int], StringIO] = {}  # by choice, and call or -1
        self._names: dict[tuple[int, int], str] = {}
        self._response: _Body | None = None
        self.failed = False  # too long, or an error, or no events that are known

    def feed(self, chunk: bytes) -> bytes:
        """Read the next piece of the stream, and return the events that are whole with it."""
        events = self._events.whole(chunk)
        for data in data_in(events):
            if not self.failed:
                self._event(data)
        return events

    def rest(self) -> bytes:
        """Return what was fed after the last whole event."""
        return self._events.rest()

    def said(self) -> list[AnswerText] | None:
        """Return what the stream has said; None if that cannot be known."""
        if self.failed:
            return None
        if self._response is not None:
            return _said(self._response)
        if not self._texts:
            return None
        calling = {choice for choice, call in self._texts if call >= 0}
        said = []
        for (choice, call), written in self._texts.items():
            text = written.getvalue()
            if call >= 0:
                said.append(AnswerText(text, self._names.get((choice, call), "")))
            elif text or choice not in calling:
                said.append(AnswerText(text))
        return said

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]" or not any(word in data for word in _TELLING):
            if data.startswith((b'{"error"', b'{"type":"error"')):
                self._fail()
            return
        try:
            event = _EVENT.decode(data)
        except UNREADABLE:
            self._fail()
            return
        if event.error is not None:
            self._fail()
        elif event.choices is not None:
            self._choices(event.choices)
        elif event.type in ("response.completed", "response.incomplete"):
            self._response = event.response
        elif event.content_block is not None and event.content_block.type == "tool_use":
            self._names[0, event.index] = event.content_block.name or ""
            self._add((0, event.index), "")
        elif isinstance(event.delta, _BlockDelta):
            self._add((0, -1), event.delta.text or "")
            if event.delta.partial_json is not None:
                self._add((0, event.index), event.delta.partial_json)

    def _choices(self, choices: Sequence[_Choice]) -> None:
        for choice in choices:
            if choice.text is not None:
                self._add((choice.index, -1), choice.text)
            delta = choice.delta
            if delta is None:
                continue
            if isinstance(delta.content, str):
                self._add((choice.index, -1), delta.content)
            for call in delta.tool_calls or ():
                key = (choice.index, call.index)
                if call.function is not None and call.function.name:
                    self._names[key] = call.function.name
                self._add(key, (call.function and call.function.arguments) or "")

    def _add(self, key: tuple[int, int], text: str) -> None:
        written = self._texts.get(key)
        if written is None:
            written = self._texts[key] = StringIO()
        self._size += written.write(text)
        if self._size > self._max_chars or len(self._texts) > _MAX_TEXTS:
            self._fail()

    def _fail(self) -> None:
        self.failed = True
        self._texts.clear()
