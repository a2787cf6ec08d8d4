"""A worker does what its hub tells over a real socket, and tells what its requests have shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.cluster.gateways import engine

from inferway.cluster.bus.link import Link, pair
from inferway.cluster.bus.messages import (
    AskWorker,
    Begin,
    DecisionTold,
    EngineNoted,
    EnginesTold,
    EngineTold,
    Finding,
    HubTold,
    Judged,
    Message,
    PromptsOffered,
    Report,
    StreamTold,
    Subject,
    Wanted,
    WorkerAnswer,
)
from inferway.cluster.worker import Worker
from inferway.config import RetrySettings, ServeSettings
from inferway.errors import QuarantinedRequestError
from inferway.fleet.event_source import EventSource
from inferway.fleet.shared_columns import shared_memory
from inferway.kv.events.stream import StreamState
from inferway.kv.index.protocol import Clear
from inferway.model import Adapters, Endpoint, Prompt
from inferway.routing.limits.suspension import Suspension

_M = TypeVar("_M")


class Hub:
    """The hub's end of the link to a worker that runs in this process."""

    def __init__(self, folder: Path) -> None:
        self.link = Link()
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.socket = str(folder / "hub.sock")

    async def hears(self, kind: type[_M]) -> _M:
        """Return the next message, which is of that kind."""
        async with asyncio.timeout(20):
            message = await self.said.get()
        assert isinstance(message, kind), message
        return message

    async def asks(self, wanted: Wanted, **about: Any) -> WorkerAnswer:
        self.link.send(AskWorker(wanted, 7, **about))
        answer = await self.hears(WorkerAnswer)
        assert (answer.wanted, answer.number) == (wanted, 7)
        return answer


@asynccontextmanager
async def working(folder: Path, **settings: Any) -> AsyncIterator[tuple[Hub, Worker]]:
    hub, theirs, (ours, other) = Hub(folder), Link(), pair()
    hub.link.listen(hub.said.put_nowait)
    await hub.link.open(ours)
    await theirs.open(other)
    hub.link.send(
        Begin(ServeSettings(engines=[], port=0, **settings), 1, hub.socket, False, publishes=True)
    )
    begin = await theirs.first()
    assert isinstance(begin, Begin)
    hub.link.send(HubTold(is_all=True))  # before the worker listens
    worker = Worker(begin, theirs, shared_memory(2))
    try:
        await worker.start()
        assert (await hub.hears(WorkerAnswer)).wanted is Wanted.START
        yield hub, worker
    finally:
        await worker.close()
        hub.link.close()


def told(name: str, **changed: Any) -> EngineTold:
    """An engine that is well."""
    source = EventSource(0, f"tcp://{name}:5557", None)
    stream = StreamTold(source, 0, StreamState.EXACT, True, 1, 1, 0, None)
    found, endpoint = engine(name), Endpoint(name, f"http://{name}:1", 0)
    how = {"is_drained": False, "outage": None, "suspension": None, **changed}
    return EngineTold(
        *(found.settings, found.facts, True, None, [endpoint], [stream], {}, Adapters()), **how
    )


async def test_a_worker_answers_what_it_is_asked(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, _):
        numbers = await hub.asks(Wanted.NUMBERS)
        snapshots = await hub.asks(Wanted.SNAPSHOTS, since={1: {}, 2: {"records": 5}})
        can = await hub.asks(Wanted.SETTINGS, settings=ServeSettings(engines=[]))
        cannot = await hub.asks(
            Wanted.SETTINGS, settings=ServeSettings(engines=[], api_keys=str(tmp_path / "none"))
        )

        assert await hub.asks(Wanted.ALIVE) == WorkerAnswer(Wanted.ALIVE, 7)
        assert "inferway_http_connections" in {each.name for each in numbers.families}
        assert "traffic" in snapshots.snapshots
        assert can.error is None
        assert "none" in str(cannot.error)


async def test_a_worker_goes_on_with_new_settings(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, worker):
        new = ServeSettings(engines=[], port=0, retries=RetrySettings(attempts=9))
        hub.link.send(Begin(new, 1, hub.socket, False, publishes=True))
        await hub.asks(Wanted.ALIVE)

        assert worker.gateway.reloading.settings.retries.attempts == 9


async def test_engines_come_change_and_go_as_the_hub_tells(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, worker):
        fleet, drained = worker.gateway.fleet, worker.gateway.standing.drained
        hub.link.send(EnginesTold([told("a"), told("b", is_drained=True)], ["a", "b"], []))
        await hub.asks(Wanted.ALIVE)
        assert [each.name for each in fleet.engines] == ["a", "b"]
        assert drained == {"b"}
        assert worker.gateway.standing.suspended == {}
        [stream] = fleet.engines[0].streams
        assert (stream.state, stream.evidence().batches) == (StreamState.EXACT, 1)

        hub.link.send(EnginesTold([told("b", suspension=Suspension.PAUSED)], ["a", "b"], []))
        await hub.asks(Wanted.ALIVE)
        assert worker.gateway.standing.suspended == {"b": Suspension.PAUSED}

        hub.link.send(EnginesTold([], ["a"], []))
        await hub.asks(Wanted.ALIVE)

        assert worker.gateway.standing.suspended == {}
        assert [each.name for each in fleet.engines] == ["a"]
        assert drained == set()


async def test_what_requests_have_shown_of_engines_the_hub_is_told(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, worker):
        hub.link.send(EnginesTold([told("a")], ["a"], []))
        await hub.asks(Wanted.ALIVE)
        [stream] = worker.gateway.fleet.engines[0].streams

        worker.gateway.fleet.watch.suspect("a")
        stream.drops_last_block()
        stream.recheck()
        stream.count_no_copies()
        worker.gateway.index.apply([Clear(0)])

        assert [await hub.hears(EngineNoted) for _ in range(5)] == [
            EngineNoted(Finding.HAS_FAILED, "a"),
            EngineNoted(Finding.DROPS_LAST_BLOCK, "a", 0),
            EngineNoted(Finding.ADDS_NOT_UP, "a", 0),
            EngineNoted(Finding.REPORTS, "a", 0),
            EngineNoted(Finding.LACKS, ops=[Clear(0)]),
        ]


async def test_prompts_and_decisions_go_to_the_hub_while_it_wants_them(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, worker):
        assert not worker.gateway._offers.wanted
        hub.link.send(HubTold(wants_prompts=True))
        await hub.asks(Wanted.ALIVE)
        offers, publishes = worker.gateway._offers, worker.gateway._publishes
        assert offers.wanted
        assert publishes is not None

        prompt = Prompt(np.arange(16, dtype=np.uint32), [5])
        offers.offer({16: [prompt]}, lora="l", lora_path=None, cache_salt=None)
        publishes.publish("kv.chat.m", {"id": "1"})

        offered = (await hub.hears(Report)).of
        assert isinstance(offered, PromptsOffered)
        assert (offered.lora, offered.prompts[16][0].keys) == ("l", [5])
        assert isinstance((await hub.hears(Report)).of, DecisionTold)


async def test_what_engines_were_lost_with_is_refused_by_all_workers(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, one), working(tmp_path) as (of_other, other):
        suspects, others = one.gateway.director.quarantine, other.gateway.director.quarantine
        assert suspects is not None
        assert others is not None
        for name in ("e0", "e1"):
            suspects.losses(b"body", lambda: b"body").lost(name)
        for name in ("e0", "e1"):
            judged = await hub.hears(Judged)
            assert (judged.subject, judged.engine, judged.is_bad) == (Subject.REQUEST, name, True)
            of_other.link.send(judged)
        await of_other.asks(Wanted.ALIVE)

        with pytest.raises(QuarantinedRequestError):
            others.losses(b"body", lambda: b"body")


async def test_engines_that_fail_are_ejected_by_all_workers(tmp_path: Path) -> None:
    async with working(tmp_path) as (hub, worker):
        hub.link.send(EnginesTold([told("a"), told("b")], ["a", "b"], []))
        for _ in range(worker.settings.ejection.failures):
            hub.link.send(Judged(Subject.ENGINE, "a", is_bad=True))
        await hub.asks(Wanted.ALIVE)

        assert worker.gateway.standing.ejected
