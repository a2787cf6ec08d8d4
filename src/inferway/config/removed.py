"""Settings that are gone -> what to do instead, which errors say of each that is still given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferway.config.settings import IndexSettings

INDEX_IN_REDIS = (
    "the index in Redis is gone, because each gateway learns the same from the engines' events; "
    "leave it out, and give peers.redis (--peers-redis) if gateways are to share their load through"
    " a Redis"
)

# By the struct that had the key.
REMOVED_KEYS: Mapping[Any, Mapping[str, str]] = {
    IndexSettings: {"url": INDEX_IN_REDIS, "prefix": INDEX_IN_REDIS, "gateway": INDEX_IN_REDIS}
}
