"""Engines that have encoded a picture are believed to have it until others take its room."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.model import MediaSpan
from inferway.scheduling.expected_ttft.encoder_caches import CACHE_TOKENS, EncoderCaches

A, B = MediaSpan("a", 10, 35), MediaSpan("b", 60, 1000)


@pytest.fixture
def caches() -> EncoderCaches:
    made = EncoderCaches()
    made.grow(3)
    return made


def test_pictures_are_to_be_encoded_where_they_were_not_sent(caches: EncoderCaches) -> None:
    caches.sent(1, [A])

    assert caches.to_encode([A, B]).tolist() == [[35, 1000], [0, 1000], [35, 1000]]


def test_a_picture_that_stands_twice_is_encoded_once(caches: EncoderCaches) -> None:
    again = MediaSpan("a", 200, 35)

    assert caches.to_encode([A, again]).tolist() == [[35, 0]] * 3


def test_pictures_used_least_lately_give_way(caches: EncoderCaches) -> None:
    caches.sent(0, [A, B])
    caches.sent(0, [A])
    caches.sent(0, [MediaSpan("c", 0, CACHE_TOKENS - 40)])

    assert caches.to_encode([A, B])[0].tolist() == [0, 1000]


def test_a_picture_larger_than_the_cache_is_kept_alone(caches: EncoderCaches) -> None:
    large = MediaSpan("large", 0, CACHE_TOKENS + 1)
    caches.sent(0, [A, large])

    assert caches.to_encode([A, large])[0].tolist() == [35, 0]


def test_nothing_is_left_of_a_slot_that_another_engine_takes(caches: EncoderCaches) -> None:
    caches.sent(0, [A, B])
    caches.sent(2, [A])
    caches.forget(0)

    assert caches.to_encode([A, B]).tolist() == [[35, 1000], [35, 1000], [0, 1000]]


def test_memory_is_bounded_whatever_is_sent(caches: EncoderCaches) -> None:
    draw = np.random.default_rng(1)
    for number in range(3_000):
        caches.sent(int(draw.integers(3)), [MediaSpan(str(number), 0, int(draw.integers(1, 900)))])

    kept = [caches.to_encode([MediaSpan(str(n), 0, 1)]) for n in range(3_000)]
    each = (np.array(kept)[:, :, 0] == 0).sum(axis=0)
    assert all(1 <= count <= CACHE_TOKENS for count in each.tolist())
    assert each.sum() < 120
