"""The trivial engine's streams, as a real engine's: one chunk for each that runs, step by step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

_ID = "chatcmpl-5d6e1a0f7c2b4f0f9a4b3c2d1e0f9a8b"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Pace(msgspec.Struct, frozen=True):
    """`POST /bench/streams`: how many tokens a stream has, and the seconds between two steps; with
    0 all comes at once."""

    tokens: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Stream:
    transport: asyncio.Transport
    left: int  # tokens


class PacedStreams:
    """`written` counts all events of all streams so far: the role's, tokens', the usage's, [DONE].

    Without a pace there are none: `begin` is not to be called.
    """

    def __init__(self, model: str) -> None:
        self.pace: Pace | None = None
        self.written = 0
        self._role = _event(model, {"role": "assistant", "content": ""})
        self._token = _event(model, {"content": " word"})
        self._running: list[_Stream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._model = model

    def begin(self, transport: asyncio.Transport) -> None:
        """Its head and first event go out now, the rest with the steps."""
        assert self.pace is not None
        pace, self.written = self.pace, self.written + 1
        stream = _Stream(transport, pace.tokens)
        if not pace.seconds:
            transport.write(_HEAD + self._role + self._token * pace.tokens + self._end(pace.tokens))
            self.written += pace.tokens
            return
        transport.write(_HEAD + self._role)
        self._running.append(stream)
        if self._timer is None:
            self._step_at(asyncio.get_running_loop().time() + pace.seconds)

    def _step_at(self, due: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(due, self._step, due)

    def _step(self, due: float) -> None:
        assert self.pace is not None
        going = []
        for stream in self._running:
            if stream.transport.is_closing():
                continue
            stream.left -= 1
            self.written += 1
            if stream.left:
                stream.transport.write(self._token)
                going.append(stream)
            else:
                stream.transport.write(self._token + self._end(self.pace.tokens))
        self._running, self._timer = going, None
        if going:
            now = asyncio.get_running_loop().time()
            self._step_at(max(due + self.pace.seconds, now))

    def _end(self, tokens: int) -> bytes:
        self.written += 2
        usage = {
            "prompt_tokens": 160,
            "total_tokens": 160 + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": 128},
        }
        return _event(self._model, None, usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _event(
    model: str, delta: dict[str, str] | None, usage: dict[str, object] | None = None
) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    chunk = {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": 1767225600,
        "model": model,
        "choices": [] if delta is None else [choice],
        **({} if usage is None else {"usage": usage}),
    }
    return _chunk(b"data: %b\n\n" % msgspec.json.encode(chunk))


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)
