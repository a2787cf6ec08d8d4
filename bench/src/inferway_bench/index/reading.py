"""What it takes to read engines' batches from their sockets, until a subscriber has them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from functools import partial

from inferway.fleet.zmtp import (
    COMMAND,
    GREETING,
    MORE,
    Owner,
    ZmtpConnection,
    frame,
    keep_connected,
    ready,
)

_SKIPPED = 3  # rounds that warm up


class _Counting(Owner):
    """An owner of connections that does nothing with what they bring."""

    def __init__(self) -> None:
        self.up = 0
        self.messages = 0

    def connected(self, connection: ZmtpConnection) -> None:
        del connection
        self.up += 1

    def received(self, connection: ZmtpConnection, messages: list[list[bytes]]) -> None:
        del connection
        self.messages += len(messages)

    def refused(self, fault: str) -> None:
        raise ConnectionError(fault)


async def reading_us(payload: bytes, connections: int, rounds: int) -> list[float]:
    """Return the CPU microseconds of reading a batch, one of each connection and all at once, as
    they are read where a process is busy; a figure for each round. Connections are TCP on this
    machine, and what its kernel does for those who send is not counted."""
    counting = _Counting()
    make = partial(ZmtpConnection, "SUB", counting)
    batch = frame(MORE, b"") + frame(MORE, bytes(8)) + frame(0, payload)
    with socket.create_server(("127.0.0.1", 0), backlog=connections) as listening:
        port = listening.getsockname()[1]
        tasks = [
            asyncio.ensure_future(keep_connected(f"tcp://127.0.0.1:{port}", counting, make))
            for _ in range(connections)
        ]
        publishers = []
        try:
            for _ in range(connections):
                publishers.append(await asyncio.to_thread(listening.accept))
                publishers[-1][0].sendall(GREETING + frame(COMMAND, ready("PUB")))
            while counting.up < connections:
                await asyncio.sleep(0)
            ours = [publisher for publisher, _ in publishers]
            took = [await _round(ours, batch, counting) for _ in range(_SKIPPED + rounds)]
            return took[_SKIPPED:]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for publisher, _ in publishers:
                publisher.close()


async def _round(publishers: Sequence[socket.socket], batch: bytes, counting: _Counting) -> float:
    for publisher in publishers:
        publisher.sendall(batch)
    expected = counting.messages + len(publishers)
    began = time.thread_time()
    while counting.messages < expected:
        await asyncio.sleep(0)
    return (time.thread_time() - began) * 1e6 / len(publishers)
