"""Which index the settings ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inferway.config import IndexSettings
from inferway.errors import ConfigError
from inferway.kv.index.build import build_index
from inferway.kv.index.memory import BYTES_PER_BLOCK, MemoryIndex
from inferway.kv.index.protocol import CPU, Store
from inferway.kv.index.redis import RedisIndex


def test_without_a_url_it_is_in_memory_and_unbounded() -> None:
    index = build_index(IndexSettings())

    assert isinstance(index, MemoryIndex)
    assert index.max_blocks is None


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [
        (IndexSettings(max_blocks=1000), 1000),
        (IndexSettings(max_bytes=1000 * BYTES_PER_BLOCK), 1000),
        (IndexSettings(max_blocks=500, max_bytes=1000 * BYTES_PER_BLOCK), 500),
    ],
)
def test_its_bounds_are_the_settings(settings: IndexSettings, blocks: int) -> None:
    index = build_index(settings)

    assert isinstance(index, MemoryIndex)
    assert index.max_blocks == blocks


async def test_tiers_weigh_as_the_settings_say() -> None:
    index = build_index(IndexSettings(tier_weights=(1.0, 0.25)))
    index.apply([Store(0, [1, 2], tier=CPU)])

    assert (await index.match([1, 2])).discount == {0: 1.5}


def test_with_a_url_it_is_in_that_server() -> None:
    index = build_index(IndexSettings(url="redis://127.0.0.1:1", gateway="here"))

    assert isinstance(index, RedisIndex)
    assert index.gateway == "here"


def test_a_url_that_cannot_hold_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="expected redis://"):
        build_index(IndexSettings(url="http://127.0.0.1:1"))


def test_without_redis_py_the_error_says_how_to_get_it() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from inferway.config import IndexSettings\n"
        "from inferway.errors import ConfigError\n"
        "from inferway.kv.index.build import build_index\n"
        "build_index(IndexSettings())\n"
        "try: build_index(IndexSettings(url='redis://h'))\n"
        "except ConfigError as e: print(e)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == (
        "index: url needs redis-py, which is not installed: pip install 'inferway[redis]'\n"
    )


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:6379", "http://:geheim@h", "redis://:gehei/m@h", "redis://:geheim@h/0?colour=1"],
)
def test_a_url_that_cannot_hold_is_a_config_error_that_does_not_show_it(url: str) -> None:
    with pytest.raises(ConfigError, match="not that of a Redis: expected redis://") as raised:
        RedisIndex(url)

    assert "gehei" not in str(raised.value)
