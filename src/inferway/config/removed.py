"""Settings that are gone -> what to do instead, which errors say of each that is still given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferway.config.part_settings import IndexSettings, PickerSettings
from inferway.config.settings import ServeSettings

INDEX_IN_REDIS = (
    "the index in Redis is gone, because each gateway learns the same from the engines' events; "
    "leave it out, and give peers.redis (--peers-redis) if gateways are to share their load through"
    " a Redis"
)
MODE_OVERRIDE = (
    "proxies ignore it beside FULL_DUPLEX_STREAMED, which the picker needs; leave it out, and have"
    " the proxy keep answers to itself with response_body_mode: NONE (docs/endpoint-picker.md)"
)


FOLLOWERS = (
    "followers are gone, because the hub follows the engines itself; leave it out, and divide "
    "engines that are too many for one hub into cells (docs/scale.md)"
)

REMOVED_FLAGS: Mapping[str, str] = {
    "--followers": FOLLOWERS,
    "--index": INDEX_IN_REDIS,
    "--mode-override": MODE_OVERRIDE,
}

# By the struct that had the key.
REMOVED_KEYS: Mapping[Any, Mapping[str, str]] = {
    IndexSettings: {"url": INDEX_IN_REDIS, "prefix": INDEX_IN_REDIS, "gateway": INDEX_IN_REDIS},
    PickerSettings: {"mode_override": MODE_OVERRIDE},
    ServeSettings: {"followers": FOLLOWERS},
}
