"""Memory is bounded: by bytes, by number, by time."""

from __future__ import annotations

from structured.tests.compiling import Clock

from inferway_structured.cache import RecentlyUsed, Remembered


def test_a_cache_never_holds_more_bytes_than_it_may() -> None:
    cache: RecentlyUsed[int, int] = RecentlyUsed(1000)

    for n in range(200):
        cache.put(n % 30, n, n * 7 % 400)
        assert cache.size == sum(cache._kept[key][1] for key in cache._kept) <= 1000


def test_using_it_keeps_it() -> None:
    cache: RecentlyUsed[str, str] = RecentlyUsed(2)
    cache.put("a", "A", 1)
    cache.put("b", "B", 1)
    cache.get("a")

    cache.put("c", "C", 1)

    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]


def test_what_is_put_again_counts_once() -> None:
    cache: RecentlyUsed[str, str] = RecentlyUsed(10)
    cache.put("a", "A", 6)

    cache.put("a", "AA", 7)

    assert (cache.get("a"), cache.size, len(cache)) == ("AA", 7, 1)


def test_what_grew_too_large_is_dropped() -> None:
    cache: RecentlyUsed[str, str] = RecentlyUsed(10)
    cache.put("a", "A", 6)

    cache.put("a", "AA", 11)

    assert (cache.get("a"), cache.size) == (None, 0)


def test_it_is_remembered_until_its_time_ends() -> None:
    clock = Clock()
    remembered: Remembered[str, int] = Remembered(10, 100, clock)
    remembered.put("a", 1)
    clock.now += 9.9

    assert remembered.get("a") == 1
    clock.now += 0.1
    assert remembered.get("a") is None
    assert len(remembered) == 0


def test_of_too_many_the_oldest_is_forgotten() -> None:
    remembered: Remembered[int, int] = Remembered(10, 3, Clock())

    for n in range(5):
        remembered.put(n, n)

    assert [remembered.get(n) for n in range(5)] == [None, None, 2, 3, 4]


def test_what_is_put_again_has_its_time_again() -> None:
    clock = Clock()
    remembered: Remembered[str, int] = Remembered(10, 100, clock)
    remembered.put("a", 1)
    clock.now += 6
    remembered.put("a", 2)
    clock.now += 6

    assert remembered.get("a") == 2
