"""settings -> the index of a hub, and those of its workers: in memory, where each has one and the
hub tells of what changes; or on a server, which the hub writes and all read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inferway.config import IndexSettings
from inferway.kv.index.build import memory_index, shared_index
from inferway.workers.follower import AskedIndex, HeardIndex, Send, WorkerIndex
from inferway.workers.teller import HubIndex, ToldIndex

if TYPE_CHECKING:
    from inferway.workers.redis_indexes import ReadIndex, WrittenIndex


def hub_index(settings: IndexSettings) -> HubIndex:
    """Raises ConfigError."""
    if settings.url is None:
        return memory_index(settings, ToldIndex)
    return shared_index(settings, _written)


def worker_index(settings: IndexSettings, send: Send) -> WorkerIndex:
    """Raises ConfigError. `send`: to the hub."""
    if settings.url is None:
        is_bounded = settings.max_blocks is not None or settings.max_bytes is not None
        kind = AskedIndex if is_bounded else HeardIndex
        heard = kind(weights=settings.tier_weights)
        heard.send = send
        return heard
    # the name in leases is the hub's
    read = shared_index(msgspec.structs.replace(settings, gateway=None), _read)
    read.send = send
    return read


def _written() -> type[WrittenIndex]:
    from inferway.workers.redis_indexes import WrittenIndex  # an extra

    return WrittenIndex


def _read() -> type[ReadIndex]:
    from inferway.workers.redis_indexes import ReadIndex  # an extra

    return ReadIndex
