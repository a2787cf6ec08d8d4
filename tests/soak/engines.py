"""Simulated engines as processes that are killed and come back on the same ports, and the wire to
one: a TCP proxy that breaks connections."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp
from tests.fork_server import INFERWAY
from tests.soak.hosts import OwnHost

from inferway_bench.processes import free_port

MODEL = "soaked"
START_SECONDS = 120.0
_ASK_SECONDS = 20.0
_BLOCK = 65536
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close means reset


class EngineProcess:
    """`inferway simulate --mode echo`. `port` is its own; who comes through a wire uses the
    wire's."""

    def __init__(
        self, root: Path, log: Path, flags: Sequence[str] = (), host: OwnHost | None = None
    ) -> None:
        """`flags` come after those below, and so win. `host`: where it runs; None: on ours."""
        self.own_host = host
        self.host = "127.0.0.1" if host is None else host.address
        self.port, self.events_port, self.replay_port = free_port(), free_port(), free_port()
        self.ended_by_itself = 0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        program = [str(INFERWAY)] if host is None else host.command([str(INFERWAY)])
        self._command = [
            *[*program, "simulate", "--mode", "echo", "--port", str(self.port)],
            *["--host", self.host],
            *["--model", str(root), "--served-model-name", MODEL],
            *["--max-model-len", "16384", "--kv-cache-size", "4096"],
            *["--inter-token-latency", "3ms", "--prefill-overhead", "30ms"],
            *["--prefill-time-per-token", "100us", "--time-factor-under-load", "2"],
            *["--zmq-endpoint", f"tcp://*:{self.events_port}"],
            *["--kv-events-replay-endpoint", f"tcp://*:{self.replay_port}"],
            *flags,
        ]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def trouble(self, disturbance: dict[str, object]) -> None:
        """Have its core troubled, as `POST /simulate` says it; {}: no more."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
            url = f"http://{self.address}/simulate"
            async with aiohttp.request("POST", url, json=disturbance, timeout=timeout) as answer:
                answer.raise_for_status()

    async def until_it_listens(self) -> None:
        """Or has ended, or takes START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while self.runs and time.monotonic() < deadline:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.close()
                return
            await asyncio.sleep(0.1)

    def start(self, *flags: str) -> None:
        """With more `flags`, this time. Returns before it listens: whoever asks must bear that."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *flags],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, sig: int = signal.SIGKILL) -> None:
        """And waits for its end, which comes at once."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.ended_by_itself += 1
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(sig)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        if self._process is not None and self.runs:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None and self.runs:
            self._process.send_signal(signal.SIGCONT)


class Wire:
    """Passes bytes on to `port`, until it is cut."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._to = port
        self._server: asyncio.Server | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._talks: set[asyncio.Task[None]] = set()
        self._writers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """No new connections; those that are there go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def hold(self) -> None:
        """Bytes wait, in both directions, until `let_go`; the connections stay."""
        self._flowing.clear()

    def let_go(self) -> None:
        self._flowing.set()

    def reset(self, share: float = 1.0) -> int:
        """Breaks so many of the connections, wherever they are, with a reset to the gateway."""
        talks = list(self._writers)
        chosen = talks[: max(1, round(len(talks) * share))]
        for talk in chosen:
            client = self._writers[talk]
            sock = client.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.transport.abort()
            talk.cancel()
        return len(chosen)

    async def close(self) -> None:
        self.refuse()
        self.reset()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        self._writers[task] = writer
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._talks.discard(task)
            del self._writers[task]
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            back.transport.abort()  # first: we may be cancelled while we wait
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BLOCK):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
