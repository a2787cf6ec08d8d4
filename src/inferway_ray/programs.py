"""Deployments whose replicas each run a program that listens on ports of its own: an engine, or a
gateway. Ray places, watches and restarts them.

    Engine = serve.deployment(request_router_config=router_config())(EngineProgram)
    engines = Engine.options(num_replicas=2).bind(["vllm", "serve", MODEL, "--port", "$port", …])

In the command's words `$port`, `$events_port` and `$replay_port` are free ports. The program ends
with its replica, however that ends (`keeper`). One that ends by itself, or stops to answer
`/health`, makes the replica unhealthy, and Ray starts another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from string import Template
from typing import Any

import aiohttp

from inferway.errors import ConfigError, UpstreamError
from inferway.model import Headers
from inferway_ray.announced import ENGINE
from inferway_ray.observed import AnswerHead

log = logging.getLogger("inferway_ray")

PORTS = ("port", "events_port", "replay_port")
POLL_SECONDS = 0.1
HEALTH_SECONDS = 5.0
STOP_SECONDS = 40.0  # a gateway drains for 30
# Runs `inferway` with the interpreter that runs us, wherever its scripts are.
INFERWAY = (sys.executable, "-c", "from inferway.cli import main; main()")
_EVERY = ("0.0.0.0", "::")  # addresses of a host: reached at the node's
_HOP_BY_HOP = frozenset({b"connection", b"content-length", b"host", b"transfer-encoding"})


class RunningProgram:
    """One program that is running. `start_seconds`: so long it may take until it answers."""

    def __init__(
        self,
        command: Sequence[str],
        start_seconds: float,
        host: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env`: variables beside ours. Raises ConfigError for a command that cannot be run."""
        ports = _free_ports(len(PORTS))
        words = [_filled(word, dict(zip(PORTS, map(str, ports), strict=True))) for word in command]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{ports[0]}"
        self._start_seconds = start_seconds
        self._session: aiohttp.ClientSession | None = None
        if shutil.which(words[0]) is None:
            raise ConfigError(f"command: {words[0]!r}: there is no such program here")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inferway_ray.keeper", str(STOP_SECONDS), *words],
            stdin=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections to it; made in the event loop that asks first."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=2.0)
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)  # theirs: 5 s
            self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self._session

    async def answers(self) -> None:
        """Return once it answers. Raises UpstreamError if it ends, or takes too long."""
        try:
            async with asyncio.timeout(self._start_seconds):
                while not await self._is_healthy():
                    self._check_running()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as e:
            raise UpstreamError(
                f"{self.url} did not answer within {self._start_seconds:g} s of its start"
            ) from e

    async def check(self) -> None:
        """Raises UpstreamError if it is not well."""
        self._check_running()
        if not await self._is_healthy():
            raise UpstreamError(f"{self.url}/health does not answer 200")

    def stop(self) -> None:
        """Have it end, as SIGTERM would. Its keeper waits for that, and not we. Idempotent."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    async def close(self) -> None:
        """Have it end, and close the connections to it."""
        self.stop()
        if self._session is not None:
            await self._session.close()

    def _check_running(self) -> None:
        status = self.process.poll()
        if status is not None:
            raise UpstreamError(f"the program of {self.url} has ended with status {status}")

    async def _is_healthy(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        try:
            async with self.session.get(f"{self.url}/health", timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False


class EngineProgram:
    """A deployment's class: an engine beside each replica. `answer` passes a request on to it."""

    def __init__(
        self, command: Sequence[str], start_seconds: float = 1800.0, host: str | None = None
    ) -> None:
        """`host`: of this machine, as others reach it; else Ray's address of the node. Raises
        ConfigError."""
        self._program = RunningProgram(command, start_seconds, host or _node_address())

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Tell routers where the engine is, once it answers; before that the replica is not
        ready."""
        await self._program.answers()
        return {ENGINE: self._program.url}

    async def check_health(self) -> None:
        await self._program.check()

    async def answer(
        self, path: str, headers: Headers, body: bytes
    ) -> AsyncIterator[AnswerHead | bytes]:
        """Yield the head of the engine's answer, then its body as it comes."""
        sent = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in headers
            if name not in _HOP_BY_HOP
        ]
        url = self._program.url + path
        async with self._program.session.post(url, data=body, headers=sent) as answer:
            told = tuple(
                (name.lower(), value)
                for name, value in answer.raw_headers
                if name.lower() not in _HOP_BY_HOP
            )
            yield AnswerHead(answer.status, told)
            async for piece in answer.content.iter_any():
                yield piece

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The engine's keeper."""
        return self._program.process

    async def close(self) -> None:
        """Have the engine end."""
        await self._program.close()

    def __del__(self) -> None:
        if hasattr(self, "_program"):
            self._program.stop()


class GatewayProgram:
    """A deployment's class: `inferway serve` beside each replica, on a port of its own.

    Requests go to these ports, by a load balancer or a client's list, and not through Ray's proxy.
    `arguments` are those of `inferway serve`. With `base_port` a replica listens there, plus its
    rank on its node; without, on a free port, which `where` tells. `host` is the address that it
    listens on."""

    def __init__(
        self,
        arguments: Sequence[str],
        base_port: int | None = None,
        start_seconds: float = 120.0,
        host: str = "127.0.0.1",
    ) -> None:
        port = "$port" if base_port is None else str(base_port + _rank_on_node())
        listening = ["--host", host, "--port", port]
        address = _node_address() if host in _EVERY else host
        words = [*INFERWAY, "serve", *listening, *arguments]
        env = {"RAY_ADDRESS": _cluster_address()}  # where --engines-ray looks
        self._program = RunningProgram(words, start_seconds, address, env)
        if base_port is not None:
            self._program.url = self._program.url.rpartition(":")[0] + f":{port}"

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Tell where the gateway is, once it answers."""
        await self._program.answers()
        return {"gateway": self._program.url}

    async def where(self) -> str:
        """Return the gateway's URL: `handle.broadcast("where")` has all of them."""
        return self._program.url

    async def check_health(self) -> None:
        await self._program.check()

    def __del__(self) -> None:
        if hasattr(self, "_program"):
            self._program.stop()


def _filled(word: str, values: dict[str, str]) -> str:
    try:
        return Template(word).substitute(values)
    except (KeyError, ValueError) as e:
        names = ", ".join(f"${name}" for name in PORTS)
        raise ConfigError(
            f"command: {word!r}: {e}; expected no $ but in {names}; write $$ for a plain one"
        ) from e


def _free_ports(number: int) -> list[int]:
    """Return different ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _node_address() -> str:
    import ray.util

    return str(ray.util.get_node_ip_address())


def _cluster_address() -> str:
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _rank_on_node() -> int:
    from ray import serve

    return int(serve.get_replica_context().rank.local_rank)
