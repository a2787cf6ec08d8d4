"""Floods of one client. `python -m tests.resources.attacks NAME PORT SECONDS` is one, with the key
in FLOOD_KEY; prints what it has sent, and how its requests were answered.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import uvloop
from tests.http.clients import Client, get, post
from tests.prompts.media.pictures import picture, png, text

MIB = 2**20
PACE = 25_000  # bytes that pipelining clients send every 10 ms


@dataclass
class Target:
    """Whom an attack floods, as whom, until when; `answers` counts statuses, 0 where a connection
    ended without an answer."""

    port: int
    key: str
    ends: float
    answers: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends

    async def ask(self, request: bytes, client: Client | None = None) -> None:
        """On a connection of its own unless one is given."""
        asked = client or await connect(self.port)
        try:
            self.sent += len(request)
            self.answers[(await asked.ask(request)).status] += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.answers[0] += 1
        finally:
            if client is None:
                asked.reset()

    async def in_turns(self, connections: int, request: Callable[[], bytes]) -> None:
        """So many clients ask as fast as they are answered."""

        async def one() -> None:
            while self.goes_on:
                await self.ask(request())

        await asyncio.gather(*(one() for _ in range(connections)))


async def connect(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))


def bearer(key: str) -> bytes:
    return b"authorization: Bearer " + key.encode()


def chat(key: str, model: str, content: object, **more: object) -> bytes:
    asked = {"model": model, "messages": [{"role": "user", "content": content}], **more}
    return post(json.dumps(asked).encode(), b"content-type: application/json", bearer(key))


def shaped(key: str, model: str, name: str, properties: int) -> bytes:
    """Wants a schema that nobody has asked for, if `name` is new."""
    schema = {
        "type": "object",
        "properties": {
            f"{name}_{i}": {"type": "string", "maxLength": 9} for i in range(properties)
        },
    }
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    return chat(key, model, "x", max_tokens=1, response_format=shape)


Attack = Callable[[Target], Awaitable[None]]


def pipelined(path: bytes, connections: int, *, keyless: bool = True) -> Attack:
    """2.5 MB/s of small requests that are answered at once, over all connections."""

    async def one(target: Target, size: int) -> None:
        client = await connect(target.port)
        request = get(path) if keyless else get(path, bearer(target.key))
        draining = asyncio.create_task(client.closed())
        try:
            while target.goes_on:
                await client.send(request * (size // len(request)))
                target.sent += size
                await asyncio.sleep(0.01)
        finally:
            client.reset()
            await draining

    async def attack(target: Target) -> None:
        await asyncio.gather(*(one(target, PACE // connections) for _ in range(connections)))

    return attack


async def half_sent(target: Target) -> None:
    """Keyless clients say half of 32 MiB to a path that does not exist, and wait."""
    head = b"POST /nothing HTTP/1.1\r\nhost: gw\r\ncontent-length: %d\r\n\r\n" % (32 * MIB)

    async def one() -> None:
        while target.goes_on:
            client = await connect(target.port)
            try:
                client.writer.write(head)
                for _ in range(16):
                    target.sent += MIB
                    await client.send(bytes(MIB))
                await asyncio.sleep(max(0.0, target.ends - time.monotonic()))
            except ConnectionError:
                target.answers[0] += 1
            finally:
                client.reset()
                await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(80)))


async def lost(target: Target) -> None:
    """A client is lost before the end of each of its bodies of 33 MB."""
    body = chat(target.key, "flooded", "x" * 33_000_000)[:-MIB]
    while target.goes_on:
        client = await connect(target.port)
        await client.send(body)
        target.sent += len(body)
        client.reset()


async def long_prompts(target: Target) -> None:
    await target.in_turns(
        24,
        lambda: chat(
            target.key, "flooded", f"{next(target.numbers)} " + "word " * 800_000, max_tokens=1
        ),
    )


async def pictures(target: Target) -> None:
    """Chats with two pictures of 5 MB, which are new ones in each chat."""
    first = png(1000, 700)
    rest = "A" * ((5_000_000 - len(first)) // 4 * 4)

    def asked() -> bytes:
        new = base64.b64encode(b"%011d." % next(target.numbers)).decode()
        content = [text("Look: "), *[picture(f"{first}{new}{rest}")] * 2]
        return chat(target.key, "pictured", content, max_tokens=1)

    await target.in_turns(20, asked)


async def large_schemas(target: Target) -> None:
    await target.in_turns(
        80, lambda: shaped(target.key, "flooded", f"large_{next(target.numbers)}", 2_500)
    )


async def idle(target: Target) -> None:
    """As many connections as the descriptors of one process allow."""
    clients = []
    while target.goes_on:
        try:
            clients.append(await connect(target.port))
        except OSError:  # no more of ours
            await asyncio.sleep(0.1)
    target.answers[0] = sum(client.reader.at_eof() for client in clients)
    for client in clients:
        client.reset()


async def deep(target: Target) -> None:
    nested = "[" * 100_000 + "]" * 100_000
    body = b'{"model":"flooded","messages":[{"role":"user","content":"x"}],"metadata":%b}'
    request = post(body % nested.encode(), b"content-type: application/json", bearer(target.key))
    await target.in_turns(8, lambda: request)


ATTACKS: dict[str, Attack] = {
    "nobody": lambda target: asyncio.sleep(target.ends - time.monotonic()),
    "health-1": pipelined(b"/health", 1),
    "health-4": pipelined(b"/health", 4),
    "401-1": pipelined(b"/v1/models", 1),
    "401-4": pipelined(b"/v1/models", 4),
    "404-1": pipelined(b"/nothing", 1, keyless=False),
    "404-4": pipelined(b"/nothing", 4, keyless=False),
    "half-sent": half_sent,
    "lost": lost,
    "long-prompts": long_prompts,
    "pictures": pictures,
    "schemas": large_schemas,
    "idle": idle,
    "deep": deep,
}


async def main(name: str, port: int, seconds: float) -> None:
    target = Target(port, os.environ["FLOOD_KEY"], time.monotonic() + seconds)
    await ATTACKS[name](target)
    print(json.dumps({"sent": target.sent, **target.answers}))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
