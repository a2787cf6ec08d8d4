"""`python -m tests.resources.socket_floods`: measures `GET /health` of a gateway beside a flood
from an engine's event socket, from subscribers, and of chunks of one byte. Prints a table in
Markdown.

`--attack NAME PORT GATEWAY` is the flood itself, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from tests.engines.program import Program
from tests.http.clients import Client, get
from tests.resources.floods import figures
from tests.resources.worlds import resident_kb

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
BEGINS = "begins"  # is printed by a flood that is prepared
PIECE = 7_000_000  # bytes that are written at once
ASKED_EACH = 0.02  # seconds
SUBSCRIPTIONS = 40_000_000  # bytes of them

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Attack = Callable[[int, int], Coroutine[None, None, None]]


def frame(flags: int, body: bytes) -> bytes:
    if len(body) < 256:
        return struct.pack(">BB", flags, len(body)) + body
    return struct.pack(">BQ", flags | 2, len(body)) + body


def ready(kind: bytes, more: bytes = b"") -> bytes:
    said = b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return GREETING + frame(4, b"\x05READY" + more + said)


async def listen(port: int, serve: Callable[[Reader, Writer], Awaitable[None]]) -> None:
    async def each(reader: Reader, writer: Writer) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(each, "127.0.0.1", port) as server:
        await server.serve_forever()


async def write_on(writer: Writer, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()


def engine(first: bytes, piece: bytes) -> Attack:
    """An engine whose event socket says this, and then that without end."""

    async def attack(port: int, gateway: int) -> None:
        del gateway

        async def serve(reader: Reader, writer: Writer) -> None:
            writer.write(first)
            await (write_on(writer, piece) if piece else reader.read(-1))

        await listen(port, serve)

    return attack


async def subscribe(port: int, gateway: int) -> None:
    """Topics, each another one, of which no two begin alike."""
    del gateway
    drawn = random.Random(1).randbytes(SUBSCRIPTIONS)
    topics = b"".join(frame(0, b"\1" + drawn[at : at + 9]) for at in range(0, SUBSCRIPTIONS, 12))
    print(BEGINS, flush=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        writer.write(ready(b"SUB"))
        await reader.readuntil(b"PUB")  # before that, ZeroMQ's library takes no messages
        writer.write(topics)
        await writer.drain()
    await asyncio.sleep(3600)


async def client_chunks(port: int, gateway: int) -> None:
    """A client whose body comes a byte a chunk."""
    del port
    while True:
        with contextlib.suppress(ConnectionError):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            await write_on(writer, b"1\r\nx\r\n" * (PIECE // 6))


async def answer(reader: Reader, writer: Writer, floods: bytes = b"/chat/") -> None:
    """As an engine does, but for one path."""
    head = await reader.readuntil(b"\r\n\r\n")
    if floods not in head.partition(b"\r\n")[0]:
        models = b'{"data":[{"id":"m","root":"m","max_model_len":1000}]}'
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(models), models)
        )
        return
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await write_on(writer, b"1\r\nx\r\n" * (PIECE // 6))


async def engine_chunks(port: int, gateway: int) -> None:
    """An engine whose answer comes a byte a chunk."""

    async def ask() -> None:
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
        while True:
            await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"
                b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 20):
                    pass

    await asyncio.gather(listen(port, answer), ask())


async def page_chunks(port: int, gateway: int) -> None:
    """An engine whose metrics come a byte a chunk."""
    del gateway
    await listen(port, partial(answer, floods=b"/metrics"))


PROPERTIES = 3_000_000 * (b"\x01a" + bytes(4))


@dataclass(frozen=True)
class Flood:
    """`at`: which of the gateway's settings has the port."""

    at: str
    attack: Attack


FLOODS = {
    "engine: empty frames": Flood("events", engine(ready(b"PUB"), b"\0\0" * (PIECE // 2))),
    "engine: pings": Flood(
        "events", engine(ready(b"PUB"), frame(4, b"\x04PING\0\0") * (PIECE // 9))
    ),
    "engine: READY of 3 million properties": Flood(
        "events", engine(ready(b"PUB", PROPERTIES), b"")
    ),
    "engine: chunks of a byte": Flood("url", engine_chunks),
    "engine: metrics in chunks of a byte": Flood("url", page_chunks),
    "client: chunks of a byte": Flood("", client_chunks),
    "peers' port: 40 MB of subscriptions": Flood("peers", subscribe),
    "publish: 40 MB of subscriptions": Flood("publish", subscribe),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def settings(at: str, port: int, engine_port: int) -> dict[str, object]:
    engine = {"url": f"http://127.0.0.1:{port if at == 'url' else engine_port}"}
    found: dict[str, object] = {"engines": [engine], "follow_events": "always"}
    if at == "events":
        engine["events"] = f"tcp://127.0.0.1:{port}"
    elif at == "peers":
        found["peers"] = {"addresses": [f"127.0.0.1:{port}"]}
    elif at == "publish":
        found["publish"] = f"tcp://*:{port}"
    elif at == "url":
        found["scoring"] = False
    return found


async def ask_on(port: int, taken: list[float], seconds: float) -> None:
    """Ask for /health for so many seconds; `taken` gets the milliseconds from when each request was
    due. Ends after four times as long in any case."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    due = began = monotonic()
    while due < began + seconds and monotonic() < began + 4 * seconds:
        await asyncio.sleep(max(0.0, due - monotonic()))
        assert (await client.ask(get(b"/health"))).status == 200
        taken.append((monotonic() - due) * 1e3)
        due += ASKED_EACH
    client.reset()


async def measure(name: str, seconds: float) -> str:
    """A row of the table."""
    flood, port, engine_port = FLOODS[name], free_port(), free_port()
    serving = asyncio.ensure_future(listen(engine_port, answer))
    with tempfile.TemporaryDirectory() as found:
        directory = Path(found)
        (directory / "gateway.yaml").write_text(json.dumps(settings(flood.at, port, engine_port)))
        arguments = ["serve", "--config", str(directory / "gateway.yaml")]
        program = Program(arguments, directory / "gateway.log", alone=True)
        await asyncio.to_thread(program.__enter__)
        gateway = int(program.url.rpartition(":")[2])
        calm, flooded = list[float](), list[float]()
        try:
            await ask_on(gateway, list[float](), 4.0)  # a start compiles, and loads files
            await ask_on(gateway, calm, 3.0)
            before = resident_kb(program.pid)
            attacking = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.resources.socket_floods"),
                *("--attack", name, str(port), str(gateway)),
                stdout=asyncio.subprocess.PIPE,
            )
            assert attacking.stdout is not None
            await attacking.stdout.readline()
            await ask_on(gateway, flooded, seconds)
            attacking.kill()
            await attacking.wait()
            await asyncio.sleep(2.0)
            left = resident_kb(program.pid) - before
        finally:
            await asyncio.to_thread(program.stop)
            serving.cancel()
    rows = ["/".join(f"{value:g}" for value in figures(each)) for each in (calm, flooded)]
    return f"| {name} | {' | '.join(rows)} | {round(left / 1024)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of floods, or of some words in them")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--attack", nargs=3, metavar=("NAME", "PORT", "GATEWAY"))
    options = parser.parse_args()
    if options.attack is not None:
        name, port, gateway = options.attack
        if FLOODS[name].attack is not subscribe:
            print(BEGINS, flush=True)
        asyncio.run(FLOODS[name].attack(int(port), int(gateway)))
        return
    print("Milliseconds of /health: p50/p99/max.\n")
    print("| flood | alone | beside the flood | MiB left |\n|---|---|---|---|")
    for name in FLOODS:
        if not options.names or any(each in name for each in options.names):
            print(asyncio.run(measure(name, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
