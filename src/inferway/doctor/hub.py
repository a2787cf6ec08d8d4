"""Asks the hub once, and gives up in time even where names do not resolve."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from inferway.doctor.facts import Hub

HUB_SECONDS = 3.0
DEFAULT_HUB = "https://huggingface.co"

GetAddrInfo = Callable[..., list[Any]]


async def ask_hub(
    environment: Mapping[str, str],
    seconds: float = HUB_SECONDS,
    getaddrinfo: GetAddrInfo = socket.getaddrinfo,
) -> Hub:
    """One request: who am I, if there is a token; any answer at all, if not."""
    url = (environment.get("HF_ENDPOINT") or DEFAULT_HUB).rstrip("/")
    token = environment.get("HF_TOKEN")
    if environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Hub(url, offline=True)
    path = "/api/whoami-v2" if token else "/"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    error: str | None = None
    status: int | None = None
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=seconds),
                connector=aiohttp.TCPConnector(resolver=_Resolver(getaddrinfo)),
                trust_env=True,
            ) as session,
            session.get(url + path, headers=headers, allow_redirects=False) as response,
        ):
            status = response.status
    except TimeoutError:
        error = f"no answer in {seconds:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as e:
        error = str(e) or type(e).__name__
    return Hub(url, has_token=bool(token), status=status, error=error)


class _Resolver(AbstractResolver):
    """Looks names up in daemon threads: a name server that is silent for half a minute, as on
    a machine that is offline, must not keep us from giving up, nor from ending."""

    def __init__(self, getaddrinfo: GetAddrInfo) -> None:
        self._getaddrinfo = getaddrinfo

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Any]] = loop.create_future()

        def look_up() -> None:
            outcome: list[Any] | OSError
            try:
                outcome = self._getaddrinfo(host, port, family, socket.SOCK_STREAM)
            except OSError as e:
                outcome = e
            with suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(_settle, found, outcome)

        threading.Thread(target=look_up, daemon=True).start()
        return [
            ResolveResult(
                hostname=host, host=address[0], port=port, family=kind, proto=protocol, flags=0
            )
            for kind, _, protocol, _, address in await found
        ]

    async def close(self) -> None:
        pass


def _settle(future: asyncio.Future[list[Any]], outcome: list[Any] | OSError) -> None:
    if future.done():
        return
    if isinstance(outcome, OSError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
