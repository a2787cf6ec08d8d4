"""The index has the bounds and weights of the settings."""

from __future__ import annotations

import pytest

from inferway.config import IndexSettings
from inferway.kv.index.build import build_index
from inferway.kv.index.memory import BYTES_PER_BLOCK, MemoryIndex
from inferway.kv.index.protocol import CPU, Store


def test_without_bounds_in_the_settings_it_is_unbounded() -> None:
    index = build_index(IndexSettings(), MemoryIndex)

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
    index = build_index(settings, MemoryIndex)

    assert index.max_blocks == blocks


async def test_tiers_weigh_as_the_settings_say() -> None:
    index = build_index(IndexSettings(tier_weights=(1.0, 0.25)), MemoryIndex)
    index.apply([Store(0, [1, 2], tier=CPU)])

    assert (await index.match([1, 2])).discount == {0: 1.5}
