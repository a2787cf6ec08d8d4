"""A Serve replica's announcement of its engine -> the engine's settings.

    record_replica_metadata() -> {"engine": "http://10.0.0.5:8000"}        once, of any deployment
    record_routing_stats()    -> {"kv_event_metadata": {"endpoint": …}}    Ray's LLM deployments
    backend_http_endpoint     -> ("10.0.0.5", 30001)                       their direct streaming

`engine` is what `--engine` takes, so it may go on with `,events=…`; it may stand in the routing
stats as well. An engine that is given so is asked itself for the rest. `kv_event_metadata` has the
form that Ray's own KV-aware router reads; an engine that announces this alone is inside its
replica, where no HTTP leads to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from inferway.config import EngineSettings, check_engines, converted, parse_engine
from inferway.errors import ConfigError

ENGINE = "engine"
KV_EVENTS = "kv_event_metadata"


class KvEvents(msgspec.Struct, frozen=True):
    """The KV events of a replica's engine, as Ray's LLM deployments announce them."""

    endpoint: str
    block_size: Annotated[int, msgspec.Meta(gt=0)]
    replay_endpoint: str | None = None
    dp_rank: int = 0  # of the engine, which is one rank of several then


class AnnouncedReplica(msgspec.Struct, frozen=True):
    """A replica, and its engine as far as it has announced one. `engine` is None while it has not,
    and for an engine without HTTP, whose `events` are known then."""

    replica: str  # its unique id, which is the engine's name, too
    engine: EngineSettings | None = None
    events: KvEvents | None = None
    adapters: tuple[str, ...] = ()  # that it has loaded: of Serve's multiplexed models


def announced(
    replica: str,
    metadata: Mapping[str, Any],
    stats: Mapping[str, Any],
    backend: tuple[str, int] | None = None,
    adapters: Sequence[str] = (),
) -> AnnouncedReplica:
    """Return what a replica has announced. Raises ConfigError that names the replica, the place,
    the value, and what is allowed there."""
    place = f"replica {replica}"
    loaded = tuple(sorted(adapters))
    given = metadata.get(ENGINE, stats.get(ENGINE))
    if given is not None:
        engine = _given(given, f"{place}: {ENGINE}", replica)
        return AnnouncedReplica(replica, engine, None, loaded)
    raw = stats.get(KV_EVENTS)
    events = None if raw is None else converted(raw, KvEvents, f"{place}: {KV_EVENTS}")
    if events is None or backend is None:
        return AnnouncedReplica(replica, None, events, loaded)
    host, port = backend
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return AnnouncedReplica(replica, engine_at(url, replica, events), None, loaded)


def engine_at(url: str, name: str, events: KvEvents) -> EngineSettings:
    """Return the settings of the engine at `url` that publishes there. Raises ConfigError."""
    engine = EngineSettings(
        url=url,
        name=name,
        events=events.endpoint,
        replay=events.replay_endpoint,
        block_size=events.block_size,
    )
    check_engines([engine])
    return engine


def _given(given: object, place: str, name: str) -> EngineSettings:
    if not isinstance(given, str):
        raise ConfigError(
            f"{place}: {given!r}: expected a text as --engine takes it: http://HOST:PORT"
        )
    engine = msgspec.structs.replace(parse_engine(given, place), name=name)
    try:
        check_engines([engine])
    except ConfigError as e:
        raise ConfigError(f"{place}: {e}") from e
    return engine
