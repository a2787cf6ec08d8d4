"""Response bytes -> how many tokens the engine says it has taken, made, and had in its cache.

answer                       where its usage stands
chats, completions, whole    `usage`, of the outermost object
the same, streamed           `usage`, of an event's object (include_usage; the last one counts)
/v1/messages, whole          `usage`, with Anthropic's names: what was cached is not in input_tokens
the same, streamed           the same, of the event `message_delta`; at first `message.usage`
/v1/responses, whole         `usage`, with OpenAI's other names (input_tokens, output_tokens)
the same, streamed           `response.usage`, of the event `response.completed`
/v1/embeddings               `usage`; nothing is generated
/inference/v1/generate       `usage`, before the token ids of the answers; streamed as in chats

Nothing else is taken for it. Generated text has its quotes escaped; a schema or metadata that an
engine sends back may have a member "usage" of its own, but not in these places.
"""

from __future__ import annotations

import json
import re
from collections import deque

import msgspec

from inferway_structured.decoding import UNREADABLE
from inferway_structured.sse import last_data

_MARK = b'"usage"'
_FINISH_REASON = re.compile(
    rb'"finish_reason":\s*"(stop|length|tool_calls|function_call|content_filter|abort|error|repetition)"'
)
_STOP_REASON = re.compile(rb'"stop_reason":\s*"(end_turn|max_tokens|stop_sequence|tool_use)"')
_FINISH_REASONS = {  # OpenAI's words for Anthropic's
    b"end_turn": "stop",
    b"max_tokens": "length",
    b"stop_sequence": "stop",
    b"tool_use": "tool_calls",
}
_STREAM_TAIL_BYTES = 32 * 1024
_BODY_TAIL_BYTES = 256 * 1024  # token ids may follow
_USAGE_BYTES = 1024  # no usage is so long
_LAST_EVENTS = 4  # of a stream: one has the usage, one is [DONE]


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens, as the engine has counted them at the answer's end."""

    prompt: int
    completion: int
    cached: int | None = None  # of the prompt, from its cache; None: it does not tell


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None  # the Responses API's names
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None  # Anthropic's, beside its input_tokens
    cache_creation_input_tokens: int | None = None


class _Response(msgspec.Struct):
    usage: _Counts | None = None


class _Event(msgspec.Struct):
    usage: _Counts | None = None
    response: _Response | None = None
    message: _Response | str | None = None  # a text in errors


_EVENT = msgspec.json.Decoder(_Event)


class UsageReader:
    """Fed with the chunks of one answer, in order and cut anywhere; works on streams and answers in
    one piece alike. It keeps the answer's end, and the first chunk of one in one piece, and reads
    nothing before it is asked."""

    __slots__ = ("_limit", "_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0  # of the pieces together
        self._limit = 0  # of a tail that will do; 0: nothing but spaces has come

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the answer."""
        self._pieces.append(chunk)
        self._size = size = self._size + len(chunk)
        if size > 2 * self._limit:
            self._keep_tail(chunk)

    def _keep_tail(self, chunk: bytes) -> None:
        if not self._limit and (begun := chunk.lstrip()):
            self._limit = _BODY_TAIL_BYTES if begun.startswith(b"{") else _STREAM_TAIL_BYTES
        oldest = int(self._limit == _BODY_TAIL_BYTES)  # the first of a body is kept
        while (
            len(self._pieces) > 1 + oldest and self._size - len(self._pieces[oldest]) > self._limit
        ):
            self._size -= len(self._pieces[oldest])
            del self._pieces[oldest]

    def usage(self) -> Usage | None:
        """Return the usage that the answer has told so far, None if it has told none."""
        end = b"".join(self._pieces)
        if self._limit == _BODY_TAIL_BYTES:
            return _in_the_end_of(end, _OUTERMOST) or _in_the_beginning_of(end)
        found = map(_in_event, last_data(end, _LAST_EVENTS))
        return next((usage for usage in found if usage is not None), None)

    def finish_reasons(self) -> list[str]:
        """Return why the engine has ended its choices, in the order of the answer; only reasons
        that OpenAI and vLLM have words for."""
        end = b"".join(self._pieces)
        if found := _FINISH_REASON.findall(end):
            return [reason.decode() for reason in found]
        return [_FINISH_REASONS[reason] for reason in _STOP_REASON.findall(end)]


def usage_of(answer: bytes) -> Usage | None:
    """Return the usage that an answer in one piece tells; None if it tells none, or cannot be
    read."""
    try:
        return _told(answer)
    except UNREADABLE:
        return None


# What stands before a member: of the outermost object, and of an event's `response`.
_OUTERMOST, _OF_A_RESPONSE = b"{", b'{"response":{'


def _in_event(data: bytes) -> Usage | None:
    """Return the usage in the data of an event, or in the end of that."""
    if _MARK not in data:
        return None
    try:
        return _told(data)
    except UNREADABLE:  # its start is no longer kept
        return _in_the_end_of(data, _OUTERMOST) or _in_the_end_of(data, _OF_A_RESPONSE)


def _in_the_end_of(text: bytes, before: bytes) -> Usage | None:
    """`text` is a JSON object's end. A member that stands in it makes an object with what must
    stand `before` it only if that is where it stands: one further in or out has other braces
    behind it."""
    at = text.rfind(_MARK)
    while at != -1:
        if text[at - 1 : at] != b"\\":  # else it is in generated text
            try:
                found = _told(before + text[at:])
            except UNREADABLE:
                found = None
            if found is not None:
                return found
        at = text.rfind(_MARK, 0, at)
    return None


def _in_the_beginning_of(text: bytes) -> Usage | None:
    """Return the usage of a JSON object that has it before all that is nested."""
    at = text.find(_MARK)
    if at == -1 or text.count(b"{", 0, at) > 1:
        return None
    value = text[at + len(_MARK) : at + _USAGE_BYTES].decode("utf-8", "replace").lstrip(": \n")
    try:
        usage, _ = json.JSONDecoder().raw_decode(value)
        return _told(msgspec.json.encode({"usage": usage}))
    except (ValueError, RecursionError):
        return None


def _told(event: bytes) -> Usage | None:
    """Return the usage in an event. Raises DecodeError if that is no whole JSON object."""
    told = _EVENT.decode(event)
    counts = told.usage
    if counts is None and told.response is not None:
        counts = told.response.usage
    elif counts is None and isinstance(told.message, _Response):
        counts = told.message.usage
    return None if counts is None else _usage(counts)


def _usage(counts: _Counts) -> Usage | None:
    if counts.prompt_tokens is not None:
        prompt, made = counts.prompt_tokens, counts.completion_tokens
        details = counts.prompt_tokens_details
    elif counts.input_tokens is not None:
        prompt, made = counts.input_tokens, counts.output_tokens
        details = counts.input_tokens_details
        read, written = counts.cache_read_input_tokens, counts.cache_creation_input_tokens
        if read is not None or written is not None:
            return Usage(prompt + (read or 0) + (written or 0), made or 0, read)
    else:
        return None
    return Usage(prompt, made or 0, None if details is None else details.cached_tokens)
