"""A subscriber against real ZMQ sockets that speak as vLLM's publisher does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio
from tests.upstream.engines import in_loop, wait_until

from inferway.fleet.event_source import EventSource
from inferway.fleet.subscriber import OnBatch, Subscription
from inferway.fleet.zmq_subscriber import ReplayLimits, ZmqSubscriber
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.events.event import Batch, BlockStored
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex

HOLDER = 2
SIZE = 2
QUICK = ReplayLimits(idle=0.1, total=5.0, retry=0.01)
END = b"\xff" * 8


def batch(seq: int, *events: object) -> tuple[bytes, bytes, bytes]:
    """Topic, number and payload."""
    return b"kv@topic", seq.to_bytes(8, "big"), msgspec.msgpack.encode([1.5, list(events), 0])


class Publisher:
    """vLLM's ZmqEventPublisher as seen from outside (0.32, distributed/kv_events.py).

    XPUB instead of PUB: it is the same on the wire and tells when somebody has subscribed.
    """

    def __init__(self, *, connect: str | None = None) -> None:
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        self.with_topic = True
        self.with_end = True
        self.requests: list[int] = []
        self.dropped: set[int] = set()  # sequence numbers left out of replays, once
        self.batches: list[tuple[int, bytes]] = []
        if connect is None:
            port = self.pub.bind_to_random_port("tcp://127.0.0.1")
            self.endpoint = f"tcp://127.0.0.1:{port}"
        else:
            self.pub.connect(connect)
            self.endpoint = connect
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.replay_endpoint = f"tcp://127.0.0.1:{port}"
        self.serving = asyncio.ensure_future(self.serve())

    @property
    def source(self) -> EventSource:
        return EventSource(0, self.endpoint, self.replay_endpoint)

    async def subscribed(self) -> None:
        assert await self.pub.recv() == b"\x01"

    async def publish(self, *events: object, lost: bool = False) -> None:
        topic, seq, payload = batch(len(self.batches), *events)
        self.batches.append((len(self.batches), payload))
        if not lost:
            await self.pub.send_multipart([topic, seq, payload])

    async def serve(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            self.requests.append(int.from_bytes(start, "big"))
            topic = [b"kv@topic"] if self.with_topic else []
            for seq, payload in self.batches[self.requests[-1] :]:
                if seq not in self.dropped:
                    frames = [client, b"", *topic, seq.to_bytes(8, "big"), payload]
                    await self.router.send_multipart(frames)
            self.dropped.clear()
            if self.with_end:
                await self.router.send_multipart([client, b"", *topic, END, b""])

    async def served(self) -> None:
        """Whatever was asked for until now has been answered."""
        asker = self.context.socket(zmq.DEALER)
        asker.connect(self.replay_endpoint)
        await asker.send_multipart([b"", END])
        while (await asker.recv_multipart())[-2] != END:
            pass
        self.requests.remove(int.from_bytes(END, "big"))
        asker.close(linger=0)

    async def restart(self) -> None:
        """A new process on the same ports: its numbers start at 0, its cache is empty."""
        self.batches.clear()
        self.pub.close(linger=0)
        self.pub = self.context.socket(zmq.XPUB)
        await wait_until(self.bound_again)

    def bound_again(self) -> bool:
        """A socket is closed in the background: its port is free a little later."""
        try:
            self.pub.bind(self.endpoint)
        except zmq.ZMQError:
            return False
        return True

    def restart_behind(self, *left: object) -> None:
        """While the event loop is held: the process publishes a batch of each of `left`, dies, and
        another one with the same batches before these is there when this returns."""
        for seq, event in enumerate(left, len(self.batches)):
            zmq.Socket.shadow(self.pub).send_multipart(batch(seq, event))
        self.pub.close(linger=1000)
        self.pub = self.context.socket(zmq.XPUB)
        while not self.bound_again():
            pass

    async def close(self) -> None:
        self.serving.cancel()
        await asyncio.gather(self.serving, return_exceptions=True)
        self.context.destroy(linger=0)


def stored(first: int, last: int) -> dict[str, Any]:
    """Blocks first..last-1 of the prompt 0, 1, 2, ...; a block's hash is 1000 + its number."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(1000 + first, 1000 + last)),
        "parent_block_hash": 999 + first if first else None,
        "token_ids": list(range(first * SIZE, last * SIZE)),
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }


def removed(number: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [1000 + number], "medium": "GPU"}


def matched(index: MemoryIndex) -> int:
    keys = BlockHasher(SIZE).keys(np.arange(200, dtype=np.uint32))
    return index.match_now(keys).blocks.get(HOLDER, 0)


def subscriber(
    source: EventSource, index: MemoryIndex, on_batch: OnBatch | None = None, **options: Any
) -> ZmqSubscriber:
    subscription = Subscription(source, HOLDER, SIZE, index, name="e1", on_batch=on_batch)
    return ZmqSubscriber(subscription, **{"limits": QUICK, "audit_seconds": None, **options})


Setup = tuple[Publisher, ZmqSubscriber, MemoryIndex]


@asynccontextmanager
async def running(
    *, replay: bool = True, on_told: Callable[[], None] | None = None, **options: Any
) -> AsyncIterator[Setup]:
    """A publisher and a subscriber to it, linked."""
    index, publisher = MemoryIndex(), Publisher()
    source = EventSource(0, publisher.endpoint, publisher.replay_endpoint if replay else None)
    follower = subscriber(source, index, **options)
    follower.start(on_told=on_told)
    try:
        await publisher.subscribed()
        yield publisher, follower, index
    finally:
        await follower.close()
        await publisher.close()


async def settled(follower: ZmqSubscriber, state: StreamState) -> None:
    await wait_until(lambda: follower.state is state)


@in_loop
async def test_live_events_reach_the_index() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 2))
        await publisher.publish(stored(2, 5), removed(4))
        await wait_until(lambda: matched(index) == 4)
        await settled(follower, StreamState.EXACT)


@in_loop
async def test_who_wants_to_know_is_told_that_batches_have_come() -> None:
    told = asyncio.Event()
    async with running(on_told=told.set) as (publisher, follower, _):
        assert not told.is_set()
        await publisher.publish(stored(0, 2))
        await told.wait()
        assert follower.last_batch_at is not None


async def test_it_runs_on_the_standard_event_loop_too() -> None:
    async with running() as (publisher, _, index):
        await publisher.publish(stored(0, 2))
        await wait_until(lambda: matched(index) == 2)


@pytest.mark.parametrize("with_topic", [True, False])
@in_loop
async def test_what_was_published_before_we_came_is_replayed(with_topic: bool) -> None:
    """Answers of five frames as of vLLM since #45177, and of four as before it."""

    publisher, index = Publisher(), MemoryIndex()
    publisher.with_topic = with_topic
    for block in range(5):
        await publisher.publish(stored(block, block + 1), lost=True)
    follower = subscriber(publisher.source, index)
    follower.start()
    await settled(follower, StreamState.EXACT)

    assert matched(index) == 5
    assert publisher.requests == [0]

    await follower.close()
    await publisher.close()


@in_loop
async def test_a_gap_is_repaired() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 1))
        await settled(follower, StreamState.EXACT)
        await publisher.publish(stored(1, 2), lost=True)
        await publisher.publish(stored(2, 3))
        await wait_until(lambda: matched(index) == 3)
        await settled(follower, StreamState.EXACT)


@in_loop
async def test_a_hole_inside_a_replay_is_repaired() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 1))
        await settled(follower, StreamState.EXACT)
        publisher.dropped = {2}
        for block in (1, 2):
            await publisher.publish(stored(block, block + 1), lost=True)
        await publisher.publish(stored(3, 4))
        await wait_until(lambda: matched(index) == 4)
        await settled(follower, StreamState.EXACT)


@in_loop
async def test_a_replay_without_an_end_comes_to_an_end() -> None:
    async with running() as (publisher, follower, index):
        publisher.with_end = False
        await publisher.publish(stored(0, 3))
        await wait_until(lambda: matched(index) == 3)
        await settled(follower, StreamState.EXACT)


@in_loop
async def test_a_dead_replay_socket_leaves_the_live_events() -> None:
    async with running() as (publisher, follower, index):
        publisher.serving.cancel()
        publisher.router.close(linger=0)
        follower.resync()
        await publisher.publish(stored(0, 3))
        await wait_until(lambda: matched(index) == 3)


@in_loop
async def test_a_restarted_engine_is_forgotten_and_learnt_anew() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 3))
        await wait_until(lambda: matched(index) == 3)
        await publisher.restart()
        await publisher.publish(stored(0, 1), lost=True)
        await wait_until(lambda: matched(index) == 1)
        await settled(follower, StreamState.EXACT)

        assert follower.stream.stats.restarts == 1


@in_loop
async def test_an_engine_that_is_gone_is_stale() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 3))
        await settled(follower, StreamState.EXACT)
        publisher.pub.close(linger=0)
        await settled(follower, StreamState.STALE)

        assert matched(index) == 3


@in_loop
async def test_what_came_before_a_link_was_lost_counts_and_proves_nothing_more() -> None:
    """The replay socket lives: what it brings is not all that the engine will publish before the
    link is back."""

    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 3))
        await settled(follower, StreamState.EXACT)
        num_asked = len(publisher.requests)
        await publisher.publish(stored(3, 4))
        publisher.pub.close(linger=1000)
        await settled(follower, StreamState.STALE)
        await publisher.publish(removed(2), lost=True)
        follower.resync()
        await publisher.served()

        assert len(publisher.requests) == num_asked
        assert follower.state is StreamState.STALE
        assert matched(index) == 4


@in_loop
async def test_what_another_life_of_the_engine_has_left_is_not_believed() -> None:
    """The new one has begun with the same batch, and what the old one has published after it comes
    when the new one is there already."""

    batches: list[Batch] = []

    def on_batch(_: int, batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 1:
            publisher.restart_behind(stored(3, 4), stored(4, 5))

    publisher, index = Publisher(), MemoryIndex()
    follower = subscriber(publisher.source, index, on_batch=on_batch)
    follower.start()
    await publisher.subscribed()
    await settled(follower, StreamState.EXACT)
    await publisher.publish(stored(0, 3))
    await wait_until(lambda: len(publisher.requests) >= 2)
    await settled(follower, StreamState.EXACT)

    assert matched(index) == 3
    assert follower.last_seq == 0

    await follower.close()
    await publisher.close()


@in_loop
async def test_a_replay_alone_makes_nobody_exact() -> None:
    """The port of events cannot be reached, that of replays can."""

    publisher, index = Publisher(), MemoryIndex()
    await publisher.publish(stored(0, 3), lost=True)
    source = EventSource(0, "tcp://127.0.0.1:1", publisher.replay_endpoint)
    follower = subscriber(source, index)
    follower.start()
    follower.resync()  # as when the engine's HTTP server answers
    await publisher.served()

    assert follower.state is StreamState.BLIND
    assert follower._replay is None, "none is asked for; the request itself would come later"

    await follower.close()
    await publisher.close()


@in_loop
async def test_without_a_replay_socket_a_gap_is_forgotten() -> None:
    async with running(replay=False) as (publisher, follower, index):
        await publisher.publish(stored(0, 3))
        await settled(follower, StreamState.EXACT)
        await publisher.publish(removed(2), lost=True)
        await publisher.publish(stored(0, 1))
        await settled(follower, StreamState.PARTIAL)
        await wait_until(lambda: matched(index) == 1)  # heavy batches are applied in slices


@in_loop
async def test_an_engine_that_connects_finds_us_bound() -> None:
    index = MemoryIndex()
    source = EventSource(0, "tcp://127.0.0.1:*", None, bind=True)
    follower = subscriber(source, index)
    follower.start()
    publisher = Publisher(connect=follower.endpoint)
    await publisher.subscribed()
    await publisher.publish(stored(0, 2))
    await wait_until(lambda: matched(index) == 2)
    await follower.close()
    await publisher.close()


@in_loop
async def test_a_port_that_is_taken_leaves_us_blind_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    publisher = Publisher()
    source = EventSource(0, publisher.endpoint, None, bind=True)
    follower = subscriber(source, MemoryIndex())
    follower.start()

    assert follower.state is StreamState.BLIND

    await follower.close()
    await publisher.close()

    assert "engine e1: the gateway cannot bind tcp://127.0.0.1:" in caplog.text


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("tcp://engine", "cannot connect to tcp://engine, where its KV events come from: expected"),
        ("tcp://nobody.invalid:1", "cannot be read at tcp://nobody.invalid:1: [Errno -"),
    ],
)
@in_loop
async def test_an_address_that_cannot_be_used_leaves_us_blind_and_says_so(
    endpoint: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    follower = subscriber(EventSource(0, endpoint, None), MemoryIndex())
    follower.start()
    await wait_until(lambda: bool(caplog.messages))

    assert follower.state is StreamState.BLIND

    await follower.close()

    assert says in caplog.text


@in_loop
async def test_a_socket_that_is_no_publisher_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The two ports of an engine are easily taken for each other."""

    caplog.set_level(logging.WARNING)
    publisher = Publisher()
    source = EventSource(0, publisher.replay_endpoint, None)
    follower = subscriber(source, MemoryIndex(), answer_seconds=2.0)
    follower.start()
    await wait_until(lambda: bool(caplog.messages))
    assert follower.state is StreamState.BLIND
    await wait_until(lambda: len(follower._tasks.running) == 2)  # nobody waits for it any more

    await follower.close()
    await publisher.close()

    [message] = caplog.messages
    assert message.startswith("engine e1: its KV events cannot be read at tcp://127.0.0.1:")
    assert message.endswith("what answers is a ROUTER socket; expected PUB or XPUB")


@in_loop
async def test_an_engine_that_connects_again_is_another_life_of_it() -> None:
    """Its old connection may not have ended yet: nothing that comes by it is believed then."""

    index, source = MemoryIndex(), EventSource(0, "tcp://127.0.0.1:*", None, bind=True)
    follower = subscriber(source, index)
    follower.start()
    old = Publisher(connect=follower.endpoint)
    await old.subscribed()
    await old.publish(stored(0, 2))
    await wait_until(lambda: matched(index) == 2)
    new = Publisher(connect=follower.endpoint)
    await new.subscribed()
    await old.publish(stored(2, 4))
    await new.publish(stored(0, 1))
    await wait_until(lambda: matched(index) == 1)
    await old.close()
    await new.publish(stored(1, 3))
    await wait_until(lambda: matched(index) == 3)

    assert follower.state is StreamState.EXACT

    await follower.close()
    await new.close()


@asynccontextmanager
async def bound_with(*, replay: bool) -> AsyncIterator[Setup]:
    """A subscriber that is bound, and an engine that has connected to it and stored two blocks."""
    index, replays = MemoryIndex(), Publisher()
    at = replays.replay_endpoint if replay else None
    follower = subscriber(EventSource(0, "tcp://127.0.0.1:*", at, bind=True), index)
    follower.start()
    publisher = Publisher(connect=follower.endpoint)
    publisher.batches = replays.batches  # that the replay socket answers with
    try:
        await publisher.subscribed()
        await publisher.publish(stored(0, 2))
        await wait_until(lambda: matched(index) == 2)
        await settled(follower, StreamState.EXACT)
        yield publisher, follower, index
    finally:
        await follower.close()
        await publisher.close()
        await replays.close()


@pytest.mark.parametrize("replay", [True, False])
@in_loop
async def test_a_silent_stranger_does_not_take_the_place_of_an_engine_that_has_connected(
    replay: bool,
) -> None:
    async with bound_with(replay=replay) as (publisher, follower, index):
        stranger = Publisher(connect=follower.endpoint)
        await stranger.subscribed()
        await publisher.publish(stored(2, 4))
        await wait_until(lambda: matched(index) == 4)
        await settled(follower, StreamState.EXACT)

        await stranger.close()
        await publisher.publish(stored(4, 5))
        await wait_until(lambda: matched(index) == 5)
        await settled(follower, StreamState.EXACT)


@in_loop
async def test_an_engine_takes_the_place_of_a_silent_stranger_that_was_there_before() -> None:
    index = MemoryIndex()
    follower = subscriber(EventSource(0, "tcp://127.0.0.1:*", None, bind=True), index)
    follower.start()
    stranger = Publisher(connect=follower.endpoint)
    await stranger.subscribed()
    engine = Publisher(connect=follower.endpoint)
    await engine.subscribed()
    await engine.publish(stored(0, 2))
    await wait_until(lambda: matched(index) == 2)
    await settled(follower, StreamState.EXACT)

    await follower.close()
    await engine.close()
    await stranger.close()


@pytest.mark.parametrize("replay", [True, False])
@in_loop
async def test_where_two_publish_as_one_engine_nothing_is_exact_until_one_has_gone(
    replay: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with bound_with(replay=replay) as (publisher, follower, index):
        other = Publisher(connect=follower.endpoint)
        await other.subscribed()
        await other.publish(stored(0, 1))
        await wait_until(lambda: len(follower._links._heard) == 2)
        await publisher.publish(stored(2, 4))
        await settled(follower, StreamState.STALE)

        await other.close()
        await wait_until(lambda: follower.state is not StreamState.STALE)
        await publisher.publish(stored(4, 5))
        if replay:
            await wait_until(lambda: matched(index) == 5)
            await settled(follower, StreamState.EXACT)

    assert caplog.text.count("several connections publish KV events") == 1


@in_loop
async def test_while_something_waits_no_more_is_read_from_the_engine() -> None:
    ticks = count()  # a fifth of a millisecond passes between two looks at the clock
    async with running(clock=lambda: next(ticks) / 5000) as (publisher, follower, index):
        await settled(follower, StreamState.EXACT)
        link = follower._links.believed
        assert link is not None
        again = [list(batch(0, stored(0, 1)))] * 99  # of which 98 are known already
        follower.received(link, again)

        assert link.is_held
        assert follower.stream.stats.applied + follower.stream.stats.duplicates < 10

        await wait_until(lambda: not link.is_held)
        assert follower.stream.stats.duplicates == 98
        publisher.batches.append((0, batch(0, stored(0, 1))[2]))
        await publisher.publish(stored(1, 2))
        await wait_until(lambda: matched(index) == 2)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (EventSource(0, "tcp://127.0.0.1:1", None), "nobody answers at tcp://127.0.0.1:1,"),
        (EventSource(0, "tcp://127.0.0.1:*", None, bind=True), "nobody connects to tcp://"),
    ],
)
@in_loop
async def test_an_address_that_nobody_is_at_is_told_once(
    source: EventSource, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    follower = subscriber(source, MemoryIndex(), answer_seconds=0.0)
    follower.start()
    await wait_until(lambda: bool(caplog.messages))
    await follower.close()

    [message] = caplog.messages
    assert message.startswith(f"engine e1: {says}")


@in_loop
async def test_a_last_batch_lost_before_a_silence_is_found_by_the_audit() -> None:
    async with running(audit_seconds=0.05) as (publisher, _, index):
        await publisher.publish(stored(0, 3))
        await publisher.publish(removed(2), lost=True)
        await wait_until(lambda: matched(index) == 2)


@in_loop
async def test_a_resync_finds_what_was_lost() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 3))
        await settled(follower, StreamState.EXACT)
        await publisher.publish(removed(2), lost=True)
        follower.resync()
        await wait_until(lambda: matched(index) == 2)


@pytest.mark.parametrize(
    "frames",
    [
        [b"alone"],
        [b"topic", b"short", b"payload"],
        [b"topic", b"\0" * 8, b"payload", b"more"],
    ],
)
@in_loop
async def test_malformed_messages_are_skipped_counted_and_told_once(
    frames: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with running() as (publisher, follower, index):
        for _ in range(3):
            await publisher.pub.send_multipart(frames)
        await publisher.publish(stored(0, 2))
        await wait_until(lambda: matched(index) == 2)

        assert follower.stats.skipped == {"frames": 3}

    assert len(caplog.records) == 1
    assert "engine e1 sent what we cannot use (frames)" in caplog.messages[0]


@in_loop
async def test_one_bad_event_does_not_drop_its_batch() -> None:
    async with running() as (publisher, follower, index):
        await publisher.publish(stored(0, 1), {"type": "BlockStored"}, stored(1, 2))
        await wait_until(lambda: matched(index) == 2)

        assert follower.stats.skipped == {"malformed": 1}
        assert follower.stats.events == 2


@in_loop
async def test_a_batch_of_garbage_does_not_stop_the_stream() -> None:
    async with running() as (publisher, follower, index):
        await settled(follower, StreamState.EXACT)
        publisher.batches.append((0, b"\xc1garbage"))
        await publisher.pub.send_multipart([b"", bytes(8), b"\xc1garbage"])
        await publisher.publish(stored(0, 2))
        await wait_until(lambda: matched(index) == 2)
        await settled(follower, StreamState.PARTIAL)


@in_loop
async def test_batches_are_handed_on() -> None:
    seen: list[tuple[int, Batch]] = []
    async with running(on_batch=lambda *args: seen.append(args)) as (publisher, _, _):
        await publisher.publish(stored(0, 2), ["BlockPinned"])
        await wait_until(lambda: bool(seen))
    (holder, batch) = seen[0]

    assert (holder, batch.ts, batch.rank) == (HOLDER, 1.5, 0)
    assert [type(event) for event in batch.events] == [BlockStored]
    assert [error.reason for error in batch.errors] == ["unknown_type"]


@in_loop
async def test_a_heavy_batch_leaves_others_the_event_loop() -> None:
    """One batch of 20,000 events takes a tenth of a second or more."""

    turns = 0
    async with running() as (publisher, follower, index):
        await publisher.publish(*[stored(0, 2)] * 20_000)
        await wait_until(lambda: matched(index) > 0)
        while follower.stats.batches == 0:
            await asyncio.sleep(0)
            turns += 1

    assert turns >= 10


@in_loop
async def test_many_small_batches_that_come_together_leave_others_the_event_loop() -> None:
    ticks = count()  # a fifth of a millisecond passes between two looks at the clock
    async with running(clock=lambda: next(ticks) / 5000) as (_, follower, index):
        await settled(follower, StreamState.EXACT)
        assert follower._links.believed is not None
        come = [list(batch(number, stored(number, number + 1))) for number in range(99)]
        follower.received(follower._links.believed, come)

        assert 0 < follower.stats.batches < 10

        await wait_until(lambda: matched(index) == 99)


@in_loop
async def test_a_fault_of_the_gateway_leaves_its_picture_stale_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)

    def on_batch(_: int, batch: Batch) -> None:
        raise RuntimeError(f"no good: {len(batch.events)} events")

    async with running(on_batch=on_batch) as (publisher, follower, _):
        await settled(follower, StreamState.EXACT)
        await publisher.publish(stored(0, 2))
        await settled(follower, StreamState.STALE)
        await publisher.publish(stored(2, 3))
        await publisher.served()

        assert follower.state is StreamState.STALE

    [message] = caplog.messages
    assert message == "engine e1: its event stream is no longer read"
    assert "no good: 1 events" in caplog.text


def encoded(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


class Stalled:
    """Replay sockets of engines that take requests and keep them waiting."""

    def __init__(self, count: int) -> None:
        self.context = zmq.asyncio.Context()
        self.requests = 0
        self.most_at_once = 0
        routers = [self.context.socket(zmq.ROUTER) for _ in range(count)]
        self.pub = self.context.socket(zmq.PUB)
        events, *replays = (
            f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
            for socket in (self.pub, *routers)
        )
        self.sources = [EventSource(0, events, replay) for replay in replays]
        self.release = asyncio.Event()
        self.tasks = [asyncio.ensure_future(self.serve(router)) for router in routers]

    async def serve(self, router: zmq.asyncio.Socket) -> None:
        client, _, _ = await router.recv_multipart()
        self.requests += 1
        await router.send_multipart([client, b"", bytes(8), encoded(stored(0, 1))])
        await self.release.wait()
        await router.send_multipart([client, b"", END, b""])

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.context.destroy(linger=0)


@in_loop
async def test_no_more_replays_are_read_at_once_than_there_are_slots() -> None:
    engines, slots = Stalled(5), asyncio.Semaphore(2)
    limits = ReplayLimits(idle=30.0, total=60.0, retry=0.01)
    followers = [
        ZmqSubscriber(
            Subscription(source, holder, SIZE, MemoryIndex()),
            limits=limits,
            audit_seconds=None,
            replays=slots,
        )
        for holder, source in enumerate(engines.sources)
    ]
    for follower in followers:
        follower.start()
    await wait_until(lambda: engines.requests == 2)
    await wait_until(slots.locked)
    for _ in range(200):
        await asyncio.sleep(0)

    assert engines.requests == 2

    engines.release.set()
    await wait_until(lambda: all(f.state is StreamState.EXACT for f in followers))

    assert engines.requests == 5

    for follower in followers:
        await follower.close()
    await engines.close()


@in_loop
async def test_a_replay_socket_that_does_not_answer_gives_its_slot_back() -> None:
    slots = asyncio.Semaphore(1)
    limits = ReplayLimits(idle=30.0, total=60.0, slot=0.01)
    async with running(limits=limits, replays=slots) as (publisher, follower, _):
        publisher.serving.cancel()
        follower.resync()
        await wait_until(slots.locked)
        await wait_until(lambda: not slots.locked())


@in_loop
async def test_closing_twice_is_closing_once() -> None:
    async with running() as (_, follower, _):
        await follower.close()
        await follower.close()


@in_loop
async def test_one_that_was_never_started_can_be_closed() -> None:
    await subscriber(EventSource(0, "tcp://127.0.0.1:1", None), MemoryIndex()).close()
