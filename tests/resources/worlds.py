"""`inferway serve` as a process of its own, an engine that holds its streams, and what the process
takes: memory and file descriptors from /proc."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from tests.engines.program import Program
from tests.upstream.engines import LAST_CHUNK, SSE_HEAD, Engine, Seen, Talk, answer, chunk, running

MODEL = "m"
EVENTS = 5
_MODELS = msgspec.json.encode({"data": [{"id": MODEL, "root": MODEL, "max_model_len": 100_000}]})


@dataclass
class Held:
    """An engine whose streams say one event with their request's nonce, wait until they are let
    go, and say the rest. Anything else is answered at once."""

    go: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    async def __call__(self, seen: Seen, talk: Talk) -> None:
        path = seen.line.split(b" ")[1]
        if path == b"/v1/models":
            await answer(_MODELS, b"content-type: application/json\r\n")(seen, talk)
        elif path != b"/v1/chat/completions":
            await answer(b"", status=b"404 Not Found")(seen, talk)
        elif b'"stream":true' not in seen.body:
            await answer(b"{}", b"content-type: application/json\r\n")(seen, talk)
        else:
            await self._stream(seen, talk)

    async def _stream(self, seen: Seen, talk: Talk) -> None:
        nonce = msgspec.json.decode(seen.body)["user"].encode()
        await talk.write(SSE_HEAD + chunk(b"data: %b\n\n" % nonce))
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        for _ in range(EVENTS):
            await talk.write(chunk(b"data: %b\n\n" % nonce))
        await talk.write(LAST_CHUNK)


@dataclass
class World:
    """`port` is the gateway's."""

    gateway: Program
    engine: Engine
    held: Held

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    def resident_kb(self) -> float:
        return resident_kb(self.gateway.pid)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.gateway.pid}/fd").iterdir()))

    async def settled(self, descriptors: int) -> int:
        """Waits until the gateway has no more than so many open, at most 20 s."""
        for _ in range(200):
            if self.descriptors() <= descriptors:
                break
            await asyncio.sleep(0.1)
        return self.descriptors()


def resident_kb(pid: int) -> float:
    """Of that process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return float(status.partition("VmRSS:")[2].split()[0])


@asynccontextmanager
async def world(directory: Path, config: str = "") -> AsyncIterator[World]:
    held = Held()
    (directory / "gateway.yaml").write_text(config or "{}\n")
    async with running(held) as engine:
        arguments = ["serve", "--config", str(directory / "gateway.yaml"), "--no-scoring"]
        arguments += ["--engine", engine.url, "--access-log", str(directory / "access.log")]
        program = Program(arguments, directory / "gateway.log")
        await asyncio.to_thread(program.__enter__)
        try:
            yield World(program, engine, held)
        finally:
            held.go.set()
            await asyncio.to_thread(program.stop)


def chat(nonce: str, *, stream: bool, padding: int = 0) -> bytes:
    body = msgspec.json.encode(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "x" * padding}],
            "user": nonce,
            "stream": stream,
        }
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )


class Client(asyncio.Protocol):
    """Keeps what it hears; lighter than a stream reader, for there are thousands of it."""

    def __init__(self) -> None:
        self.heard = b""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed = True


async def connect(port: int, number: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients: list[Client] = []
    for first in range(0, number, 100):
        made = await asyncio.gather(
            *(
                loop.create_connection(Client, "127.0.0.1", port)
                for _ in range(first, min(first + 100, number))
            )
        )
        clients += [client for _, client in made]
    return clients
