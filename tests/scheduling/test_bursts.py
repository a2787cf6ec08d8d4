"""Bursts between two scrapes: nothing that is known of the engines changes but what we sent
(GIE #1411, #2591; llm-d-router #2515)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from tests.scheduling.tables import candidates, chat, kv_aware, request

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.scheduling import Scheduling

# What llm-d does when nothing is configured (field notes 3.3).
LLM_D_DEFAULT: dict[str, list[Any]] = {
    "plugins": [
        {"type": "queue-scorer"},
        {"type": "kv-cache-utilization-scorer"},
        {"type": "prefix-cache-scorer"},
        {"type": "max-score-picker"},
        {"type": "single-profile-handler"},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "queue-scorer", "weight": 2},
                {"pluginRef": "kv-cache-utilization-scorer", "weight": 2},
                {"pluginRef": "prefix-cache-scorer", "weight": 3},
                {"pluginRef": "max-score-picker"},
            ],
        }
    ],
}


def burst(
    scheduling: Scheduling, requests: Iterable[LLMRequest], table: Candidates
) -> Counter[str]:
    """How many each engine gets. None of them has ended, or been scraped."""
    sent: Counter[str] = Counter()
    for each in requests:
        for producer in scheduling.producers:
            producer.produce(each, table)
        choice = scheduling.chooser.choose(each, table)
        target = choice.targets[0]
        for plugin in scheduling.following:
            follower = plugin.follow(each, table, choice)
            if follower is not None:
                follower.on_attempt(target, 0.0)
        sent[target.endpoint.engine] += 1
        table.in_flight[target.endpoint.holder] += 1
        table.recent_prefill_tokens[target.endpoint.holder] += 1000
    return sent


def unrelated(size: int) -> list[LLMRequest]:
    return [chat(f"Question {i}. " * 40) for i in range(size)]


@pytest.mark.parametrize("size", [8, 200])
def test_prompts_that_nobody_holds_are_spread_evenly(size: int) -> None:
    sent = burst(load_scheduling(LLM_D_DEFAULT), unrelated(3 * size), candidates(size))

    assert sorted(sent.values()) == [3] * size


@pytest.mark.parametrize("size", [8, 200])
def test_a_prompt_that_all_hold_is_spread_evenly(size: int) -> None:
    table = candidates(size, matched_blocks=10, weighted_matched_blocks=10, prompt_blocks=10)
    precise = LLM_D_DEFAULT | {
        "plugins": [
            *LLM_D_DEFAULT["plugins"][:2],
            {"type": "precise-prefix-cache-scorer", "name": "prefix-cache-scorer"},
            *LLM_D_DEFAULT["plugins"][3:],
        ]
    }

    sent = burst(load_scheduling(precise), [chat("The same. " * 40)] * (3 * size), table)

    assert sorted(sent.values()) == [3] * size


def test_a_conversation_stays_where_it_is_all_the_same() -> None:
    scheduling, table = load_scheduling(LLM_D_DEFAULT), candidates(8)
    burst(scheduling, unrelated(40), table)

    turns = ["Tell me about rivers. " * 30]
    sent: Counter[str] = Counter()
    for _ in range(5):
        sent += burst(scheduling, [chat(*turns)], table)
        turns += ["They flow. " * 30, "And then? " * 30]

    assert list(sent.values()) == [5]


def test_our_default_spreads_by_what_it_has_sent() -> None:
    table = candidates(8)
    table.in_flight[:4] = 6  # and half of the fleet is busy

    sent = burst(load_scheduling(None), unrelated(48), table)

    assert max(sent.values()) <= 10
    assert all(sent[f"e{row}"] <= sent[f"e{row + 4}"] for row in range(4))
    assert sum(sent[f"e{row}"] for row in range(4)) >= 12


@pytest.mark.parametrize("size", [2, 8, 200])
def test_our_default_spreads_prompts_that_nobody_holds_evenly(size: int) -> None:
    sent = burst(load_scheduling(None), unrelated(3 * size), candidates(size))

    assert sorted(sent.values()) == [3] * size


@pytest.mark.parametrize("size", [2, 8, 200])
def test_our_default_spreads_a_prompt_that_all_hold_evenly(size: int) -> None:
    table = candidates(size, matched_blocks=10, weighted_matched_blocks=10, prompt_blocks=10)

    sent = burst(load_scheduling(None), [chat("The same. " * 40)] * (3 * size), table)

    assert sorted(sent.values()) == [3] * size


def test_weights_spread_by_what_was_sent() -> None:
    table = candidates(8)
    table.in_flight[:4] = 6  # and half of the fleet is busy

    sent = burst(Scheduling(kv_aware()), unrelated(48), table)

    assert all(abs(sent[f"e{row}"] - (3 if row < 4 else 9)) <= 1 for row in range(8))


@pytest.mark.parametrize(("number", "elsewhere"), [(4, False), (400, True)])
def test_samples_stay_with_the_holder_until_waiting_costs_more(
    number: int, elsewhere: bool
) -> None:
    held = [125.0, 0.0, 0.0, 0.0]
    table = candidates(matched_blocks=held, weighted_matched_blocks=held, prompt_blocks=125)

    sent = burst(load_scheduling(None), [request(tokens=2000)] * number, table)

    assert (len(sent) > 1) is elsewhere
    assert sent["e0"] >= 4
