"""A hub's index and its workers', in one process: between them are the parts that tell, real socket
pairs, and the parts that hear. Workers come and go while engines and network do what they do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.chaos.judge import Verdict, WrongBelief, judge
from tests.chaos.world import World

from inferway.cluster.bus.link import Link, pair
from inferway.cluster.bus.messages import AskWorker, IndexChanged, Message, Wanted
from inferway.cluster.hub_watch import HeardIndex, HubWatch
from inferway.cluster.teller import FleetTeller, ToldIndex
from inferway.config import ServeSettings
from inferway.fleet.fleet import Fleet
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Index
from inferway.kv.index.reading import HeldBlocks

WORKERS = 2
COMES, GOES = 0.05, 0.03  # shares of turns
MOST_HEARINGS = 6  # of what was told, in a turn
SECONDS = 60.0  # in which all must have been heard


class SmallPieces(ToldIndex):
    """Its picture takes many pieces, however little there is."""

    piece = 1

    def picture(self) -> Iterator[IndexChanges]:
        return self._log.picture(self.piece, self.piece)


class Worker:
    """What one knows, and the link that it knows it by."""

    def __init__(self) -> None:
        self.index = HeardIndex(self._never)
        self.is_told = asyncio.Event()  # all that there was when it came
        self.answered = 0
        self._watch = HubWatch(*(_fleet(self.index), self.index, self._never, _nothing, _nothing))
        self._end, self.hub = Link(), Link()
        self._end.listen(self._hear)
        self.hub.listen(self._answers)

    async def open(self) -> None:
        ours, theirs = pair()
        await self.hub.open(ours)
        await self._end.open(theirs)

    def close(self) -> None:
        self.hub.close()
        self._end.close()

    async def has_heard(self) -> None:
        """Return when it has heard all that was told before."""
        before = self.answered
        self.hub.send(AskWorker(Wanted.ALIVE))
        while self.answered == before:
            await asyncio.sleep(0)

    def _hear(self, message: Message) -> None:
        match message:
            case IndexChanged():
                self._watch.index_changed(message)
            case AskWorker():
                self._end.send(message)

    def _answers(self, _: Message) -> None:
        self.answered += 1

    def _never(self, message: Message) -> None:
        raise AssertionError(f"an index that only hears says {message}")


class Hub:
    """The `index` that the events go to, and the workers that are told."""

    def __init__(self, index: SmallPieces, rng: Random) -> None:
        self.index = index
        self.workers: list[Worker] = []
        self._rng = rng
        self._teller = FleetTeller(_fleet(index), index, lambda _: False, self._tell)
        self._tellings: dict[Worker, asyncio.Task[None]] = {}

    async def turn(self) -> None:
        """Workers hear a part of what was told; one may come, or be killed."""
        rng = self._rng
        if not self.workers or rng.random() < COMES:
            await self.come()
        if len(self.workers) > WORKERS or rng.random() < GOES:
            self._go(rng.choice(self.workers))
        for _ in range(rng.randint(0, MOST_HEARINGS)):
            await asyncio.sleep(0)

    async def come(self) -> None:
        worker = Worker()
        await worker.open()
        self.index.piece = self._rng.randint(1, 20)
        self.workers.append(worker)
        self._tellings[worker] = asyncio.ensure_future(self._teller.tell_held(worker.hub))

    async def settled(self) -> None:
        """Return when all workers have heard all."""
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*self._tellings.values())
            for worker in self.workers:
                await worker.has_heard()

    def close(self) -> None:
        for worker in list(self.workers):
            self._go(worker)
        self._teller.close()

    def _go(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._tellings.pop(worker).cancel()
        worker.close()

    def _tell(self, message: Message) -> None:
        for worker in self.workers:
            worker.hub.send(message)


class Workers:
    """Makes the index of each gateway that a world has, one after the other: a hub's."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._hub: Hub | None = None

    def make_index(self, max_blocks: int | None) -> MemoryIndex:
        self.close()
        index = SmallPieces(max_blocks=max_blocks)
        self._hub = Hub(index, self._rng)
        return index

    async def turn(self) -> None:
        assert self._hub is not None
        await self._hub.turn()

    async def judge(self, world: World) -> Sequence[Verdict]:
        """As `judge.judge`, of the workers' indexes. Raises WrongBelief, also if one has not what
        the hub has."""
        hub = self._hub
        assert hub is not None
        await hub.come()
        await hub.settled()
        held = contents(hub.index)
        for worker in hub.workers:
            await judge(world, worker.index)
            heard = contents(worker.index)
            if heard != held:
                raise WrongBelief(
                    f"a worker has {len(heard - held)} blocks that its hub has not,"
                    f" and lacks {len(held - heard)}"
                )
        return await judge(world)

    def close(self) -> None:
        if self._hub is not None:
            self._hub.close()


def contents(index: HeldBlocks) -> set[tuple[Any, ...]]:
    """All that an index holds: each block of each holder, and each layout."""
    states, holders = index._states, index._holders
    found: set[tuple[Any, ...]] = {
        (holder.id, holder.layout) for holder in holders.of(holders.laid_out)
    }
    places = [item for shard in index._shards.dicts() for item in shard.items()]
    return found | {
        (holder.id, tier, group, key)
        for key, place in places
        for tier, group, mask in states.places(index._column[place])
        for holder in holders.of(mask)
    }


def _fleet(index: Index) -> Fleet:
    """Without an engine."""
    return Fleet(ServeSettings(engines=[]), index, _none, _none)


def _none(*_: object) -> Any:
    raise AssertionError("there is no engine")


def _nothing(*_: object) -> None:
    """Nobody waits for it."""
