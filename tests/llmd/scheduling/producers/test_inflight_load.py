"""Tokens in flight."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scheduling.tables import candidates, request, target

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest
from inferway.scheduling.plugin import RequestListener, RequestOutcome
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.producers.inflight_load import (
    TYPE,
    InflightLoad,
    InflightLoadParameters,
    token_column,
)

COLUMN = token_column("load")


def producer(**parameters: Any) -> InflightLoad:
    built = TYPE.build(InflightLoadParameters(**parameters), Building(name="load"))
    assert isinstance(built, InflightLoad)
    return built


def table(**columns: Any) -> Candidates:
    # 100 tokens are 6 blocks and a tail of 4
    return candidates(**{"weighted_matched_blocks": [0, 2, 6], "prompt_blocks": 6, **columns})


def column(plugin: InflightLoad, ask: LLMRequest, made: Candidates) -> list[float]:
    plugin.produce(ask, made)
    found = made.get(COLUMN)
    assert found is not None
    tokens: list[float] = found.tolist()
    return tokens


def sent(
    plugin: InflightLoad, ask: LLMRequest, made: Candidates, row: int, **others: int
) -> RequestListener:
    plugin.produce(ask, made)
    also = {profile: target(made, other) for profile, other in others.items()}
    choice = SchedulingResult((target(made, row),), others=also)
    follower = plugin.follow(ask, made, choice)
    follower.on_attempt(choice.targets[0], 0.0)
    return follower


OVER = RequestOutcome("ok", 1.0)
IDLE = [100.0, 68.0, 4.0]  # less 2 and 6 blocks of 16
ASK = request(tokens=100)


def test_a_request_adds_what_an_endpoint_does_not_hold() -> None:
    assert column(producer(), ASK, table()) == IDLE


def test_unknown_prompts_count_a_quarter_of_their_bytes() -> None:
    ask = request(raw=b"x" * 402)

    assert column(producer(), ask, candidates(2)) == [100.0, 100.0]


def test_tokens_are_in_flight_until_the_first_piece() -> None:
    plugin = producer()
    follower = sent(plugin, ASK, table(), 1)
    assert column(plugin, ASK, table()) == [100.0, 68.0 + 68.0, 4.0]

    follower.on_first_chunk(0.5)

    assert column(plugin, ASK, table()) == IDLE
    follower.on_end(OVER)
    assert column(plugin, ASK, table()) == IDLE


def test_another_attempt_takes_back_the_first() -> None:
    plugin, made = producer(), table()
    follower = sent(plugin, ASK, made, 0)
    follower.on_attempt(target(made, 2), 0.1)
    assert column(plugin, ASK, table()) == [100.0, 68.0, 8.0]

    follower.on_end(OVER)

    assert column(plugin, ASK, table()) == IDLE


@pytest.mark.parametrize(
    ("parameters", "most", "output"),
    [
        ({}, None, 150),
        ({"output_ratio": 0.125}, None, 13),  # 12.5, rounded away from 0 as Go does
        ({}, 20, 20),
        ({"max_estimated_output_tokens": 30}, 200, 30),
    ],
)
def test_output_counts_until_the_end(
    parameters: dict[str, Any], most: int | None, output: int
) -> None:
    plugin = producer(add_estimated_output_tokens=True, **parameters)
    ask = request(tokens=100, body=ChatRequest(model="m", messages=[], max_tokens=most))
    own = 100.0 + output
    follower = sent(plugin, ask, table(), 0)

    follower.on_first_chunk(0.5)
    assert column(plugin, ask, table())[0] == 2 * own

    follower.on_end(OVER)
    assert column(plugin, ask, table())[0] == own


def test_where_it_is_prefilled_the_tokens_count_until_the_first_piece() -> None:
    plugin = producer(add_estimated_output_tokens=True, output_ratio=1.0)
    follower = sent(plugin, ASK, table(), 0, prefill=1)
    assert column(plugin, ASK, table()) == [200.0 + 200.0, 168.0 + 168.0, 104.0]

    follower.on_first_chunk(0.5)

    assert column(plugin, ASK, table()) == [400.0, 168.0, 104.0]


def test_an_endpoints_tokens_stay_its_own_when_the_fleet_changes() -> None:
    plugin = producer()
    follower = sent(plugin, ASK, table(), 2)
    smaller = candidates(2)
    assert column(plugin, ASK, smaller) == [100.0, 100.0]
    assert column(plugin, ASK, table()) == [100.0, 68.0, 8.0]

    follower.on_end(OVER)

    assert column(plugin, ASK, table()) == IDLE
