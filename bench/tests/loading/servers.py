"""Small OpenAI servers, each a function of the request."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

# The path, the headers (names in lower case), the body -> the bytes of an answer, piece by piece.
Answer = Callable[[str, dict[str, str], bytes], AsyncIterator[bytes]]

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 30},
}


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Its URL. At the end every connection of it is closed, so that no socket outlives the test."""
    open_connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_connections.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                async for piece in answer(first.split()[1], headers, body):
                    writer.write(piece)
                    await writer.drain()
                    if not piece:  # it hangs up
                        return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    finally:
        server.close()
        for task in open_connections:
            task.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def whole(value: Any, status: str = "200 OK") -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": None}]}


def streamed(*words: str, usage: Any = USAGE) -> list[bytes]:
    """A chat's answer, a piece a token, as vLLM sends it."""
    events = [delta(role="assistant", content=""), *(delta(content=word) for word in words)]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    tail = [] if usage is None else [{"choices": [], "usage": usage}]
    pieces = [event(value) for value in (*events, last, *tail)]
    return [STREAM_HEAD, *pieces, chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"]


Before = Callable[[dict[str, Any]], Awaitable[None]]


class Recording:
    """Answers every chat with `words`, and keeps what it was asked. `before` is awaited first."""

    def __init__(self, *words: str, usage: Any = USAGE, before: Before | None = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self._pieces = streamed(*(words or ("a", "b", "c")), usage=usage)
        self._before = before

    async def __call__(
        self, path: str, headers: dict[str, str], body: bytes
    ) -> AsyncIterator[bytes]:
        self.paths.append(path)
        self.headers.append(headers)
        if not body:
            yield whole({"object": "list", "data": [{"id": "served"}]})
            return
        self.bodies.append(json.loads(body))
        if self._before is not None:
            await self._before(self.bodies[-1])
        for piece in self._pieces:
            yield piece
