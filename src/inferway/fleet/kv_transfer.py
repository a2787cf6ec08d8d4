"""Transfer of an engine's KV blocks to others: what it tells, and what follows from it.

    GET /server_info?config_format=json   of vLLM in its development mode, and of SGLang
    vllm:nixl_… in /metrics               vLLM has a NIXL connector: pull, if nobody says otherwise
    vllm:num_requests_kv_fetch_by_stage   there, too: its kv_role is not kv_producer

With NIXL every engine can do both, request by request, whatever its `kv_role` (vLLM 0.32,
KC/nixl/pull_scheduler.py). But one that is kv_producer frees blocks while a step may still write
them (v1/core/sched/scheduler.py, `defer_block_free`), so blocks of others are not safe in it. Of
Mooncake, a kv_producer asserts that it only gives, and a kv_consumer that it only takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from inferway.config import EngineSettings, unix_path
from inferway.errors import UpstreamError
from inferway.fleet.discovery.sources import resolve
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.fleet.load import samples
from inferway.model import DECODE_ROLES, PREFILL_ROLES, ROLE, Headers, KvConnector, KvTransfer
from inferway_structured.decoding import UNREADABLE

if TYPE_CHECKING:
    from inferway.fleet.engine import Engine
    from inferway.fleet.engine_facts import EngineFacts

log = logging.getLogger("inferway.fleet")

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_SERVER_INFO = "/server_info?config_format=json"
_MAX_INFO_BYTES = 1024 * 1024  # vLLM 0.32 has 25 KB
_MAX_TEXT = 256  # characters of a name
_MAX_LEASE_SECONDS = 86_400.0
_SAYS_WHO_TAKES = (0, 32)  # from this vLLM on; of older ones it is not known
_CONNECTORS = {
    "NixlConnector": KvConnector.NIXL,
    "NixlPullConnector": KvConnector.NIXL,
    "NixlPushConnector": KvConnector.NIXL_PUSH,
    "MooncakeConnector": KvConnector.MOONCAKE,
}
# NIXL's counters are there before the first transfer (0.32, KC/nixl/stats.py), histograms as well.
_NIXL_SAMPLES = ("vllm:nixl_num_kv_expired_reqs_total", "vllm:nixl_bytes_transferred_count")
_TAKING_SAMPLES = ("vllm:num_requests_kv_fetch_by_stage",)
PRODUCER, _CONSUMER, BOTH = "kv_producer", "kv_consumer", "kv_both"


class KvTransferFacts(msgspec.Struct, frozen=True):
    """Facts that an engine tells of its KV connector. None, or empty: it has not told."""

    connector: KvConnector
    gives: bool = True
    takes: bool = True
    kv_role: str = ""  # vLLM's
    lease_seconds: float | None = None
    recomputes: bool | None = None  # itself what it could not load; else the request fails
    dtype: str = ""  # of model and cache
    host: str = ""  # of its side channel
    bootstrap_port: int | None = None
    hosts: tuple[str, ...] = ()  # names and addresses of the host of its URL
    in_full: bool = False  # by /server_info, not by metrics alone


class _Connector(msgspec.Struct):
    kv_connector: str | None = None
    kv_role: str | None = None
    kv_load_failure_policy: str | None = None
    kv_connector_extra_config: _Extra = msgspec.field(default_factory=lambda: _Extra())


class _Extra(msgspec.Struct):
    kv_lease_duration: float | None = None
    connectors: list[_Connector] = []  # of a MultiConnector


class _ModelConfig(msgspec.Struct):
    dtype: str = ""


class _CacheConfig(msgspec.Struct):
    cache_dtype: str = ""


class _VllmConfig(msgspec.Struct):
    model_config: _ModelConfig
    cache_config: _CacheConfig
    kv_transfer_config: _Connector | None = None


class _Environment(msgspec.Struct):
    # vLLM's own defaults
    VLLM_NIXL_SIDE_CHANNEL_HOST: str = "localhost"
    VLLM_MOONCAKE_BOOTSTRAP_PORT: int | None = None


class _ServerInfo(msgspec.Struct):
    """vLLM's page has the first two, SGLang's the others, which are its server's arguments."""

    vllm_config: _VllmConfig | None = None
    vllm_env: _Environment = msgspec.field(default_factory=_Environment)
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: int | None = None
    dtype: str = ""
    kv_cache_dtype: str = ""


async def ask_kv_transfer(
    client: EngineClient,
    url: str,
    headers: Headers,
    metrics: str,
    version: tuple[int, int] | None,
    before: KvTransferFacts | None,
) -> KvTransferFacts | None:
    """Return how the engine at `url` hands blocks to others; None if it does not, or does not tell.
    `metrics` and `version` are what it has told already, the version if it is a vLLM. `before` was
    told by the same engine, and stands while it is too busy to answer. Raises nothing: an engine
    need not have the page."""
    told = None
    try:
        told = parse_server_info(await client.get(url, _SERVER_INFO, headers))
    except StatusError:
        pass
    except UpstreamError:
        if before is not None and before.in_full:
            return before
    if told is None:
        told = parse_metrics(metrics, version)
    if told is None:
        return None
    return msgspec.structs.replace(told, hosts=await names_of(host_of(url)))


def parse_server_info(raw: bytes) -> KvTransferFacts | None:
    """Return what /server_info tells; None if it is another page, or the engine has no connector
    that we know. It has secrets too, which are not read."""
    if len(raw) > _MAX_INFO_BYTES:
        return None
    try:
        info = msgspec.json.decode(raw, type=_ServerInfo, strict=False)
    except UNREADABLE:
        return None
    if info.vllm_config is None:
        return _sglang(info)
    return _vllm(info.vllm_config, info.vllm_env)


def _vllm(config: _VllmConfig, environment: _Environment) -> KvTransferFacts | None:
    whole = config.kv_transfer_config
    if whole is None:
        return None
    every = (whole, *whole.kv_connector_extra_config.connectors)
    part = next((each for each in every if each.kv_connector in _CONNECTORS), None)
    if part is None:
        return None
    connector = _CONNECTORS[part.kv_connector or ""]
    is_mooncake = connector is KvConnector.MOONCAKE
    # of several the part asserts it, the whole frees blocks (the module's docstring)
    role = (part if is_mooncake else whole).kv_role or ""
    lease = part.kv_connector_extra_config.kv_lease_duration
    return KvTransferFacts(
        connector,
        gives=not (is_mooncake and role == _CONSUMER),
        takes=role != PRODUCER,
        kv_role=role if role in (PRODUCER, _CONSUMER, BOTH) else "",
        lease_seconds=lease if lease is not None and 0 < lease < _MAX_LEASE_SECONDS else None,
        recomputes=whole.kv_load_failure_policy == "recompute",
        dtype=_dtype(config.model_config.dtype, config.cache_config.cache_dtype),
        host="" if is_mooncake else environment.VLLM_NIXL_SIDE_CHANNEL_HOST[:_MAX_TEXT],
        bootstrap_port=environment.VLLM_MOONCAKE_BOOTSTRAP_PORT if is_mooncake else None,
        in_full=True,
    )


def _sglang(info: _ServerInfo) -> KvTransferFacts | None:
    mode = info.disaggregation_mode
    if mode not in ("prefill", "decode"):
        return None
    return KvTransferFacts(
        KvConnector.SGLANG,
        gives=mode == "prefill",
        takes=mode == "decode",
        dtype=_dtype(info.dtype, info.kv_cache_dtype),
        bootstrap_port=info.disaggregation_bootstrap_port,
        in_full=True,
    )


def _dtype(model: str, cache: str) -> str:
    if not model:
        return ""
    return f"{model[:_MAX_TEXT].removeprefix('torch.')}, cache {cache[:_MAX_TEXT] or 'auto'}"


def parse_metrics(metrics: str, version: tuple[int, int] | None) -> KvTransferFacts | None:
    """Return what vLLM's metrics tell; None if it has no NIXL connector."""
    if not samples(metrics, _NIXL_SAMPLES, 1):
        return None
    says_who_takes = version is not None and version >= _SAYS_WHO_TAKES
    takes = not says_who_takes or bool(samples(metrics, _TAKING_SAMPLES, 1))
    return KvTransferFacts(KvConnector.NIXL, takes=takes, kv_role="" if takes else PRODUCER)


def host_of(url: str) -> str:
    """Return the host that a URL's sockets are at; a Unix socket is on our own machine."""
    parts = urlsplit(url)
    return "127.0.0.1" if unix_path(parts.netloc) else parts.hostname or ""


async def names_of(host: str) -> tuple[str, ...]:
    """Return a host and the addresses that its name stands for, in an order that stays."""
    if host in LOOPBACK:
        return tuple(sorted(LOOPBACK))
    try:
        addresses = set(await resolve(host))
    except (OSError, UnicodeError):
        return (host,)
    others = sorted(addresses | (LOOPBACK if addresses & LOOPBACK else frozenset()))
    return tuple(dict.fromkeys((host, *others)))


def kv_transfer_of(
    settings: EngineSettings, facts: EngineFacts, lease_seconds: float
) -> KvTransfer | None:
    """Return how an engine hands blocks to others: as given by hand, else as it has told. None: it
    is not known to. `lease_seconds` is for one that does not tell."""
    told, by_hand = facts.kv_transfer, settings.kv_connector
    if told is None and by_hand is None:
        return None
    if told is None or (by_hand is not None and by_hand != told.connector):
        # of another connector than the metrics let one think, no more is known
        connector = KvConnector(by_hand) if by_hand is not None else KvConnector.NIXL
        told = KvTransferFacts(connector, hosts=told.hosts if told is not None else ())
    role = settings.all_labels.get(ROLE)
    bootstrap = settings.kv_bootstrap or ""
    if not bootstrap and told.bootstrap_port is not None:
        bootstrap = _host_port(host_of(settings.http_url), told.bootstrap_port)
    lease = told.lease_seconds
    return KvTransfer(
        told.connector,
        # one that tells more than another is not taken for the same
        group="; ".join(f"{name} {value}" for name, value in must_equal(facts).items()),
        gives=told.gives if role is None else role in PREFILL_ROLES,
        takes=told.takes if role is None else role in DECODE_ROLES,
        lease_seconds=lease_seconds if lease is None else lease,
        bootstrap=bootstrap,
        hosts=_hosts(settings, told),
    )


def warn_of_legs(legs: str, engines: Sequence[Engine]) -> None:
    """Say in the log if the setting `legs` cannot be followed with any of the live engines."""
    live = [engine for engine in engines if engine.healthy]
    if legs == "gateway" and live and not any(engine.kv_transfer for engine in live):
        log.warning(
            "kv_transfer.legs (--prefill-legs) is 'gateway', and no engine is known to hand KV"
            " blocks to others: every prompt is computed where it is answered; start vLLM with"
            " --kv-transfer-config, or give the connector by hand: --engine URL,kv_connector=nixl"
        )


def side_channel_finding(settings: EngineSettings, facts: EngineFacts) -> str | None:
    """Return what is wrong with where an engine's side channel is, and the cure; None if nothing
    is, or nothing is known."""
    told = facts.kv_transfer
    if told is None or not told.host or told.host in _hosts(settings, told):
        return None
    host = host_of(settings.http_url)
    cure = f"start it with VLLM_NIXL_SIDE_CHANNEL_HOST={host}"
    if told.host in LOOPBACK or told.host in ("0.0.0.0", "::", "*"):
        return (
            f"its NIXL side channel is at {told.host!r}, which other machines do not reach: what"
            f" it computes for others is not fetched; {cure}"
        )
    return (
        f"its NIXL side channel is at {told.host!r}, another host than the engine ({host}), and"
        f" what it computes for others is not fetched from there; {cure}, or if it is right, give"
        f" it by hand: --engine URL,kv_host={told.host}"
    )


def _hosts(settings: EngineSettings, told: KvTransferFacts) -> tuple[str, ...]:
    """An engine is trusted for its own host only, whatever it says, and for one given by hand."""
    by_hand = () if settings.kv_host is None else (settings.kv_host,)
    return tuple(dict.fromkeys((*by_hand, host_of(settings.http_url), *told.hosts)))


def must_equal(facts: EngineFacts) -> Mapping[str, str]:
    """Return what must be equal of two engines that hand blocks to each other, by its name; `?` is
    what is not known. A vLLM compares these, and more (KC/nixl/metadata.py)."""
    base = next(iter(facts.base_models), None)
    told = facts.kv_transfer
    return {
        "model": "?" if base is None else base.root or base.name,
        "version": facts.version or "?",
        "dtype": (told.dtype if told is not None else "") or "?",
        "block size": "?" if facts.block_size is None else str(facts.block_size),
    }


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
