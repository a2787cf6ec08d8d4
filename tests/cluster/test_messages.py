"""What a peer tells is taken over but for what cannot be true, or refused whole, with a reason."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.gateways import Gateway

from inferway.cluster.bus.inbox import Inbox
from inferway.cluster.bus.messages import Message
from inferway.cluster.bus.peer import MOST_MESSAGES, MOST_WAITING, Peer
from inferway.cluster.bus.peer_messages import VERSION, PeerMessage
from inferway.cluster.bus.sound import MOST_BYTES, SENDER_BYTES
from inferway.errors import PeerMessageError
from inferway.scheduling.expected_ttft.sharing import Waits

SENDER = (7).to_bytes(SENDER_BYTES, "big")
WAITS = ["Waits", "a", 1, 100.0, 50.0, 0.0, 40.0, 100.0, 200.0]
TOOK = ["Took", 0, "a", [1.0, 5.0, 5.0, 0.0, 0.0, 1.0], 80.0, 0.0]
KNOWN_MEANS = [200.0, 0.5, 500.0, 1.0]


def payload(
    number: int = 1, *parts: Any, version: int = VERSION, name: str = "x", begins: bool = True
) -> bytes:
    """A message with these lists of events, counts and things known."""
    return SENDER + msgspec.msgpack.encode([version, number, name, begins, *parts])


def changed(event: list[Any], place: int, value: object) -> bytes:
    copy = [*event]
    copy[place] = value
    return payload(1, [[0, copy]])


def known(zz: list[float], zy: list[float], count: int = 100) -> bytes:
    sums = [zz, zy]
    costs = [sums, count, {"a": [sums, 50, 0.1, 0.0, 0.0, 0.1]}]
    told = [[None, costs, None, None], {"a": [1.0, 1.0, 1.0]}, KNOWN_MEANS]
    return payload(1, [], [], [[0, told]])


OF_VERSION_1 = SENDER + msgspec.msgpack.encode(
    [1, 5, "x", [[0, WAITS]], [["a", 1.0, 0.0]], [], [[0, 0, 9, [WAITS], []]], [], None, []]
)

REFUSED = [
    (b"", "size", "0 bytes: expected 9 to 131072"),
    (SENDER + bytes(MOST_BYTES), "size", "bytes: expected 9 to"),
    (SENDER + b"\xc1\xff", "unreadable", "it cannot be read"),
    (SENDER + msgspec.msgpack.encode({"a": 1}), "unreadable", "it cannot be read"),
    (payload(version=3), "version", "its messages have version 3, ours 2"),
    (payload(1, "another form", version=4), "version", "version 4"),
    (OF_VERSION_1, "version", "its messages have version 1, ours 2"),
    (payload(-1), "unreadable", "it cannot be read"),
    (payload(name="a\nforged line"), "false", "name: 'a\\nforged line': expected printable"),
    (payload(name="x" * 1000), "unreadable", "length <= 128"),
    (payload(1, [[99, WAITS]]), "unreadable", "it cannot be read"),
    (changed(TOOK, 1, 9), "unreadable", "it cannot be read"),
]

LEFT_OUT = [
    (changed(WAITS, 3, math.nan), "tokens: nan: expected 0 to 1e+09"),
    (changed(WAITS, 3, math.inf), "tokens: inf"),
    (changed(WAITS, 3, -1.0), "tokens: -1.0"),
    (changed(WAITS, 4, 1e30), "alone_ms: 1e+30"),
    (changed(WAITS, 5, 1e30), "at: 1e+30"),
    (changed(WAITS, 6, math.nan), "work: nan"),
    (changed(WAITS, 7, 1e30), "new_tokens: 1e+30"),
    (changed(WAITS, 8, 0.0), "prompt_tokens: 0.0: expected 1"),
    (changed(WAITS, 2, -5), "number: -5"),
    (changed(TOOK, 3, [1.0, 5.0]), "features: 2: expected 6, the first of them 1"),
    (changed(TOOK, 3, [0.0] * 6), "the first of them 1"),
    (changed(TOOK, 3, [1.0, math.nan, 0.0, 0.0, 0.0, 0.0]), "features: nan"),
    (changed(TOOK, 4, 0.0), "ms: 0.0"),
    (changed(TOOK, 4, math.inf), "ms: inf"),
    (payload(1, [[0, ["Answered", 0]]]), "tokens: 0"),
    (payload(1, [[0, ["Comes", "a", 1e9]]]), "legs: 1000000000.0: expected 0 to 1e+06"),
    (payload(1, [[0, ["Comes", "a", -3.0]]]), "legs: -3.0"),
    (payload(1, [[0, ["Begins", 1, math.nan, True]]]), "at: nan"),
    (payload(1, [], [["a", -1.0, 0.0]]), "requests: -1.0"),
    (payload(1, [], [["a", 1.0, math.nan]]), "tokens: nan"),
    (known([1.0, 0.0, 0.0], [1.0, 1.0]), "known: 0: expected sums"),
    (known([1.0, math.nan, 0.0, 1.0], [1.0, 1.0]), "known: 0"),
    (known([1.0, 5.0, 5.0, 1.0], [1.0, 1.0]), "known: 0"),  # of no observations
    (known([0.0] * 4, [0.0] * 2), "known: 0"),
    (known([1.0, 0.0, 0.0, 1.0], [0.0, 0.0]), "known: 0"),  # in no time
    (known([1.0, 0.0, 0.0, 1.0], [1.0, 1.0], count=-1), "known: 0"),
]


def test_there_are_at_most_twelve_kinds_of_messages() -> None:
    kinds = {*get_args(Message), PeerMessage}

    assert len(kinds) <= 12, sorted(kind.__name__ for kind in kinds)


@pytest.mark.parametrize(("told", "reason", "says"), REFUSED)
def test_what_cannot_be_is_refused_and_changes_nothing(told: bytes, reason: str, says: str) -> None:
    gateway = Gateway(0)
    before = gateway.believes(1.0)

    with pytest.raises(PeerMessageError) as caught:
        gateway.hear(1, told, 1.0)

    assert caught.value.reason == reason
    assert says in str(caught.value)
    assert gateway.believes(1.0) == before
    assert not gateway.peers[1].is_there
    assert [gateway.peers[1].state(at) for at in (1.1, 9.0)] == ["refused", "silent"]


@pytest.mark.parametrize(("told", "says"), LEFT_OUT)
def test_what_cannot_be_true_is_left_out_and_named(told: bytes, says: str) -> None:
    gateway = Gateway(0)
    before = gateway.believes(1.0)

    gateway.hear(1, told, 1.0)

    assert says in str(gateway.peers[1].fault)
    assert gateway.peers[1].refused == {"false": 1}
    assert gateway.believes(1.0) == before


def test_of_a_message_that_is_right_but_for_one_thing_the_rest_counts() -> None:
    gateway = Gateway(0)

    gateway.hear(1, payload(1, [[0, WAITS], [0, ["Answered", -1]]], [["a", 3.0, 0.0]]), 1.0)
    assert gateway.peers[1].fault is not None
    gateway.hear(1, payload(2), 1.0)

    assert gateway.peers[1].fault is None
    assert gateway.believes(1.0)["waiting"] == [1.0, 0.0, 0.0]
    assert gateway.believes(1.0)["in flight"] == [3.0, 0.0, 0.0]


def test_what_is_sound_is_learned() -> None:
    gateway = Gateway(0)

    gateway.hear(1, known([2.0, 1.0, 1.0, 2.0], [3.0, 3.0]), 1.0)

    slot = gateway.plugin.slots.slot_of("a", 0.0)
    assert not gateway.learning.tpot.is_cold[slot]
    assert (gateway.learning.tpot.table > 0).all()


@settings(max_examples=50)
@given(body=st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused_or_heard(body: bytes) -> None:
    gateway = Gateway(0)
    with suppress(PeerMessageError):
        gateway.hear(1, SENDER + body, 1.0)


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.0, 1e6)
sums = st.tuples(
    st.lists(numbers, min_size=4, max_size=4), st.lists(numbers, min_size=2, max_size=2)
)


@settings(max_examples=40)
@given(
    all_sums=sums,
    count=st.integers(-5, 10**12),
    of_one=st.tuples(sums, st.integers(-5, 1000), numbers, numbers, numbers, numbers),
    took=st.lists(numbers, min_size=1, max_size=1),
)
def test_whatever_a_peer_claims_to_know_expectations_are_numbers(
    all_sums: Any, count: int, of_one: Any, took: list[float]
) -> None:
    gateway = Gateway(0)
    costs = [all_sums, count, {"a": of_one}]
    told = [[0, [[None, costs, None], {}, KNOWN_MEANS]]]
    for each in (
        payload(1, [], [], told),
        payload(2, [[0, ["Took", 1, "a", [1.0, *took], 80.0, 0.0]]]),
    ):
        with suppress(PeerMessageError):
            gateway.hear(1, each, 1.0)
    tpot = gateway.learning.tpot
    for number in range(40):  # solved anew several times
        tpot.learn(gateway.plugin.slots.slot_of("a", 0.0), (1.0, 3.0), 20.0, 2.0 + number)
        tpot.refresh(100.0 * number)

    assert math.isfinite(float(tpot.table.sum()))
    assert (tpot.table > 0).all()


def test_engines_that_are_not_known_are_left_out() -> None:
    gateway = Gateway(0)
    stranger = [*WAITS]
    stranger[1] = "nobody"

    gateway.hear(1, payload(1, [[0, stranger], [0, WAITS]], [["nobody", 5.0, 0.0]]), 1.0)

    assert "nobody" not in gateway.plugin.slots.names()
    assert gateway.believes(1.0)["waiting"] == [1.0, 0.0, 0.0]
    assert gateway.peers[1].counts["unknown"] == 2


def test_what_was_on_its_way_to_an_engine_that_has_left_counts_no_more() -> None:
    gateway = Gateway(0)
    gateway.hear(1, payload(1, [], [["a", 3.0, 0.0], ["b", 1.0, 0.0]]), 1.0)
    [engine] = [each for each in gateway.table._engines if each.name == "a"]
    gateway.table.retire(engine, 0.0)
    assert gateway.table.rested(1000.0) == [engine]

    gateway.hear(1, payload(2, [], [["a", 3.0, 0.0]]), 2.0)

    assert gateway.peers[1].requests == 1.0


def test_what_a_gateway_tells_that_only_workers_may_is_not_passed_on() -> None:
    gateway, passed = Gateway(0), list[PeerMessage | None]()
    inbox = Inbox([gateway.sharing], pass_on=lambda _, message: passed.append(message))
    peer = Peer("1", gateway.table, inbox)

    peer.hear(payload(1, [[0, WAITS]], [["a", 1.0, 0.0]], [], [[1, 0, [7, 8, 9]]]), 1.0)

    [message] = passed
    assert message is not None
    assert [type(each.event) for each in message.shared] == [Waits]
    assert (message.counts, message.prompts) == ([], [])


def test_a_peer_can_only_end_what_it_has_begun() -> None:
    gateway, other = Gateway(0), Gateway(2)
    gateway.send("a", 100.0, 1.0)
    other.send("a", 100.0, 1.0)
    for told in other.says_all(1.0):
        gateway.hear(2, told, 1.0)
    before = gateway.believes(1.0)

    for number in range(1, 9):
        gateway.hear(1, payload(number, [[0, ["Begins", number, 0.0, False]]]), 1.0)
    gateway.hear(1, payload(9, [[0, ["Comes", "a", 0.0]]], [["a", 0.0, 0.0]]), 1.0)

    assert gateway.believes(1.0) == before


def test_of_a_peer_that_floods_no_more_is_heard_than_its_share() -> None:
    gateway = Gateway(0)
    for number in range(1, int(MOST_MESSAGES) + 1):
        gateway.hear(1, payload(number), 5.0)

    with pytest.raises(PeerMessageError) as caught:
        gateway.hear(1, payload(int(MOST_MESSAGES) + 1), 5.0)
    gateway.hear(1, payload(int(MOST_MESSAGES) + 2), 5.1)

    assert caught.value.reason == "too-much"
    assert "1000 messages, or 8388608 bytes, a second" in str(caught.value)


def test_a_peer_has_no_more_requests_that_wait_than_there_is_room_for() -> None:
    gateway = Gateway(0)
    number = 0
    for message in range(1, 14):
        events = []
        for _ in range(1500):
            number += 1
            event = [*WAITS]
            event[2] = number
            events.append([0, event])
        gateway.hear(1, payload(message, events), float(message * 10))

    assert gateway.believes(200.0)["waiting"] == [float(MOST_WAITING), 0.0, 0.0]


def test_a_message_that_came_before_or_late_does_not_count() -> None:
    gateway = Gateway(0)
    gateway.hear(1, payload(5, [], [["a", 5.0, 0.0]]), 1.0)

    gateway.hear(1, payload(5, [], [["a", 9.0, 0.0]]), 1.0)
    gateway.hear(1, payload(4, [], [["a", 8.0, 0.0]]), 1.0)
    gateway.hear(1, payload(8, [], [["b", 1.0, 0.0]]), 1.0)

    assert gateway.believes(1.0)["in flight"] == [0.0, 1.0, 0.0]  # all that is so came with it
    counts = gateway.peers[1].counts
    assert (counts["messages"], counts["late"], counts["lost"]) == (2, 2, 2)


def test_another_life_of_a_gateway_begins_with_nothing() -> None:
    gateway = Gateway(0)
    gateway.hear(1, payload(5, [[0, WAITS]], [["a", 5.0, 0.0]]), 1.0)
    another = (8).to_bytes(SENDER_BYTES, "big")

    gateway.hear(1, another + payload(1, [], [["b", 2.0, 0.0]])[SENDER_BYTES:], 2.0)

    assert gateway.believes(3.0)["in flight"] == [0.0, 2.0, 0.0]
    assert gateway.believes(3.0)["waiting"] == [0.0, 0.0, 0.0]
