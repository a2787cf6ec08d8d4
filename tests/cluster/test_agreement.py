"""Gateways whose messages are lost, doubled and late know after the next round what one would know
that has sent all requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cluster.gateways import NAMES, Gateway

from inferway.cluster.bus.peer import SILENT_SECONDS
from inferway.scheduling.expected_ttft.sharing import Kind

Action = Callable[[Gateway, float], None]
Belief = dict[str, list[float]]

names = st.sampled_from(NAMES)
which = st.integers(0, 5)

actions = st.one_of(
    st.builds(lambda n, t: lambda g, now: g.send(n, t, now), names, st.integers(1, 500).map(float)),
    st.builds(lambda w: lambda g, now: g.begin(w, now), which),
    st.builds(
        lambda w, s: lambda g, now: g.assume(w, now, s), which, st.sampled_from([0.5, 2.5, 100.0])
    ),
    st.builds(lambda w: lambda g, _: g.end(w), which),
    st.builds(lambda n: lambda g, _: g.come(n), names),
    st.just(lambda g, _: g.arrive()),
)
# What becomes of each message: how often it comes, and whether before those that are under way.
fates = st.lists(st.tuples(st.sampled_from([0, 1, 1, 2]), st.booleans()), min_size=1, max_size=5)
stories = st.lists(st.tuples(st.integers(0, 1), actions, fates, st.booleans()), max_size=25)


def play(
    gateways: list[Gateway], story: list[tuple[int, Action, list[tuple[int, bool]], bool]]
) -> float:
    """Return what time it is then. Each tells all that is so with every fourth thing it does."""
    now = 0.0
    under_way: list[tuple[int, bytes]] = []  # (who has told it, message)
    settle(gateways, now)
    for step, (who, act, fate, arrives) in enumerate(story):
        now += 1.0
        act(gateways[who], now)
        told = gateways[who].says(now) if step % 4 else gateways[who].says_all(now)
        for place, payload in enumerate(told):
            times, is_early = fate[place % len(fate)]
            for _ in range(times):
                under_way.insert(0 if is_early else len(under_way), (who, payload))
        if arrives:
            while under_way:
                teller, payload = under_way.pop(0)
                gateways[1 - teller].hear(teller, payload, now)
    return now


def settle(gateways: list[Gateway], now: float) -> None:
    """Everything that is so is told, and arrives."""
    for teller, gateway in enumerate(gateways):
        for payload in gateway.says_all(now):
            gateways[1 - teller].hear(teller, payload, now)


def added_up(gateways: list[Gateway], now: float) -> Belief:
    """What is so: of each gateway, what it has itself."""
    found: Belief = {}
    for gateway in gateways:
        for peer in gateway.peers.values():
            peer.gone(gateway.clock(now))
        for name, values in gateway.believes(now).items():
            before = found.get(name, [0.0] * len(values))
            found[name] = [a + b for a, b in zip(before, values, strict=True)]
    return found


@settings(max_examples=60)
@given(story=stories)
def test_after_a_round_all_know_what_all_do(
    story: list[tuple[int, Action, list[tuple[int, bool]], bool]],
) -> None:
    both = [Gateway(0), Gateway(1, ahead=12_345.0, names=NAMES[::-1])]
    now = play(both, story)

    settle(both, now)
    believed = [gateway.believes(now) for gateway in both]

    assert believed[0] == believed[1] == added_up(both, now)


@settings(max_examples=60)
@given(story=stories)
def test_nothing_is_left_of_a_peer_that_has_gone(
    story: list[tuple[int, Action, list[tuple[int, bool]], bool]],
) -> None:
    """What the gateway believes is what it would if there had never been a peer."""
    both, alone = [Gateway(0), Gateway(1, ahead=-50.0)], Gateway(0)
    now = play(both, story)
    for step, (who, act, *_) in enumerate(story):
        if who == 0:
            act(alone, step + 1.0)

    for peer in both[0].peers.values():
        peer.gone(both[0].clock(now))

    assert both[0].believes(now) == alone.believes(now)


def test_a_peer_that_is_silent_for_a_second_has_gone() -> None:
    one, other = Gateway(0), Gateway(1)
    one.send("a", 100.0, 0.0)
    for payload in one.says_all(0.0):
        other.hear(0, payload, 0.0)
    [peer] = other.peers.values()
    assert other.believes(0.1)["in flight"] == [1.0, 0.0, 0.0]

    assert not peer.is_silent(SILENT_SECONDS - 0.01)
    assert peer.is_silent(SILENT_SECONDS + 0.01)
    peer.gone(SILENT_SECONDS)

    assert other.believes(1.0)["in flight"] == [0.0, 0.0, 0.0]
    assert other.believes(1.0)["waiting"] == [0.0, 0.0, 0.0]


def test_whoever_has_missed_a_message_believes_nothing_until_all_is_told_again() -> None:
    one, other = Gateway(0), Gateway(1)
    settle([one, other], 0.0)
    one.send("a", 100.0, 0.0)
    one.come("b")
    for payload in one.says(0.0):
        other.hear(0, payload, 0.0)
    known = other.believes(0.1)
    one.send("c", 100.0, 0.1)
    one.says(0.1)  # lost
    one.send("c", 100.0, 0.2)
    for payload in one.says(0.2):
        other.hear(0, payload, 0.2)

    assert known["waiting"] == [1.0, 0.0, 0.0]
    assert not any(map(any, other.believes(0.2).values()))
    settle([one, other], 0.3)

    assert other.believes(0.3)["waiting"] == [1.0, 0.0, 2.0]
    assert other.believes(0.3)["coming"] == [0.0, 1.0, 0.0]
    assert other.believes(0.3)["in flight"] == [1.0, 0.0, 2.0]
    assert other.peers[0].counts["lost"] == 1


def test_a_request_is_as_old_for_the_others_as_it_is() -> None:
    """However far their clocks are apart."""
    one, other = Gateway(0, ahead=1e6), Gateway(1, ahead=-1e6)
    one.send("b", 100.0, 10.0)

    for payload in one.says_all(13.0):
        other.hear(0, payload, 13.0)

    slot = other.plugin.slots.slot_of("b", 0.0)
    assert other.learning.backlog.since_ms[slot] == other.clock(10.0) * 1000


def test_what_was_learned_is_learned_by_all() -> None:
    one, other = Gateway(0), Gateway(1, names=NAMES[::-1])
    features = (1.0, 500.0, 500.0, 0.0, 0.0, 1.0)
    for number in range(40):
        slot = one.plugin.slots.slot_of(NAMES[number % 3], 0.0)
        one.learning.took(Kind.TTFT, slot, features, 80.0 + number % 3, float(number))
        for payload in one.says(float(number)):
            other.hear(0, payload, float(number))

    for name in NAMES:
        mine = one.learning.ttft.table[:, one.plugin.slots.slot_of(name, 0.0)]
        theirs = other.learning.ttft.table[:, other.plugin.slots.slot_of(name, 0.0)]
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


def test_a_gateway_that_has_just_come_knows_what_the_others_have_learned() -> None:
    old, new = Gateway(0), Gateway(1, ahead=-77.0, names=NAMES[::-1])
    features = (1.0, 500.0, 500.0, 0.0, 0.0, 1.0)
    for number in range(200):
        slot = old.plugin.slots.slot_of(NAMES[number % 3], 0.0)
        old.learning.took(Kind.TTFT, slot, features, 80.0 * (1 + number % 3), number / 10)
        old.learning.answered(77)
    assert new.learning.ttft.num_cold == 3

    for payload in old.says_all(20.0, whole=True):
        new.hear(0, payload, 20.0)

    assert new.learning.ttft.num_cold == 0
    assert new.learning.marginal_cost.answer_tokens == old.learning.marginal_cost.answer_tokens
    for name in NAMES:
        expected = old.learning.ttft.expected(old.plugin.slots.slot_of(name, 0.0), features)
        found = new.learning.ttft.expected(new.plugin.slots.slot_of(name, 0.0), features)
        assert abs(found / expected - 1) < 0.05, name


def test_who_knows_an_engine_goes_on_by_that() -> None:
    one, other = Gateway(0), Gateway(1)
    features = (1.0, 500.0, 500.0, 0.0, 0.0, 1.0)
    for gateway, ms in ((one, 50.0), (other, 500.0)):
        slot = gateway.plugin.slots.slot_of("a", 0.0)
        for number in range(100):
            gateway.learning.ttft.learn(slot, features, ms, float(number))

    for payload in one.says_all(100.0, whole=True):
        other.hear(0, payload, 100.0)

    found = other.learning.ttft.expected(other.plugin.slots.slot_of("a", 0.0), features)
    assert 400.0 < found < 600.0
