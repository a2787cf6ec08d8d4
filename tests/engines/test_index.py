"""What the index believes of the engines is what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.engines import client
from tests.engines.chats import (
    Request,
    chat,
    completion,
    conversations,
    up_to_user,
    user,
)
from tests.engines.conftest import serve
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.gateway import (
    ask_directly,
    cached,
    engine_of,
    scores,
    send,
    wait_until_believed,
)
from tests.engines.waiting import wait_until


def turns(messages: Sequence[dict[str, object]], name: str, **more: object) -> list[Request]:
    """The requests of a conversation, one for each time the user speaks."""
    ends = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return [chat(f"{name}, turn {n}", messages[: i + 1], **more) for n, i in enumerate(ends)]


def numbers(first: int, num: int) -> list[int]:
    """A prompt of token ids that no other prompt begins with."""
    return [1000 + (first * 613 + i * 7) % 40_000 for i in range(num)]


def prompts() -> list[Request]:
    """Conversations that share beginnings, some asked again; salts; whole numbers of blocks."""
    made: list[Request] = []
    for each in conversations("oasst1"):
        made += turns(each["messages"], f"oasst1 {each['id']}")
    for each in conversations("MT-Bench-101")[:5]:
        made += turns(each["messages"], f"mt-bench {each['id']}")
    salted = conversations("oasst1")[0]["messages"]
    made += turns(salted, "salt a", cache_salt="tenant-a")
    made += turns(salted, "salt b", cache_salt="tenant-b")
    for length in (1, 31, 32, 33, 64, 65, 128):
        made.append(completion(f"{length} ids", numbers(length, length)))
        made.append(completion(f"{length} ids again", numbers(length, length)))
    for each in conversations("KdConv")[4:8]:
        made += turns(each["messages"], f"kdconv {each['id']}")[2::5]
    made.append(completion("text", conversations("arena-hard")[0]["messages"][0]["content"]))
    made += [chat("last", up_to_user(each["messages"])) for each in conversations("tau")[:1]]
    return made


Traffic = list[tuple[Request, str]]


@pytest.fixture(scope="module")
def traffic(gateway: str) -> Traffic:
    """Prompts that have gone through the gateway, and to which engine; their events have come
    back to it."""
    sent = []
    for request in prompts():
        answer = send(gateway, request)
        wait_until_believed(gateway, request, engine_of(answer), cached(answer).prompt_blocks)
        sent.append((request, engine_of(answer)))
    return sent


def test_a_gateway_that_starts_late_believes_the_same(
    traffic: Traffic,
    gateway: str,
    engines: Sequence[RealEngine],
    new_log: Callable[[str], Path],
) -> None:
    with serve(engines, new_log("late-gateway")) as late:
        believed = [scores(gateway, request) for request, _ in traffic]

        wait_until(
            lambda: [scores(late.url, request) for request, _ in traffic] == believed,
            "the late gateway believes what the other one does",
        )


def test_matched_blocks_are_the_tokens_that_engines_report_as_cached(
    traffic: Traffic, gateway: str, engines: Sequence[RealEngine]
) -> None:
    differing = []
    num_hits = num_driven_out = 0
    # The newest first: asking for them drives out what the engines have had for longest.
    for request, answered_by in reversed(traffic):
        believed = scores(gateway, request)
        for engine in engines:
            told = ask_directly(gateway, engine, request)
            if min(believed[engine.name], told.reusable_blocks) != told.blocks:
                differing.append((request.name, engine.name, believed[engine.name], told))
            num_hits += told.blocks > 0
            num_driven_out += engine.name == answered_by and told.blocks < told.reusable_blocks

    assert not differing
    # Both ways of being right have been tried.
    assert num_hits > len(traffic) / 2
    assert num_driven_out > 0


def test_blocks_of_an_answer_count_as_held(gateway: str, engines: Sequence[RealEngine]) -> None:
    prompt, num_generated = numbers(501, 40), 57
    request = completion("an answer of two blocks", prompt)
    answer = send(
        engines[0].url, request, max_tokens=num_generated, ignore_eos=True, return_token_ids=True
    )
    generated = answer.json["choices"][0]["token_ids"]
    whole = completion("prompt and answer", [*prompt, *generated])

    # The last token that was generated has not been through the model.
    wait_until_believed(gateway, whole, engines[0].name, (40 + num_generated - 1) // BLOCK_SIZE)

    assert cached(send(engines[0].url, whole)).cached_tokens == 3 * BLOCK_SIZE


def test_a_reset_of_one_engine_empties_its_entries_only(
    gateway: str, engines: Sequence[RealEngine]
) -> None:
    request = completion("before the reset", numbers(777, 5 * BLOCK_SIZE + 1))
    for engine in engines:
        ask_directly(gateway, engine, request)

    assert client.post(f"{engines[0].url}/reset_prefix_cache", {}).json == {"success": True}
    # vLLM publishes only when its scheduler does something: an idle engine keeps the news.
    send(engines[0].url, chat("something small", [user("Hi")]))

    wait_until_believed(gateway, request, engines[0].name, 0)
    assert scores(gateway, request)[engines[1].name] == 5
