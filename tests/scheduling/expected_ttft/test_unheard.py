"""Gateways that hear of each other late do not all go to the engine that is the best by a
little."""

from __future__ import annotations

from random import Random

import pytest

from inferway.model import Candidates, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.expected_ttft.costs import KNOWN_AFTER
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Begins, Kind, Sharing, Took, Waits
from inferway.scheduling.idle import idle
from inferway.scheduling.pickers import MaxScore

BLOCK = 16
ENDPOINTS = [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(8)]
EVERY, WORK_MS, DELAY = 0.05, 100.0, 0.05  # others keep two engines busy
UNTIL = 100.0  # seconds


def hears_of_others(sharing: Sharing) -> None:
    for number in range(int(UNTIL / EVERY)):
        at = number * EVERY
        name = ENDPOINTS[number % len(ENDPOINTS)].name
        sharing.hear(7, Waits(name, number, 1e3, 120.0, at, WORK_MS, 1e3, 2e3))
        sharing.hear(7, Begins(number, at + 0.12, is_assumed=False))


def gateway(seed: int, *, delay: float = DELAY, others: bool = True) -> ExpectedTtft:
    """One that knows its engines, and hears of others' requests."""
    plugin = ExpectedTtft(random=Random(seed))
    sharing = plugin.share(lambda _: None, delay)
    plugin.slots.rows(ENDPOINTS, 0.0)
    for endpoint in ENDPOINTS * KNOWN_AFTER:
        features = (1.0, 1e3, 5e5, 0.0, 0.0, 0.0)
        sharing.hear(7, Took(Kind.TTFT, endpoint.name, features, 127.8, 0.0))
    if others:
        hears_of_others(sharing)
    return plugin


def request(*, hypothetical: bool = False) -> LLMRequest:
    return LLMRequest(
        request_id="r",
        target_model="m",
        body=CompletionRequest(model="m", prompt=""),
        raw=b"x" * (4 * 4_000),
        is_hypothetical=hypothetical,
    )


def candidates(held_blocks: int) -> Candidates:
    """Nothing waits anywhere, and the third endpoint holds some of the prompt."""
    table = idle(ENDPOINTS, BLOCK)
    table.now = UNTIL + 1.0
    table.matched_blocks[2] = table.weighted_matched_blocks[2] = held_blocks
    return table


def choices(plugin: ExpectedTtft, held_blocks: int, *, hypothetical: bool = False) -> list[int]:
    picker, asked, found = MaxScore(), request(hypothetical=hypothetical), []
    for _ in range(60):
        table = candidates(held_blocks)
        plugin.produce(asked, table)
        found.append(picker.pick(plugin.score(asked, table), 1)[0])
    return found


def test_as_much_work_is_unheard_of_as_others_send_meanwhile() -> None:
    plugin = gateway(1)
    sharing = plugin.learning.sharing
    assert sharing is not None

    unheard = sharing.unheard_ms(slice(None), UNTIL)

    assert unheard == pytest.approx(DELAY / EVERY * WORK_MS, rel=0.02)


def test_who_knows_the_same_seldom_chooses_the_same() -> None:
    one, other = choices(gateway(1), 1), choices(gateway(2), 1)

    assert set(one) == set(range(8))
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 20


def test_an_engine_that_is_much_better_is_chosen_all_the_same() -> None:
    assert choices(gateway(1), 200) == [2] * 60  # 320 ms less


@pytest.mark.parametrize(
    "plugin", [gateway(1, delay=0.0), gateway(1, others=False)], ids=["at once", "nobody else"]
)
def test_the_best_is_chosen_where_nothing_is_unheard_of(plugin: ExpectedTtft) -> None:
    assert choices(plugin, 1) == [2] * 60


def test_where_a_request_would_go_is_not_drawn() -> None:
    assert choices(gateway(1), 1, hypothetical=True) == [2] * 60
