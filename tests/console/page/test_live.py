"""Those who look get pictures; those who do not read cost nobody anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from inferway.errors import QueueFullError
from inferway_console.page.live import MOST_READERS, LiveHub
from inferway_console.page.pictures import Picture


class Shown:
    """Makes a numbered picture each time; waits for `go` before each, if there is one."""

    def __init__(self, go: asyncio.Semaphore | None = None) -> None:
        self.number = 0
        self._go = go

    async def take(self) -> Picture:
        if self._go is not None:
            await self._go.acquire()
        self.number += 1
        return Picture({"n": self.number}, {"n": self.number})


class Answer:
    """What one who looks has got."""

    def __init__(self, client: str = "10.0.0.1") -> None:
        self.client = client
        self.events: list[str] = []
        self.ended = False
        self.came = asyncio.Event()

    def write(self, chunk: bytes) -> None:
        self.events.append(chunk.decode())
        self.came.set()

    def end(self, chunk: bytes = b"") -> None:
        del chunk
        self.ended = True

    async def next(self) -> str:
        self.came.clear()
        await asyncio.wait_for(self.came.wait(), 5)
        return self.events[-1]


@pytest.fixture
async def go() -> asyncio.Semaphore:
    return asyncio.Semaphore(0)


@pytest.fixture
async def hub(go: asyncio.Semaphore) -> AsyncIterator[LiveHub]:
    made = LiveHub(Shown(go), interval=0.0, clock=lambda: 0.0)  # type: ignore[arg-type]
    yield made
    await made.close()


async def test_the_first_picture_is_whole_and_the_next_has_changes(
    hub: LiveHub, go: asyncio.Semaphore
) -> None:
    answer = Answer()
    hub.join(answer)
    go.release()
    assert (await answer.next()).startswith("event: whole\n")
    go.release()
    assert (await answer.next()).startswith("event: changes\n")


async def test_who_comes_later_sees_the_last_picture_at_once(
    hub: LiveHub, go: asyncio.Semaphore
) -> None:
    first, second = Answer(), Answer()
    hub.join(first)
    go.release()
    await first.next()
    hub.join(second)

    assert second.events == ['event: whole\ndata: {"n":1}\n\n']


async def test_who_does_not_read_gets_nothing_more_and_then_the_whole(
    hub: LiveHub, go: asyncio.Semaphore
) -> None:
    slow, quick = Answer(), Answer()
    reader = hub.join(slow)
    hub.join(quick)
    go.release()
    await quick.next()
    reader.pause()
    for _ in range(5):
        go.release()
        await quick.next()
    assert len(slow.events) == 1

    reader.resume()
    go.release()
    await quick.next()

    assert slow.events[1:] == ['event: whole\ndata: {"n":7}\n\n']


async def test_nothing_is_made_while_nobody_looks() -> None:
    shown = Shown()
    hub = LiveHub(shown, interval=0.0, clock=lambda: 0.0)  # type: ignore[arg-type]
    answer = Answer()
    reader = hub.join(answer)
    await answer.next()
    reader.client_gone()
    async with asyncio.timeout(5):
        while hub._tasks.running:
            await asyncio.sleep(0)
    made = shown.number
    for _ in range(10):
        await asyncio.sleep(0)

    assert shown.number == made

    again = Answer()
    hub.join(again)
    await again.next()
    assert again.events[0].startswith("event: whole")
    await hub.close()


async def test_only_so_many_look(hub: LiveHub) -> None:
    for _ in range(MOST_READERS):
        hub.check_room("10.0.0.1")
        hub.join(Answer("10.0.0.1"))

    with pytest.raises(QueueFullError, match="pages are open"):
        hub.check_room("10.0.0.1")


async def test_one_client_does_not_keep_others_out(hub: LiveHub) -> None:
    greedy = [Answer(f"2001:db8::{number:x}") for number in range(MOST_READERS)]
    for answer in greedy:
        hub.join(answer)
    others = [Answer("10.0.0.1") for _ in range(MOST_READERS // 2)]
    for answer in others:
        hub.check_room("10.0.0.1")
        hub.join(answer)

    assert len(hub) == MOST_READERS
    assert [answer.ended for answer in greedy] == [
        number >= MOST_READERS // 2 for number in range(MOST_READERS)
    ]
    assert not any(answer.ended for answer in others)
    for client in ("10.0.0.1", "2001:db8::ffff"):
        with pytest.raises(QueueFullError):
            hub.check_room(client)


async def test_closing_ends_all_answers(hub: LiveHub) -> None:
    answers = [Answer(), Answer()]
    for answer in answers:
        hub.join(answer)

    await hub.close()

    assert all(answer.ended for answer in answers)
    assert len(hub) == 0
