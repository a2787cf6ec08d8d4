"""Gateways that tell each other what they learn decide as one that has sent all requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.model import Endpoint
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.learning import Learning
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import TOLD_SECONDS, Event, Kind

ENDPOINTS = [Endpoint(name, f"http://{name}", at) for at, name in enumerate("abc")]
NAMES = [endpoint.name for endpoint in ENDPOINTS]

Action = Callable[["Gateway", float], None]


@dataclass
class Gateway:
    """A plugin, whose slots are in an order of its own, and its requests that wait."""

    order: list[Endpoint]
    plugin: ExpectedTtft = field(default_factory=ExpectedTtft)
    waiting: list[QueuedRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plugin.slots.rows(self.order, 0.0)

    @property
    def learning(self) -> Learning:
        return self.plugin.learning

    def slot(self, name: str) -> int:
        return self.plugin.slots.slot_of(name, 0.0)

    def state(self) -> dict[str, list[float]]:
        """What it knows of each endpoint, in the order of names."""
        slots = [self.slot(name) for name in NAMES]
        learning = self.learning
        backlog, marginal = learning.backlog, learning.marginal_cost
        columns = {
            **{f"ttft {i}": row for i, row in enumerate(learning.ttft.table)},
            **{f"tpot {i}": row for i, row in enumerate(learning.tpot.table)},
            **{f"transfer {i}": row for i, row in enumerate(learning.transfer.table)},
            "waiting tokens": backlog.tokens,
            "waiting requests": backlog.requests,
            "first": backlog.first_alone_ms,
            "since": backlog.since_ms,
            "busy": marginal.busy(slice(None), 100.0),
            "coming": learning.coming,
        }
        found = {name: np.asarray(column)[slots].tolist() for name, column in columns.items()}
        return {**found, "answers": [marginal.answer_tokens, marginal.new_tokens]}


names = st.sampled_from(NAMES)
amounts = st.floats(1.0, 1000.0)


def sends(name: str, tokens: float) -> Action:
    def act(gateway: Gateway, now: float) -> None:
        waiting = QueuedRequest(gateway.slot(name), tokens, tokens / 2)
        gateway.waiting.append(waiting)
        gateway.learning.waits(
            waiting, now, work=tokens, new_tokens=tokens, prompt_tokens=2 * tokens
        )

    return act


def begins(which: int) -> Action:
    def act(gateway: Gateway, now: float) -> None:
        if gateway.waiting:
            waiting = gateway.waiting.pop(which % len(gateway.waiting))
            gateway.learning.begun(waiting, now)
            gateway.learning.begun(waiting, now)

    return act


def took(kind: Kind, name: str, ms: float) -> Action:
    features = {Kind.TTFT: (1.0, ms, ms, 0.0, 0.0, 1.0)}.get(kind, (1.0, ms))

    def act(gateway: Gateway, now: float) -> None:
        gateway.learning.took(kind, gateway.slot(name), features, ms, now)

    return act


def comes(name: str) -> Action:
    return lambda gateway, _: gateway.learning.comes(gateway.slot(name), 1.0)


def answered(tokens: int) -> Action:
    return lambda gateway, _: gateway.learning.answered(tokens)


actions = st.one_of(
    st.builds(sends, names, amounts),
    st.builds(begins, st.integers(0, 5)),
    st.builds(took, st.sampled_from(Kind), names, amounts),
    st.builds(comes, names),
    st.builds(answered, st.integers(1, 500)),
)


@given(story=st.lists(st.tuples(st.integers(0, 1), actions), max_size=30))
def test_two_that_tell_each_other_know_what_one_would(story: list[tuple[int, Action]]) -> None:
    alone = Gateway(ENDPOINTS)
    both = [Gateway(ENDPOINTS), Gateway(ENDPOINTS[::-1])]
    told: list[tuple[int, Event]] = []
    hearing = [
        gateway.plugin.share(lambda event, who=who: told.append((who, event)))  # type: ignore[misc]
        for who, gateway in enumerate(both)
    ]
    own: list[list[QueuedRequest]] = [[], []]  # of the one that is alone, by who sends in the other
    for step, (who, act) in enumerate(story):
        now = float(step)
        act(both[who], now)
        for teller, event in told:
            hearing[1 - teller].hear(teller, event)
        told.clear()
        alone.waiting = own[who]
        act(alone, now)

    for gateway in both:
        for name, values in gateway.state().items():
            np.testing.assert_allclose(values, alone.state()[name], rtol=1e-9, err_msg=name)


def test_of_an_endpoint_that_answers_all_the_time_some_times_are_told() -> None:
    one = Gateway(ENDPOINTS)
    told: list[Event] = []
    one.plugin.share(told.append)

    for i in range(1001):  # a millisecond each
        for name in "ab":
            took(Kind.TTFT, name, 10.0)(one, i / 1000)
            took(Kind.TPOT, name, 10.0)(one, i / 1000)

    assert len(told) == pytest.approx(4 * 1 / TOLD_SECONDS, rel=0.1)


def test_what_waited_of_a_gateway_that_has_ended_waits_no_more() -> None:
    one, other = Gateway(ENDPOINTS), Gateway(ENDPOINTS)
    told: list[Event] = []
    one.plugin.share(told.append)
    hearing = other.plugin.share(lambda _: None)
    sends("a", 100.0)(one, 1.0)
    for event in told:
        hearing.hear(7, event)
    assert other.learning.backlog.requests[other.slot("a")] == 1

    hearing.gone(7, 2.0)

    assert other.learning.backlog.requests[other.slot("a")] == 0
    assert other.learning.backlog.tokens[other.slot("a")] == 0


def test_what_is_assumed_to_begin_does_so_elsewhere_too() -> None:
    one, other = Gateway(ENDPOINTS), Gateway(ENDPOINTS)
    told: list[Event] = []
    one.plugin.share(told.append)
    hearing = other.plugin.share(lambda _: None)
    sends("b", 10.0)(one, 1.0)
    one.learning.assume_begun_at(one.waiting[0], 3.0)
    for event in told:
        hearing.hear(1, event)
    other.learning.advance(2.0)
    assert other.learning.backlog.requests[other.slot("b")] == 1

    other.learning.advance(3.0)

    assert other.learning.backlog.requests[other.slot("b")] == 0


def test_requests_that_were_taken_for_begun_are_not_remembered() -> None:
    """Nobody tells of them any more: else there were no room for others some day."""
    one, other = Gateway(ENDPOINTS), Gateway(ENDPOINTS)
    told: list[Event] = []
    one.plugin.share(told.append)
    hearing = other.plugin.share(lambda _: None)
    for number in range(10):
        sends("b", 10.0)(one, 1.0)
        one.learning.assume_begun_at(one.waiting[number], 3.0)
    sends("b", 10.0)(one, 4.0)

    for event in told:
        hearing.hear(1, event)

    assert len(hearing._waiting) == 1


def test_what_is_to_come_of_a_gateway_that_has_ended_does_not_come() -> None:
    one, other = Gateway(ENDPOINTS), Gateway(ENDPOINTS)
    told: list[Event] = []
    one.plugin.share(told.append)
    hearing = other.plugin.share(lambda _: None)
    comes("a")(one, 1.0)
    comes("a")(one, 1.0)
    for event in told:
        hearing.hear(1, event)
    assert other.learning.coming[other.slot("a")] == 2

    hearing.gone(1, 2.0)

    assert other.learning.coming[other.slot("a")] == 0
