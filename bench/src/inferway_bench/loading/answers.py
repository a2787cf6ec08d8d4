"""An answer's bytes and when they came -> what is known of the request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

_DETAIL_CHARS = 300
# A delta may bring any of them; engines disagree on what reasoning is called.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class Sample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Times are seconds since the stage began; None where there is nothing to tell.

    `ttft` and `e2e` count from the *intended* time: what was late before it was sent, behind a slow
    answer or for want of a connection, is part of what a user waits for. `*_sent` count from the
    first byte sent, as most load generators do, and hide a server that stalls.
    """

    session: int
    turn: int
    intended: float
    sent: float | None = None
    first: float | None = None  # the first delta with a token, not the head, not the role
    last: float | None = None  # the last one
    ended: float = 0.0  # the answer's end, or when it failed
    held: float = 0.0  # of the wait before sending: for the answer to the session's turn before
    late: float = 0.0  # the same: because the generator itself was busy
    status: int = 0
    error: str | None = None  # a kind: "connect", "timeout", "status 503", "cut", "in stream", …
    detail: str | None = None  # what the server said of the error, its beginning
    prompt_tokens: int | None = None  # these three as the server's usage says
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    num_deltas: int = 0  # chunks with tokens
    gaps: tuple[float, ...] = ()  # seconds between them

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.intended

    @property
    def ttft_sent(self) -> float | None:
        return None if self.first is None or self.sent is None else self.first - self.sent

    @property
    def e2e(self) -> float:
        return self.ended - self.intended

    @property
    def e2e_sent(self) -> float | None:
        return None if self.sent is None else self.ended - self.sent

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the answer: as the usage says, else that of its deltas."""
        return self.num_deltas if self.completion_tokens is None else self.completion_tokens

    @property
    def itl(self) -> float | None:
        """The mean time between tokens. None where there are not two, or they came at once."""
        if self.first is None or self.last is None or self.num_deltas < 2 or self.num_tokens < 2:
            return None
        return (self.last - self.first) / (self.num_tokens - 1)

    def fail(self, error: str, detail: str | None = None) -> None:
        """Note what went wrong, unless something did before."""
        self.error, self.detail = self.error or error, self.detail or detail


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

    @property
    def body(self) -> bytes:
        return b"".join([piece.data for piece in self.pieces])

    @property
    def is_stream(self) -> bool:
        """True if the answer is a stream; some servers do not say it."""
        said = self.headers.get("content-type", "").startswith("text/event-stream")
        return said or (bool(self.pieces) and self.pieces[0].data.startswith(b"data:"))


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


def read_answer(answer: Answer, sample: Sample, start: float = 0.0) -> str:
    """Write into the sample of a request what its answer says, and when its tokens came after
    `start`; one that is not whole, or has no token, has an error. Return the answer's text."""
    sample.status, sample.error = answer.status, answer.error
    sample.ended = answer.ended - start
    if answer.sent is not None:
        sample.sent = answer.sent - start
        sample.intended = min(sample.intended, sample.sent)
    if answer.status != 200:
        said = answer.body[:_DETAIL_CHARS].decode(errors="replace")
        sample.fail(f"status {answer.status}", said)
        return ""
    text, times = "", []
    try:
        for at, chunk in _chunks(answer, sample):
            if chunk.error is not None:
                sample.fail("in stream", str(chunk.error)[:_DETAIL_CHARS])
            if any(choice.message or choice.has_token for choice in chunk.choices):
                times.append(at - start)
            text += "".join([choice.said for choice in chunk.choices[:1]])
            _take_usage(chunk.usage, sample)
    except msgspec.MsgspecError as e:
        sample.fail("not readable", str(e))
    if times:
        sample.first, sample.last, sample.num_deltas = times[0], times[-1], len(times)
        sample.gaps = tuple([after - before for before, after in pairwise(times)])
    else:
        sample.fail("no tokens")
    return text


def _chunks(answer: Answer, sample: Sample) -> Iterator[tuple[float, _Chunk]]:
    """The chunks of a stream. What is no stream is one, whose first token comes when all of it has
    come."""
    if not answer.is_stream:
        if answer.error is None:
            yield answer.ended, msgspec.json.decode(answer.body, type=_Chunk)
        return
    is_done = False
    for at, data in _events(answer.pieces):
        if data == b"[DONE]":
            is_done = True
        else:
            yield at, msgspec.json.decode(data, type=_Chunk)
    if not is_done:
        sample.fail("cut")


def _take_usage(usage: _Usage | None, sample: Sample) -> None:
    if usage is not None:
        sample.prompt_tokens = usage.prompt_tokens
        sample.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            sample.cached_tokens = usage.prompt_tokens_details.cached_tokens


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
