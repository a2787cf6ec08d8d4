"""Asks the engines what they are, whether they take tools, and knocks at their event sockets."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from inferway.config import EngineSettings
from inferway.doctor.facts import EngineReport, Socket, SparseCaches
from inferway.errors import ConfigError, UpstreamError
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.fleet.engine_facts import (
    HEALTH,
    EngineFacts,
    discover,
    given_source,
    number_in,
    parse_cache_labels,
)
from inferway.fleet.zmtp import CONNECT_SECONDS, Owner, ZmtpConnection, ZmtpError, connect
from inferway.model import Headers
from inferway.openai_api.requests import CHAT

ENGINE_SECONDS = 10.0  # an engine that computes on the CPU leaves us waiting for a while

_CONNECTS_AS = {"events": "SUB", "replay": "DEALER"}  # to a publisher's sockets

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


async def ask_engines(
    engines: Sequence[EngineSettings], tls: ssl.SSLContext | None = None
) -> list[EngineReport]:
    """Ask all engines side by side. `tls` says who is trusted to be an https engine; else whom the
    system trusts."""
    async with EngineClient(tls, seconds=ENGINE_SECONDS) as client:
        return await asyncio.gather(*(_ask_engine(client, engine) for engine in engines))


async def _ask_engine(client: EngineClient, settings: EngineSettings) -> EngineReport:
    url = settings.http_url
    try:
        headers = settings.authorization()
        health = await _health(client, url, headers)
        told, metrics = await discover(client, url, headers)
    except (ConfigError, UpstreamError) as e:
        return EngineReport(settings, error=str(e))
    labels = parse_cache_labels(metrics)
    caching = labels.get("enable_prefix_caching")
    return EngineReport(
        settings,
        health=health,
        told=told,
        prefix_caching=caching == "True" if caching else None,
        takes_tools=await _takes_tools(client, url, headers, told),
        offloads=_OFFLOADING.search(metrics) is not None,
        sparse=sparse_caches(labels),
        sockets=await asyncio.gather(*(_knock(s) for s in _sockets_of(settings, told))),
    )


def sparse_caches(labels: Mapping[str, str]) -> SparseCaches | None:
    """Return what an engine's `vllm:cache_config_info` says of caches that do not keep every block;
    None if it has none, or does not tell."""
    has_states = labels.get("mamba_cache_mode", "none") != "none"
    if not has_states and labels.get("sliding_window", "None") == "None":
        return None
    size = max(number_in(labels, name) or 0 for name in ("block_size", "mamba_block_size"))
    if not size:
        return None
    unit = number_in(labels, "cache_hit_alignment_tokens") or number_in(labels, "hash_block_size")
    kept_every = number_in(labels, "prefix_cache_retention_interval")
    return SparseCaches(has_states, size, unit or size, kept_every)


async def _takes_tools(
    client: EngineClient, url: str, headers: Headers, told: EngineFacts
) -> bool | None:
    """Return whether a chat may have tools, by one that asks for a single token. None: it cannot be
    said."""
    if not told.models:
        return None
    body = msgspec.json.encode({"model": told.models[0].name, **_WITH_TOOLS})
    try:
        status, said = await client.post(url, CHAT, body, headers, ENGINE_SECONDS)
    except UpstreamError:
        return None
    if status == 200:
        return True
    return False if status == 400 and _NO_TOOLS in said else None


async def _health(client: EngineClient, url: str, headers: Headers) -> int:
    try:
        await client.get(url, HEALTH, headers)
    except StatusError as e:
        return e.answered
    return 200


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
    """Connect to it as the gateway would, and hang up."""
    return socket if socket.bind else replace(socket, error=await _fault(socket))


async def _fault(socket: Socket) -> str | None:
    """What is wrong with a ZMQ socket; None if nothing is."""
    connection = ZmtpConnection(_CONNECTS_AS[socket.what], Owner())
    try:
        await connect(socket.endpoint, connection)
    except TimeoutError:
        return f"no connection within {CONNECT_SECONDS:g} s"
    except OSError as e:  # a name that nobody knows has a number below 0
        return os.strerror(e.errno) if e.errno and e.errno > 0 else e.strerror or str(e)
    except (ZmtpError, ValueError) as e:
        return str(e)
    finally:
        connection.close()
    return None
