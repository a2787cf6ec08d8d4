"""Approximate prefix matches, as a director would drive them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scheduling.tables import candidates, chat, request, target

from inferway.errors import ConfigError
from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.prefix_source import ApproximatePrefixSource
from inferway.scheduling.registry import Building
from inferway_llmd.scheduling.producers.approx_prefix_cache import (
    TYPE,
    ApproxPrefixCache,
    ApproxPrefixCacheParameters,
)

BLOCK = 64  # bytes of 16 tokens


def producer(**parameters: Any) -> ApproxPrefixCache:
    built = TYPE.build(ApproxPrefixCacheParameters(**parameters), Building(name="approx"))
    assert isinstance(built, ApproxPrefixCache)
    return built


TABLE = candidates(3)


def produced(
    plugin: ApproxPrefixCache, ask: LLMRequest, table: Candidates = TABLE
) -> tuple[list[float], float]:
    """Blocks held by row, and blocks of the prompt."""
    plugin.produce(ask, table)
    match = ApproximatePrefixSource("approx").match(table)
    assert match is not None
    return match.held.tolist(), float(match.total[0])


def send(
    plugin: ApproxPrefixCache,
    ask: LLMRequest,
    row: int,
    table: Candidates = TABLE,
    prefill: int | None = None,
) -> None:
    produced(plugin, ask, table)
    others = {} if prefill is None else {"prefill": target(table, prefill)}
    choice = SchedulingResult((target(table, row),), others=others)
    plugin.follow(ask, table, choice).on_attempt(choice.targets[0], 0.0)


def prompt(text: str, **fields: Any) -> LLMRequest:
    return request(body=CompletionRequest(model="m", prompt=text, **fields))


def test_a_prompt_that_is_read_from_no_cache_matches_nothing_and_is_there_afterwards() -> None:
    plugin = producer()
    text = "a" * 3 * BLOCK

    send(plugin, prompt(text, prompt_logprobs=0), row=1)

    assert produced(plugin, prompt(text, prompt_logprobs=0)) == ([0, 0, 0], 3.0)
    assert produced(plugin, prompt(text)) == ([0, 3, 0], 3.0)


def test_what_was_sent_somewhere_is_held_there() -> None:
    plugin = producer()
    send(plugin, prompt("a" * 4 * BLOCK), 1)

    assert produced(plugin, prompt("a" * 4 * BLOCK)) == ([0.0, 4.0, 0.0], 4.0)
    assert produced(plugin, prompt("a" * 2 * BLOCK + "b" * 2 * BLOCK)) == ([0.0, 2.0, 0.0], 4.0)
    assert produced(plugin, prompt("b" * 4 * BLOCK)) == ([0.0, 0.0, 0.0], 4.0)


def test_the_last_block_may_be_a_short_one_and_a_short_prompt_has_none() -> None:
    plugin = producer()

    assert produced(plugin, prompt("a" * (BLOCK + 1)))[1] == 2.0
    assert produced(plugin, prompt("a" * (BLOCK - 1)))[1] == 0.0


def test_a_growing_conversation_matches_its_own_past_to_the_block() -> None:
    plugin, turns = producer(), ["Tell me about the sea." * 9]
    for turn in range(6):
        turns += [f"Answer {turn}: " + "waves " * 40, f"Go on, {turn}. " + "more " * 20]
        past, now = chat(*turns[:-2]), chat(*turns)
        send(plugin, past, 2)
        send(plugin, chat("Another talk, " + "of no concern. " * 20), 0)

        sent = sum(map(len, turns[:-2]))
        (none, also_none, held), blocks = produced(plugin, now)

        assert held >= sent // BLOCK
        assert blocks > held
        assert (none, also_none) == (0.0, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        chat("x" * 500, tools=[{"type": "function"}]),
        chat("x" * 500, cache_salt="s"),
        chat("x" * 500, model="n"),
        chat("x" * 500, chat_template_kwargs={"thinking": True}),
    ],
)
def test_what_is_rendered_or_kept_apart_shares_nothing(other: LLMRequest) -> None:
    plugin = producer()
    send(plugin, chat("x" * 500), 1)

    assert produced(plugin, other)[0] == [0.0, 0.0, 0.0]


def test_a_second_attempt_teaches_too_and_so_does_a_prefill() -> None:
    plugin = producer()
    send(plugin, prompt("a" * BLOCK), 0, prefill=2)

    assert produced(plugin, prompt("a" * BLOCK))[0] == [1.0, 0.0, 1.0]


def test_several_prompts_add_up() -> None:
    plugin = producer()
    send(plugin, prompt("a" * 2 * BLOCK), 1)
    both = request(body=CompletionRequest(model="m", prompt=["a" * 2 * BLOCK, "b" * 3 * BLOCK]))

    assert produced(plugin, both) == ([0.0, 2.0, 0.0], 5.0)


def test_blocks_are_as_large_as_the_engines_where_they_tell() -> None:
    small, large, unknown = (candidates(1, block_size=size) for size in (16, 64, 0))
    text = prompt("a" * 256)

    assert produced(producer(), text, small)[1] == 4.0
    assert produced(producer(), text, large)[1] == 1.0
    assert produced(producer(), text, unknown)[1] == 4.0
    assert produced(producer(auto_tune=False, block_size_tokens=32), text, large)[1] == 2.0
    assert produced(producer(auto_tune=False, block_size=8), text, large)[1] == 8.0


def test_no_more_is_matched_than_configured() -> None:
    text = prompt("a" * BLOCK * 1000)

    assert produced(producer(), text)[1] == 256.0
    assert produced(producer(max_prefix_blocks_to_match=3), text)[1] == 3.0
    assert produced(producer(max_prefix_tokens_to_match=100), text)[1] == 6.0
    assert produced(producer(max_prefix_blocks_to_match=0), text)[1] == 1000.0
    with pytest.raises(ConfigError, match="maxPrefixTokensToMatch: 15"):
        producer(max_prefix_tokens_to_match=15)


def test_an_endpoint_that_comes_back_holds_nothing() -> None:
    plugin = producer()
    send(plugin, prompt("a" * BLOCK), 2)
    produced(plugin, prompt("a" * BLOCK), candidates(2))

    assert produced(plugin, prompt("a" * BLOCK), candidates(3))[0] == [0.0, 0.0, 0.0]


def test_other_models_endpoints_are_not_forgotten() -> None:
    plugin, other = producer(), chat("x" * 100, model="n")
    send(plugin, prompt("a" * BLOCK), 2)
    produced(plugin, other, candidates(1))

    assert produced(plugin, prompt("a" * BLOCK))[0] == [0.0, 0.0, 1.0]


def test_the_scorer_alone_brings_the_producer_with_it() -> None:
    scheduling = load_scheduling({"plugins": [{"type": "prefix-cache-scorer"}]})

    assert [type(each) for each in scheduling.producers] == [ApproxPrefixCache]


def test_a_producer_of_another_name_is_the_one_that_is_read() -> None:
    scheduling = load_scheduling(
        {
            "plugins": [
                {
                    "type": "inflight-load-producer",
                    "parameters": {"prefixMatchInfoProducerName": "mine"},
                },
                {"type": "prefix-cache-scorer"},
                {"type": "approx-prefix-cache-producer", "name": "mine"},
            ]
        }
    )
    first, second = scheduling.producers
    ask, table = prompt("a" * BLOCK), candidates(2)
    for producer_ in (first, second):
        producer_.produce(ask, table)

    assert isinstance(first, ApproxPrefixCache)  # before who reads it
    assert len(scheduling.following) == 2
    assert scheduling.chooser.choose(ask, table).targets[0].score == 0.0
