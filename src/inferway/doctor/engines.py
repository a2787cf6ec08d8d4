"""Asks the engines what they are, whether they take tools, and knocks at their event sockets."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from inferway.config import EngineSettings
from inferway.doctor.facts import EngineReport, Socket
from inferway.errors import ConfigError, UpstreamError
from inferway.fleet.engine_facts import EngineFacts, discover, given_source
from inferway.fleet.http_client import EngineConnector, post, upstream_errors

ENGINE_SECONDS = 10.0  # an engine that computes on the CPU leaves us waiting for a while

# Every ZMQ peer opens with its signature before it hears anything: ff, 8 bytes, 7f (ZMTP 3).
_SIGNATURE_BYTES = 10

# Metrics that vLLM has with its OffloadingConnector alone (0.32, offloading/metrics.py).
_OFFLOADING = re.compile(r"^# TYPE vllm:kv_offload_", re.M)
# What vLLM says where it was started without the flag (0.32, renderers/online_renderer.py).
_NO_TOOLS = b"--enable-auto-tool-choice"
_NOOP = {"name": "noop", "description": "does nothing", "parameters": {"type": "object"}}
_WITH_TOOLS = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": _NOOP}],
    "max_tokens": 1,
}
_PREFIX_CACHING = re.compile(r'^vllm:cache_config_info\{.*\benable_prefix_caching="(\w+)"', re.M)


async def ask_engines(
    engines: Sequence[EngineSettings], tls: ssl.SSLContext | None = None
) -> list[EngineReport]:
    """Ask all engines side by side. `tls` says who is trusted to be an https engine; else whom the
    system trusts."""
    timeout = aiohttp.ClientTimeout(total=ENGINE_SECONDS)
    connector = EngineConnector(tls)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        return await asyncio.gather(*(_ask_engine(session, engine) for engine in engines))


async def _ask_engine(session: aiohttp.ClientSession, settings: EngineSettings) -> EngineReport:
    url = settings.http_url
    try:
        headers = {name.decode(): value.decode() for name, value in settings.authorization()}
        health = await _status(session, f"{url}/health", headers)
        told, metrics = await discover(session, url, headers)
    except (ConfigError, UpstreamError) as e:
        return EngineReport(settings, error=str(e))
    caching = _PREFIX_CACHING.search(metrics)
    return EngineReport(
        settings,
        health=health,
        told=told,
        prefix_caching=caching[1] == "True" if caching else None,
        takes_tools=await _takes_tools(session, url, headers, told),
        offloads=_OFFLOADING.search(metrics) is not None,
        sockets=await asyncio.gather(*(_knock(s) for s in _sockets_of(settings, told))),
    )


async def _takes_tools(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], told: EngineFacts
) -> bool | None:
    """Return whether a chat may have tools, by one that asks for a single token. None: it cannot be
    said."""
    if not told.models:
        return None
    body = msgspec.json.encode({"model": told.models[0].name, **_WITH_TOOLS})
    path = "/v1/chat/completions"
    try:
        status, said = await post(session, url, path, body, headers=headers, seconds=ENGINE_SECONDS)
    except UpstreamError:
        return None
    if status == 200:
        return True
    return False if status == 400 and _NO_TOOLS in said else None


async def _status(session: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> int:
    with upstream_errors(url):
        async with session.get(
            URL(url, encoded=True), headers=headers, allow_redirects=False
        ) as response:
            return response.status


def _sockets_of(settings: EngineSettings, told: EngineFacts) -> list[Socket]:
    """By hand, else as the engine told: what `serve` would use."""
    given = given_source(settings)
    sources = told.sources if given is None else (given,)
    found = []
    for source in sources:
        if source.is_polled:
            continue  # who asks it takes its events away
        found.append(Socket("events", source.endpoint, bind=source.bind))
        if source.replay is not None:
            found.append(Socket("replay", source.replay, bind="*" in source.replay))
    return found


async def _knock(socket: Socket) -> Socket:
    """Connects and waits for a ZMQ peer's first bytes."""
    return socket if socket.bind else replace(socket, error=await _fault(socket.endpoint))


async def _fault(endpoint: str) -> str | None:
    """What is wrong with a ZMQ socket; None if nothing is."""
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            reader, writer = await _connect(endpoint)
            try:
                signature = await reader.readexactly(_SIGNATURE_BYTES)
            finally:
                writer.close()
    except TimeoutError:
        return f"silent for {ENGINE_SECONDS:g} s"
    except asyncio.IncompleteReadError as e:
        signature = e.partial
    except (OSError, ValueError) as e:
        return os.strerror(e.errno) if isinstance(e, OSError) and e.errno else str(e)
    is_zmq = len(signature) == _SIGNATURE_BYTES and (signature[0], signature[-1]) == (0xFF, 0x7F)
    return None if is_zmq else "open, but not a ZMQ socket"


async def _connect(endpoint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, or ValueError for an endpoint that is neither tcp:// nor ipc://."""
    if endpoint.startswith("ipc://"):
        return await asyncio.open_unix_connection(endpoint.removeprefix("ipc://"))
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or not parts.hostname or not parts.port:
        raise ValueError("not tcp://HOST:PORT")
    return await asyncio.open_connection(parts.hostname, parts.port)
