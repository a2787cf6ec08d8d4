"""Which requests ask an engine to report what it reuses, and what that does to what we count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import EngineFacts, ModelCard
from inferway.fleet.event_source import EventSource
from inferway.fleet.fleet import FullReporter
from inferway.fleet.subscriber import Subscription
from inferway.fleet.zmq_subscriber import ZmqSubscriber
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.model import Endpoint

THERE = Endpoint("e", "http://e", 0)
STORED = {"type": "BlockStored", "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}


def batch(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([0.0, list(events), 0])


def stored(block_hash: int, **fields: Any) -> dict[str, Any]:
    return {**STORED, "block_hashes": [block_hash], **fields}


class OneEngine:
    """An engine of one rank and its stream, which is fed by hand."""

    def __init__(self, healer: FullReporter, version: str | None = "0.32.0") -> None:
        self.healer = healer
        self.index = MemoryIndex()
        self.engine = Engine(EngineSettings(url="http://e"), ())
        card = ModelCard("m", None, None, None, "vllm")
        self.engine.facts = EngineFacts((card,), (), 2, (), version)
        self.engine.endpoints = [THERE]
        source = EventSource(0, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
        self.stream = ZmqSubscriber(Subscription(source, 0, 2, self.index))
        self.engine.subscribers = [self.stream]
        healer.attend(self.stream.blocks)
        self.do(self.stream.follower.resume())

    def do(self, steps: Iterator[Any]) -> None:
        """As the subscriber does it."""
        for step in steps:
            if isinstance(step, list):
                self.index.apply(step)

    def replay(self, *batches: tuple[int, bytes]) -> None:
        for seq, payload in batches:
            self.do(self.stream.follower.replayed(seq, payload))
        self.do(self.stream.follower.replay_ended(True))

    def asks(self) -> bool:
        return self.healer.ask(self.engine, THERE)


@pytest.fixture
def late() -> OneEngine:
    """Joined after batch 6."""
    one = OneEngine(FullReporter(1.0))
    one.replay((7, batch(stored(11))))
    return one


def test_a_partial_engine_is_asked_by_one_request_at_a_time(late: OneEngine) -> None:
    first, second = late.asks(), late.asks()
    late.healer.asked(THERE)

    assert (first, second, late.asks()) == (True, False, True)
    assert late.healer.num_asked == {0: 2}


@pytest.mark.parametrize("first_seq", [0, 7], ids=["from its start", "late"])
def test_what_was_reported_to_a_gateway_before_is_no_copy(first_seq: int) -> None:
    one = OneEngine(FullReporter(0.01))
    one.replay(
        (first_seq, batch(stored(11))),
        (first_seq + 1, batch(stored(11))),
        (first_seq + 2, batch({"type": "BlockRemoved", "block_hashes": [11]})),
    )

    assert one.index.num_blocks(0) == 0
    assert one.stream.state is StreamState.PARTIAL


async def test_a_report_that_a_client_asks_for_ends_counting_and_exactness_at_once() -> None:
    one = OneEngine(FullReporter(0.0))
    one.replay((0, batch(stored(11))))
    states = [one.stream.state]
    one.stream.start(on_state=lambda: states.append(one.stream.state))

    one.stream.count_no_copies()
    one.stream.count_no_copies()

    assert states == [StreamState.EXACT, StreamState.PARTIAL]
    one.do(one.stream.follower.live(1, batch(stored(11))))
    one.do(one.stream.follower.live(2, batch({"type": "BlockRemoved", "block_hashes": [11]})))
    assert one.index.num_blocks(0) == 0
    await one.stream.close()


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.3])
def test_the_share_of_requests_is_kept(share: float) -> None:
    one = OneEngine(FullReporter(share))
    one.replay((7, batch(stored(11))))

    asked = []
    for _ in range(100):
        asked.append(one.asks())
        one.healer.asked(THERE)

    assert asked[0]
    assert abs(sum(asked) - 100 * share) <= 1


def test_without_a_share_copies_count_and_nobody_is_asked() -> None:
    one = OneEngine(FullReporter(0.0))
    one.replay((7, batch(stored(11))))

    assert one.stream.blocks.copies_count
    assert not one.asks()


@pytest.mark.parametrize(
    ("version", "first_seq", "events"),
    [
        ("0.25.1", 7, [stored(11)]),
        (None, 7, [stored(11)]),
        ("0.32.0", 0, [stored(11)]),  # known from its start
        ("0.32.0", 7, [{"type": "BlockRemoved", "block_hashes": [11]}]),  # what is it made of?
        (
            "0.32.0",
            7,
            [
                stored(11, group_idx=0, kv_cache_spec_kind="full_attention"),
                stored(
                    11,
                    group_idx=1,
                    kv_cache_spec_kind="sliding_window",
                    kv_cache_spec_sliding_window=4,
                ),
            ],
        ),
        ("0.32.0", 7, [stored(11), stored(11, group_idx=1, kv_cache_spec_kind="mamba")]),
    ],
    ids=["too old", "no vllm", "whole", "unknown groups", "windows", "other groups"],
)
def test_an_engine_that_gains_nothing_or_is_not_understood_is_left_alone(
    version: str | None, first_seq: int, events: list[dict[str, Any]]
) -> None:
    one = OneEngine(FullReporter(1.0), version)
    one.replay((first_seq, batch(*events)))

    assert not one.asks()


def test_an_engine_that_was_started_anew_is_known_from_its_start(late: OneEngine) -> None:
    late.do(late.stream.follower.live(3, batch(stored(5))))
    late.replay((7, batch(stored(99))))  # another batch than the one we know by this number
    late.replay((0, batch(stored(99))))

    assert not late.asks()


@pytest.mark.parametrize(
    ("version", "knows"),
    [
        ("0.26.0", True),
        ("0.32.1.dev12+g1234", True),
        ("1.0.0", True),
        ("0.25.1", False),
        ("nightly", False),
        (None, False),
    ],
)
def test_the_mode_is_vllm_0_26s_and_later(version: str | None, knows: bool) -> None:
    one = OneEngine(FullReporter(1.0), version)
    one.replay((7, batch(stored(11))))

    assert one.asks() is knows
