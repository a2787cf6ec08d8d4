"""Checks beyond a key's own type and bounds: keys that go together, and texts of a form."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

from inferway.config.converted import without_password
from inferway.config.engine_settings import UNIX, EngineSettings, KubernetesSettings
from inferway.config.part_settings import MediaSettings, PeerSettings
from inferway.config.settings import ServeSettings
from inferway.errors import ConfigError
from inferway.model import ROLE

# [METHOD ]/path, as `allow_paths` has them
ALLOWED_PATH = re.compile(r"(?:(GET|POST|PUT|PATCH|DELETE) )?(/[^\s?#]*)")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#]+")


def check(settings: ServeSettings) -> None:
    """Check what the types of the settings cannot express. Raises ConfigError."""
    if not settings.engines and not settings.discovery.is_any:
        raise ConfigError(
            "no engine: give at least one URL (inferway serve http://HOST:PORT), or `engines:` in"
            " --config, or a place to find them in (--engines-file, --engines-dns, --engines-ray,"
            " --pool-name)"
        )
    kubernetes = settings.discovery.kubernetes
    if kubernetes is not None:
        _check_kubernetes(kubernetes)
    check_engines(settings.engines)
    for name, model in settings.models.items():
        if "chat_template" in model.chat_template_kwargs:
            raise ConfigError(
                f"models: {name}: chat_template_kwargs: 'chat_template' does not belong there; "
                "give it as chat_template"
            )
    _check_peers(settings.peers)
    _check_media(settings.media)
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("tls_cert and tls_key: give both, or neither")
    if (settings.engine_cert is None) != (settings.engine_key is None):
        raise ConfigError("engine_cert and engine_key: give both, or neither")
    _check_choice(settings)
    _check_surface(settings)
    if settings.records.directory is not None and not settings.records.requests:
        raise ConfigError(
            "records: directory and requests: 0: files are written from the records in memory;"
            " leave one of them out"
        )


_PEER = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):\d{1,5}")


def _check_peers(peers: PeerSettings) -> None:
    for address in peers.addresses:
        port = int(address.rpartition(":")[2]) if _PEER.fullmatch(address) else 0
        if not 0 < port <= 65535:
            raise ConfigError(
                f"peers: addresses (--peers): {address!r}: expected HOST:PORT, where another"
                " gateway tells its peers, or a name behind which all of them are"
            )
    if peers.addresses and peers.port is None and len(_peer_ports(peers)) > 1:
        raise ConfigError(
            f"peers: addresses (--peers) have the ports {', '.join(map(str, _peer_ports(peers)))}:"
            " say with peers.port (--peers-port) at which this gateway tells its peers"
        )
    if peers.redis is not None and peers.addresses:
        raise ConfigError(
            "peers: addresses (--peers) and redis (--peers-redis): gateways send their messages to"
            " each other or through a server; leave one of the two out"
        )
    if peers.port is not None and not peers.addresses:
        raise ConfigError(
            f"peers: port (--peers-port) {peers.port}: no peers are given; give their addresses"
            " (--peers HOST:PORT), or leave it out"
        )


_MEDIA_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)


def _check_media(media: MediaSettings) -> None:
    for domain in media.fetch_domains:
        if not _MEDIA_HOST.fullmatch(domain):
            raise ConfigError(
                f"media: fetch_domains (--media-fetch-domain): {domain!r}: expected the name of a"
                " host, as it is in a URL: images.example.org"
            )
    if media.local_path is not None and not Path(media.local_path).is_dir():
        raise ConfigError(
            f"media: local_path (--media-local-path): {media.local_path!r}: expected a directory"
        )


def peers_port(peers: PeerSettings) -> int:
    """Return the port where this gateway publishes to its peers; the settings are checked."""
    return _peer_ports(peers)[0] if peers.port is None else peers.port


def _peer_ports(peers: PeerSettings) -> list[int]:
    return sorted({int(address.rpartition(":")[2]) for address in peers.addresses})


def _check_choice(settings: ServeSettings) -> None:
    if settings.policy is not None and settings.scheduling is not None:
        raise ConfigError(
            f"policy {settings.policy!r} and scheduling: each says how endpoints are chosen; leave"
            " one of them out"
        )
    if settings.policy == "kv-aware" and not settings.scoring:
        raise ConfigError(
            "policy 'kv-aware' and scoring: false: this policy compares prompts, and without"
            " scoring no prompt is looked at; leave one of them out"
        )


def _check_surface(settings: ServeSettings) -> None:
    for path in settings.allow_paths:
        if not ALLOWED_PATH.fullmatch(path):
            raise ConfigError(
                f"allow_paths: {path!r}: expected a path, '/v2/embed', or 'METHOD /path' with one"
                " of GET, POST, PUT, PATCH, DELETE"
            )
    for origin in settings.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"cors_origins: {origin!r}: expected 'https://HOST' as browsers send it, or '*'"
            )
    if settings.explain_text and settings.admin_key_env is None and settings.api_keys is None:
        raise ConfigError(
            "explain_text: texts of prompts are for admins only, and none is known; give"
            " admin_key_env (--admin-key-env NAME) or api_keys, or leave it out"
        )
    if settings.admin_port and settings.admin_port == settings.port:
        raise ConfigError(f"admin_port: {settings.admin_port} is `port`; leave one of them out")
    if settings.otlp is not None and not settings.otlp.startswith(("http://", "https://")):
        raise ConfigError(
            f"otlp: {without_password(settings.otlp)!r}: expected http://HOST:4318/v1/traces"
        )


_LABEL_NAME = r"(?:[\w.-]+/)?[\w.-]+"
_REQUIREMENT = (
    rf"\s*(?:!\s*{_LABEL_NAME}|{_LABEL_NAME}"
    r"(?:\s*(?:==?|!=)\s*[\w.-]*|\s+(?:not)?in\s*\(\s*[\w.-]*(?:\s*,\s*[\w.-]*)*\s*\))?)\s*"
)
_SELECTOR = re.compile(rf"{_REQUIREMENT}(?:,{_REQUIREMENT})*", re.ASCII)


def _check_kubernetes(kubernetes: KubernetesSettings) -> None:
    selector = kubernetes.selector
    if isinstance(selector, str) and selector and not _SELECTOR.fullmatch(selector):
        raise ConfigError(
            f"discovery: kubernetes: selector (--endpoint-selector) {selector!r}: expected"
            " NAME=VALUE, NAME!=VALUE, NAME in (VALUE, …), NAME notin (VALUE, …), NAME or !NAME,"
            " with commas between them"
        )
    if (kubernetes.pool is None) == (not kubernetes.selector):
        raise ConfigError(
            "discovery: kubernetes: give either pool (--pool-name) or selector"
            " (--endpoint-selector)"
        )
    if bool(kubernetes.selector) != bool(kubernetes.ports):
        raise ConfigError(
            "discovery: kubernetes: selector and ports (--endpoint-target-ports) go together;"
            " a pool brings its own"
        )


def check_engines(engines: list[EngineSettings]) -> None:
    """Check the engines of the settings. Raises ConfigError."""
    for engine in engines:
        _check_url(engine.url)
        _check_sources(engine)
        _check_transfer(engine)
    for label, count in Counter(engine.label for engine in engines).items():
        if count > 1:
            raise ConfigError(f"engine {label!r} is given twice; each needs a name of its own")


def _check_sources(engine: EngineSettings) -> None:
    is_polled = engine.events is not None and engine.events.startswith("http://")
    for key, endpoint in (("events", engine.events), ("replay", engine.replay)):
        schemes = "tcp://, ipc:// or http://" if key == "events" else "tcp:// or ipc://"
        is_known = endpoint is None or endpoint.startswith(("tcp://", "ipc://"))
        if not is_known and not (key == "events" and is_polled):
            raise ConfigError(
                f"engine {engine.label}: {key} {endpoint!r} must start with {schemes}"
            )
    if is_polled and (engine.block_size is None or engine.replay is not None):
        raise ConfigError(
            f"engine {engine.label}: events {engine.events!r} are TensorRT-LLM's, which have no "
            "replay and do not tell the block size: give block_size=N (its tokens_per_block), and "
            "no replay"
        )


_BOOTSTRAPPED = ("mooncake", "sglang")  # both sides meet at the prefill engine's server
_HOST = r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\])"
_HOST_PORT = re.compile(rf"{_HOST}:\d{{1,5}}")
_HOST_ALONE = re.compile(r"[\w.-]+|[0-9A-Fa-f:.]+")


def _check_transfer(engine: EngineSettings) -> None:
    place, label = f"engine {engine.label}", engine.labels.get(ROLE)
    if engine.role is not None and label not in (None, engine.role):
        raise ConfigError(
            f"{place}: role {engine.role!r} and label {ROLE}: {label!r} contradict each other; "
            "leave one of them out"
        )
    bootstrap, connector = engine.kv_bootstrap, engine.kv_connector
    if bootstrap is not None and connector not in _BOOTSTRAPPED:
        raise ConfigError(
            f"{place}: kv_bootstrap {bootstrap!r} with kv_connector {connector!r}: only mooncake "
            "and sglang have a bootstrap server; give one of them as kv_connector, or leave "
            "kv_bootstrap out"
        )
    if bootstrap is None and connector in _BOOTSTRAPPED and engine.role != "decode":
        raise ConfigError(
            f"{place}: kv_connector {connector!r} needs kv_bootstrap=HOST:PORT, the bootstrap "
            "server of the engine, or role=decode if it computes no prompts for others"
        )
    if bootstrap is not None and not _HOST_PORT.fullmatch(bootstrap):
        raise ConfigError(f"{place}: kv_bootstrap {bootstrap!r}: expected HOST:PORT")
    if engine.kv_host is not None and not _HOST_ALONE.fullmatch(engine.kv_host):
        raise ConfigError(f"{place}: kv_host {engine.kv_host!r}: expected a host without a port")


def _check_url(url: str) -> None:
    if url.startswith(UNIX):
        if not url.startswith(f"{UNIX}/") or url.endswith("/"):
            raise ConfigError(f"engine {url!r}: expected unix:/PATH/OF/A/SOCKET")
        return
    shown = without_password(url)
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and parts.port != 0
        is_url = is_http and _HOST_NAME.fullmatch(parts.hostname or "") is not None
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(f"engine {shown!r}: expected http://HOST:PORT or unix:/PATH{_cure(url)}")
    if parts.username:
        raise ConfigError(f"engine {shown!r}: expected no user; give its key as api_key_env")
    if not _PREFIX.fullmatch(parts.path) or parts.query or parts.fragment:
        raise ConfigError(
            f"engine {shown!r}: expected http://HOST:PORT, and no more than a path behind it, to"
            " which /v1/... is added"
        )
    if parts.path.rstrip("/").endswith("/v1"):
        raise ConfigError(f"engine {shown!r}: leave out /v1, which is part of every request's path")


_PREFIX = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[\w.~!$&'()*+,;=:@%-]+)*/?", re.ASCII)
_ADDRESS = re.compile(r"[\w.-]+:\d+")  # HOST:PORT
_HOST_NAME = re.compile(r"[\w.:%~-]+")  # or an address, maybe with a zone


def _cure(text: str) -> str:
    """Return what was probably meant by a text that is no URL."""
    if text.endswith((".yaml", ".yml")):
        return f"; a file of settings is given as --config {text}"
    return f"; did you mean http://{text}?" if _ADDRESS.fullmatch(text) else ""
