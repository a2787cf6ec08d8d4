"""The first piece of an answer is noted on its way to who reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from inferway_ray.observed import AnswerHead, observe


class Result:
    """An answer as Ray's results are: read by either protocol."""

    def __init__(self, *items: object) -> None:
        self._items = iter(items)

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        return next(self._items)

    def __aiter__(self) -> AsyncIterator[object]:
        return self

    async def __anext__(self) -> object:
        for item in self._items:
            return item
        raise StopAsyncIteration


class Sealed:
    __slots__ = ("items",)


def observed(*items: object) -> tuple[Any, list[int]]:
    result, seen = Result(*items), list[int]()
    observe(result, seen.append)
    return result, seen


async def test_the_first_piece_is_told_once_and_all_pass() -> None:
    result, seen = observed(b"a", b"b")

    assert [item async for item in result] == [b"a", b"b"]
    assert seen == [200]
    assert isinstance(result, Result)
    assert type(result).__name__ == "Result"


def test_a_reader_without_a_loop_is_told_too() -> None:
    result, seen = observed(b"a", b"b")

    assert list(result) == [b"a", b"b"]
    assert seen == [200]


async def test_the_head_is_no_piece_and_has_the_status() -> None:
    result, seen = observed(AnswerHead(503), b"a")

    assert await anext(result) == AnswerHead(503)
    assert seen == []
    await anext(result)

    assert seen == [503]


async def test_an_empty_answer_tells_nothing() -> None:
    result, seen = observed(AnswerHead(200))

    assert len([item async for item in result]) == 1
    assert seen == []


def test_what_cannot_be_observed_is_left_alone() -> None:
    sealed = Sealed()

    observe(sealed, lambda _: None)

    assert type(sealed) is Sealed
