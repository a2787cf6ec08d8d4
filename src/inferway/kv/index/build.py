"""settings -> the index: in this process, or in a server that gateways share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from inferway.config import IndexSettings
from inferway.errors import ConfigError
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Index

if TYPE_CHECKING:
    from inferway.kv.index.redis import RedisIndex

_IndexT = TypeVar("_IndexT", bound=MemoryIndex)
_SharedT = TypeVar("_SharedT", bound="RedisIndex")


def memory_index(settings: IndexSettings, kind: type[_IndexT]) -> _IndexT:
    """Return an index of this process alone, as the settings have it, of this kind."""
    return kind(
        weights=settings.tier_weights,
        max_blocks=settings.max_blocks,
        max_bytes=settings.max_bytes,
    )


def build_index(settings: IndexSettings) -> Index:
    """Return the index that the settings ask for; it is not started yet. Raises ConfigError for a
    URL that cannot hold, or if redis-py is missing."""
    if settings.url is None:
        return memory_index(settings, MemoryIndex)
    return shared_index(settings, _redis_index)


def shared_index(settings: IndexSettings, kind: Callable[[], type[_SharedT]]) -> _SharedT:
    """Return an index on the server that the settings name, of the kind that `kind` imports; it is
    not started yet. Raises ConfigError as `build_index` does."""
    assert settings.url is not None
    try:
        made = kind()
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("redis"):
            raise
        raise ConfigError(
            "index: url needs redis-py, which is not installed: pip install 'inferway[redis]'"
        ) from e
    return made(
        settings.url,
        prefix=settings.prefix,
        gateway=settings.gateway,
        tier_weights=settings.tier_weights,
    )


def _redis_index() -> type[RedisIndex]:
    from inferway.kv.index.redis import RedisIndex  # an extra: not everybody has it

    return RedisIndex
