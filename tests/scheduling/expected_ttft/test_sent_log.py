"""What other processes of the machine have sent counts before they tell of it, and once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from inferway.model import Candidates, Endpoint, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sent_log import ENTRIES, MOST_PLUGINS, ROW, SentLog
from inferway.scheduling.expected_ttft.sharing import Event
from inferway.scheduling.idle import idle

ENDPOINTS = [Endpoint(f"e{i}", f"http://e{i}", 10 + i) for i in range(3)]
ASKED = LLMRequest(
    request_id="r",
    target_model="m",
    body=CompletionRequest(model="m", prompt="", stream=True),
    raw=b"x" * 16_000,
)


@dataclass
class Pair:
    """Two processes' logs."""

    memory: np.ndarray = field(default_factory=lambda: np.zeros((3, ROW)))

    def __post_init__(self) -> None:
        self.one, self.other = SentLog(self.memory, 1), SentLog(self.memory, 2)

    def unheard(self) -> list[tuple[int, float]]:
        """By the other."""
        return list(self.other.unheard())


def test_what_is_sent_is_unheard_of_until_it_is_told() -> None:
    pair = Pair()
    pair.other.heard(1, 0)
    pair.one.sent(1, 7, 100.0)
    pair.one.sent(2, 8, 50.5)
    assert pair.unheard() == [(7, 100.0), (8, 50.5)]

    pair.other.heard(1, 1)
    assert pair.unheard() == [(8, 50.5)]
    pair.other.heard(1, 2)
    assert pair.unheard() == []


def test_nobody_counts_its_own() -> None:
    pair = Pair()
    pair.one.sent(1, 7, 100.0)

    assert list(pair.one.unheard()) == []


def test_what_was_sent_before_a_process_was_there_is_not_counted() -> None:
    pair = Pair()
    for number in range(1, 40):
        pair.one.sent(number, 7, 100.0)

    assert pair.unheard() == []
    pair.other.heard(1, 39)
    pair.one.sent(40, 8, 1.0)
    assert pair.unheard() == [(8, 1.0)]


@pytest.mark.parametrize("more", [ENTRIES, ENTRIES + 1, 3 * ENTRIES])
def test_one_that_hears_nothing_for_long_counts_no_more_than_there_is_room_for(more: int) -> None:
    pair = Pair()
    pair.other.heard(1, 5)
    for number in range(1, 6 + more):
        pair.one.sent(number, 7, 100.0)

    assert len(pair.unheard()) <= ENTRIES
    pair.other.heard(1, 5 + more)
    assert pair.unheard() == []


def test_a_process_that_takes_anothers_place_begins_anew() -> None:
    pair = Pair()
    pair.other.heard(1, 0)
    pair.one.sent(1, 7, 100.0)
    pair.memory[1] = 0.0  # as `SharedColumns.process_ended`
    pair.other.gone(1)
    assert pair.unheard() == []

    SentLog(pair.memory, 1).sent(1, 8, 2.0)
    assert pair.unheard() == []
    pair.other.heard(1, 1)
    assert pair.unheard() == []


def test_plugins_are_kept_apart_and_gateways_elsewhere_ignored() -> None:
    memory = np.zeros((2, ROW))
    logs = [SentLog(memory, 0, plugin) for plugin in range(MOST_PLUGINS)]
    heard = [SentLog(memory, 1, plugin) for plugin in range(MOST_PLUGINS)]
    for plugin, (log, other) in enumerate(zip(logs, heard, strict=True)):
        other.heard(0, 0)
        other.heard(1 << 20, 3)
        log.sent(1, plugin, 1.0)

    assert [list(each.unheard()) for each in heard] == [[(n, 1.0)] for n in range(MOST_PLUGINS)]


@dataclass
class Process:
    """A gateway's process, which tells later."""

    memory: np.ndarray
    place: int
    plugin: ExpectedTtft = field(default_factory=ExpectedTtft)
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sharing = self.plugin.share(self.told.append)
        self.sharing.log = SentLog(self.memory, self.place)

    def look(self, in_flight: int = 0) -> Candidates:
        """The endpoints, of which the second has so many requests of all processes."""
        table = idle(ENDPOINTS, 16)
        table.in_flight[1] = in_flight
        table.now = 100.0
        self.plugin.produce(ASKED, table)
        return table

    def send(self) -> None:
        """A request is sent to the second endpoint."""
        table = self.look()
        target = Target(ENDPOINTS[1], 1.0, 0, 0)
        listener = self.plugin.follow(ASKED, table, SchedulingResult((target,)))
        assert listener is not None
        listener.on_attempt(target, 100.0)

    def expected(self, in_flight: int) -> list[float]:
        found = self.look(in_flight).get(EXPECTED_TTFT_MS)
        assert found is not None
        return list(found.tolist())


def test_a_request_of_another_process_is_expected_to_take_as_long_before_it_is_told_as_after() -> (
    None
):
    memory = np.zeros((3, ROW))
    one, other = Process(memory, 1), Process(memory, 2)
    one.send()
    for event in one.told:
        other.sharing.hear(1, event)
    one.told.clear()
    before = other.expected(in_flight=1)

    one.send()
    untold = other.expected(in_flight=2)
    for event in one.told:
        other.sharing.hear(1, event)

    assert untold[1] > before[1] + 100.0
    assert [untold[0], untold[2]] == [before[0], before[2]]
    assert other.expected(in_flight=2) == pytest.approx(untold)
