"""Gateways that hear of each other late do not all go to the engine that is best by a little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inferway.model import Candidates, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.expected_ttft.costs import KNOWN_AFTER
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Begins, Kind, Sharing, Took, Waits
from inferway.scheduling.idle import idle

BLOCK = 16
ENDPOINTS = [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(8)]
GATEWAYS = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
EVERY, WORK_MS, DELAY = 0.05, 100.0, 0.05  # others keep two engines busy
UNTIL = 100.0  # seconds


def hears_of_others(sharing: Sharing) -> None:
    for number in range(int(UNTIL / EVERY)):
        at = number * EVERY
        name = ENDPOINTS[number % len(ENDPOINTS)].name
        sharing.hear(7, Waits(name, number, 1e3, 120.0, at, WORK_MS, 1e3, 2e3))
        sharing.hear(7, Begins(number, at + 0.12, is_assumed=False))


def gateway(number: int, *, delay: float = DELAY, others: bool = True) -> ExpectedTtft:
    """One that knows its engines, and hears of others' requests."""
    plugin = ExpectedTtft()
    sharing = plugin.share(lambda _: None, delay)
    sharing.stand(GATEWAYS[number], {*GATEWAYS} - {GATEWAYS[number]})
    plugin.slots.rows(ENDPOINTS, 0.0)
    for endpoint in ENDPOINTS * KNOWN_AFTER:
        features = (1.0, 1e3, 5e5, 0.0, 0.0, 0.0)
        sharing.hear(7, Took(Kind.TTFT, endpoint.name, features, 127.8, 0.0))
    if others:
        hears_of_others(sharing)
    return plugin


def unheard(
    plugin: ExpectedTtft, endpoints: list[Endpoint], cost: Sequence[float] | None = None
) -> dict[str, float]:
    """The milliseconds that are unheard of, where all endpoints cost as much unless it is said."""
    sharing = plugin.learning.sharing
    assert sharing is not None
    costs = np.array([100.0] * len(endpoints) if cost is None else cost)
    found = sharing.unheard_ms(endpoints, UNTIL, costs).tolist()
    return {endpoint.name: ms for endpoint, ms in zip(endpoints, found, strict=True)}


def choice(plugin: ExpectedTtft, held_blocks: int) -> int:
    """Nothing waits anywhere, and the third endpoint holds some of the prompt."""
    asked = LLMRequest(
        request_id="r",
        target_model="m",
        body=CompletionRequest(model="m", prompt=""),
        raw=b"x" * (4 * 4_000),
    )
    table: Candidates = idle(ENDPOINTS, BLOCK)
    table.now = UNTIL + 1.0
    table.matched_blocks[2] = table.weighted_matched_blocks[2] = held_blocks
    plugin.produce(asked, table)
    return int(plugin.score(asked, table).argmax())


@pytest.mark.parametrize("as_good", [1, 4, 8])
def test_at_most_twice_the_work_that_others_send_meanwhile_is_unheard_of(as_good: int) -> None:
    costs = [100.0] * as_good + [1_000.0] * (8 - as_good)
    found = unheard(gateway(1), ENDPOINTS, costs)

    most = 2 * DELAY / EVERY * WORK_MS / as_good**0.5
    steps = sorted(found.values())
    assert steps == pytest.approx([most * i / 8 for i in range(8)], rel=0.02)


def test_gateways_that_know_the_same_choose_others_of_equal_engines() -> None:
    chosen = [choice(gateway(number), 1) for number in range(4)]

    assert len(set(chosen)) == 4


def test_an_engine_that_is_much_better_is_chosen_by_all() -> None:
    assert [choice(gateway(number), 200) for number in range(4)] == [2] * 4  # 320 ms less


@pytest.mark.parametrize("number", range(4))
def test_the_best_is_chosen_where_nothing_is_unheard_of(number: int) -> None:
    assert choice(gateway(number, delay=0.0), 1) == 2
    assert choice(gateway(number, others=False), 1) == 2


def test_the_order_in_which_engines_are_listed_changes_nothing() -> None:
    plugin = gateway(2)

    assert unheard(plugin, ENDPOINTS[::-1]) == pytest.approx(unheard(plugin, ENDPOINTS))


def test_a_gateway_that_goes_makes_room() -> None:
    plugin = gateway(3)
    sharing = plugin.learning.sharing
    assert sharing is not None
    before = unheard(plugin, ENDPOINTS)

    sharing.stand(GATEWAYS[3], [])

    assert unheard(plugin, ENDPOINTS) == pytest.approx(unheard(gateway(0), ENDPOINTS))
    assert unheard(plugin, ENDPOINTS) != pytest.approx(before)
