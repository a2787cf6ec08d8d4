"""Messages between two processes: all of them, in order, without holding up anybody for long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.cluster.bus import link as module
from inferway.cluster.bus.link import Link, pair
from inferway.cluster.bus.messages import AskWorker, IndexChanged, Message, Wanted
from inferway.cluster.bus.peer_messages import PeerTold
from inferway.kv.index.changes import BlockChange, IndexChanges


class End:
    """One end, and what it has heard."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.is_lost = asyncio.Event()
        self.news = asyncio.Event()
        self.link = Link()
        self.link.listen(self._hear)
        self.link.when_lost(self.is_lost.set)

    def _hear(self, message: Message) -> None:
        self.heard.append(message)
        self.news.set()

    async def hears(self, number: int) -> None:
        async with asyncio.timeout(20):
            while len(self.heard) < number:
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def ends() -> AsyncIterator[tuple[End, End]]:
    sockets = pair()
    made = End(), End()
    for end, taken in zip(made, sockets, strict=True):
        await end.link.open(taken)
    yield made
    for end in made:
        end.link.close()


async def test_what_is_sent_before_the_socket_is_there_is_sent_then() -> None:
    sockets = pair()
    one, other = End(), End()
    one.link.send(AskWorker(Wanted.ALIVE))
    await one.link.open(sockets[0])
    await other.link.open(sockets[1])

    await other.hears(1)

    one.link.close()
    other.link.close()


async def test_what_comes_before_somebody_listens_is_heard_then() -> None:
    sockets = pair()
    one, other, heard = End(), Link(), list[Message]()
    await one.link.open(sockets[0])
    await other.open(sockets[1])
    for number in range(3):
        one.link.send(PeerTold(number))
    one.link.close()

    assert await other.first() == PeerTold(0)
    ended = asyncio.Event()
    other.when_lost(ended.set)
    async with asyncio.timeout(20):
        await ended.wait()
    other.listen(heard.append)
    other.when_lost(lambda: heard.append(PeerTold(9)))

    assert heard == [PeerTold(1), PeerTold(2), PeerTold(9)]


async def test_there_is_no_first_message_of_an_end_that_has_gone() -> None:
    sockets = pair()
    link = Link()
    await link.open(sockets[0])
    sockets[1].close()

    async with asyncio.timeout(20):
        assert await link.first() is None


async def test_all_that_was_said_is_heard_before_the_loss(ends: tuple[End, End]) -> None:
    one, other = ends
    for number in range(500):
        one.link.send(PeerTold(number))
    one.link.close()

    async with asyncio.timeout(20):
        await other.is_lost.wait()

    assert len(other.heard) == 500
    other.link.send(AskWorker(Wanted.ALIVE))  # nothing happens


async def test_closing_is_no_loss(ends: tuple[End, End]) -> None:
    one, other = ends
    one.link.close()
    async with asyncio.timeout(20):
        await other.is_lost.wait()

    assert not one.is_lost.is_set()


async def test_what_comes_after_closing_is_not_heard() -> None:
    """As from a worker that counts as ended: nobody would take back what it has begun."""
    ours, theirs = pair()
    one, heard = End(), list[Message]()

    def hear(message: Message) -> None:
        heard.append(message)
        closed.close()

    closed = Link()
    closed.listen(hear)
    await one.link.open(ours)
    await closed.open(theirs)
    for number in range(100):
        one.link.send(PeerTold(number))
    async with asyncio.timeout(20):
        await one.is_lost.wait()

    assert heard == [PeerTold(0)]
    one.link.close()


async def test_an_end_that_does_not_read_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING_BYTES", 1_000_000)
    ours, theirs = pair()
    one = End()
    await one.link.open(ours)
    assert not one.link.is_stuck

    for _ in range(100):
        one.link.send(changed(range(2**60, 2**60 + 10_000)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert one.link.is_stuck
    theirs.close()
    one.link.close()


def changed(keys: Iterable[int]) -> IndexChanged:
    return IndexChanged(IndexChanges([BlockChange(1, list(keys), 1)]))


@given(
    batches=st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=9), max_size=5),
    cuts=st.lists(st.integers(1, 50), max_size=20),
)
@settings(deadline=None)
def test_bytes_may_come_in_any_pieces(batches: list[list[int]], cuts: list[int]) -> None:
    async def run() -> None:
        ours, theirs = pair()
        one = End()
        await one.link.open(ours)
        sent: list[Message] = [changed(keys) for keys in batches]
        for message in sent:
            one.link.send(message)
        one.link.close()
        raw = await asyncio.get_running_loop().run_in_executor(None, _all_of, theirs)
        other = End()
        for cut in [*cuts, len(raw)]:
            other.link.data_received(raw[:cut])
            raw = raw[cut:]
        if sent:
            await other.hears(len(sent))
        assert other.heard == sent

    asyncio.run(run())


def _all_of(end: socket.socket) -> bytes:
    end.setblocking(True)
    with end:
        return b"".join(iter(lambda: end.recv(65536), b""))
