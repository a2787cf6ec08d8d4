"""Settings that are gone -> what to do instead, which errors say of each that is still given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferway.config.part_settings import IndexSettings, PickerSettings

INDEX_IN_REDIS = (
    "the index in Redis is gone, because each gateway learns the same from the engines' events; "
    "leave it out, and give peers.redis (--peers-redis) if gateways are to share their load through"
    " a Redis"
)
MODE_OVERRIDE = (
    "proxies ignore it beside FULL_DUPLEX_STREAMED, which the picker needs; leave it out, and have"
    " the proxy keep answers to itself with response_body_mode: NONE (docs/endpoint-picker.md)"
)

REMOVED_FLAGS: Mapping[str, str] = {"--index": INDEX_IN_REDIS, "--mode-override": MODE_OVERRIDE}

# By the struct that had the key.
REMOVED_KEYS: Mapping[Any, Mapping[str, str]] = {
    IndexSettings: {"url": INDEX_IN_REDIS, "prefix": INDEX_IN_REDIS, "gateway": INDEX_IN_REDIS},
    PickerSettings: {"mode_override": MODE_OVERRIDE},
}
