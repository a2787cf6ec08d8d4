"""An answer's bytes and when they came -> what is known of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

_DETAIL_CHARS = 300
# A delta may bring any of them; engines disagree on what reasoning is called.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class Piece(NamedTuple):
    """Bytes of a body as they arrived, at a time of `time.perf_counter`."""

    at: float
    data: bytes


@dataclass(slots=True)
class Answer:
    """The answer to one request, as it came; its times are of `time.perf_counter`."""

    sent: float | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)
    ended: float = 0.0
    error: str | None = None  # see Sample


@dataclass(slots=True)
class Read:
    """What an answer says, and when its tokens came."""

    text: str = ""
    times: list[float] = field(default_factory=list)  # of the deltas with tokens
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    detail: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None  # a chat's chunk
    message: dict[str, Any] | None = None  # a chat, whole
    text: str | None = None  # a completion's chunk, or whole
    finish_reason: str | None = None

    @property
    def said(self) -> str:
        part = self.delta or self.message
        text = self.text if part is None else part.get("content")
        return text if isinstance(text, str) else ""

    @property
    def has_token(self) -> bool:
        """A chat's first chunk says who speaks, and its last may say only that it is over. What
        has no text may still be a token: half a character."""
        if self.text or (self.delta and any(self.delta.get(name) for name in _TEXTS)):
            return True
        part = {"content": self.text} if self.delta is None else self.delta
        silent = part.get("content") == "" and "role" not in part
        return silent and self.finish_reason is None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


def read_answer(answer: Answer) -> Read:
    """Return what the answer says; one that is not whole, or has no token, has an error."""
    read = Read(error=answer.error)
    if answer.error is None and answer.status != 200:
        read.error = f"status {answer.status}"
    if read.error is not None and answer.status != 200:
        read.detail = _beginning(answer.pieces)
        return read
    try:
        _read_stream(answer.pieces, read) if _is_stream(answer) else _read_whole(answer, read)
    except msgspec.MsgspecError as e:
        read.error = read.error or "not readable"
        read.detail = read.detail or str(e)
    if not read.times:
        read.error = read.error or "no tokens"
    return read


def _is_stream(answer: Answer) -> bool:
    """Some servers do not say it."""
    said = answer.headers.get("content-type", "").startswith("text/event-stream")
    return said or (bool(answer.pieces) and answer.pieces[0].data.startswith(b"data:"))


def _read_stream(pieces: Sequence[Piece], read: Read) -> None:
    texts, done = [], False
    for at, data in _events(pieces):
        if data == b"[DONE]":
            done = True
            continue
        chunk = msgspec.json.decode(data, type=_Chunk)
        if chunk.error is not None:
            read.error = read.error or "in stream"
            read.detail = read.detail or str(chunk.error)[:_DETAIL_CHARS]
        if any(choice.has_token for choice in chunk.choices):
            read.times.append(at)
        texts += [choice.said for choice in chunk.choices[:1]]
        _take_usage(chunk.usage, read)
    read.text = "".join(texts)
    if not done:
        read.error = read.error or "cut"


def _read_whole(answer: Answer, read: Read) -> None:
    """Not a stream: its first token comes when all of it has come."""
    if read.error is not None:
        return
    whole = msgspec.json.decode(b"".join([piece.data for piece in answer.pieces]), type=_Chunk)
    read.times = [answer.ended]
    read.text = whole.choices[0].said if whole.choices else ""
    _take_usage(whole.usage, read)


def _take_usage(usage: _Usage | None, read: Read) -> None:
    if usage is None:
        return
    read.prompt_tokens = usage.prompt_tokens
    read.completion_tokens = usage.completion_tokens
    if usage.prompt_tokens_details is not None:
        read.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _events(pieces: Sequence[Piece]) -> Iterator[tuple[float, bytes]]:
    """Each event's data, and when its end arrived."""
    rest = b""
    for at, data in pieces:
        if b"\r" in data:
            data = data.replace(b"\r", b"")  # some servers end lines with both
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield at, b"\n".join(lines).strip()


def _beginning(pieces: Sequence[Piece]) -> str:
    return b"".join([p.data for p in pieces])[:_DETAIL_CHARS].decode(errors="replace")
