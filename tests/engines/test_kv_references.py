"""What vLLM does with kv_transfer_params, as far as we rely on it or must guard against it.

A prefill engine answers a leg with a reference to the blocks that it keeps; a decode engine fetches
what the reference names, whatever it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION
from tests.engines.client import Answer
from tests.engines.engine import BLOCK_SIZE, MODEL, free_ports
from tests.engines.nixl import ASKS_FOR_REFERENCE, ENDED_LEASES, LEASE_SECONDS, NixlEngine, metric
from tests.engines.waiting import wait_until

Json = dict[str, Any]
Pair = tuple[NixlEngine, NixlEngine]

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
NEEDED = {
    "do_remote_prefill": bool,
    "remote_block_ids": list,
    "remote_engine_id": str,
    "remote_request_id": str,
    "remote_host": str,
    "remote_port": int,
    "tp_size": int,
    "remote_num_tokens": int,
}
ANSWER_TOKENS = 6
NUM_TOKENS = 5 * BLOCK_SIZE + 1


def ids(name: str) -> list[int]:
    """A prompt that no other name has."""
    return Random(name).choices(range(1000, 40_000), k=NUM_TOKENS)


def completion(name: str, **more: object) -> Json:
    body = {"model": MODEL, "prompt": ids(name), "temperature": 0, "logprobs": 1}
    return {**body, "max_tokens": ANSWER_TOKENS, **more}


def body_for(path: str) -> Json:
    """A body of one token's answer, of a prompt that is the path's own."""
    text = f"{path}: " + "a lighthouse and the sea " * 20
    said = [{"role": "user", "content": text}]
    common = {"model": MODEL, "temperature": 0}
    return {
        CHAT: {**common, "messages": said, "max_tokens": 1},
        COMPLETION: {**common, "prompt": text, "max_tokens": 1},
        RESPONSES: {**common, "input": text, "max_output_tokens": 1},
        MESSAGES: {**common, "messages": said, "max_tokens": 1},
    }[path]


def reference(engine: NixlEngine, name: str) -> Json:
    """Of the completion of that name, with which this is the prefill leg."""
    body = completion(name, max_tokens=1, kv_transfer_params=ASKS_FOR_REFERENCE)
    found: Json = client.post(engine.url + COMPLETION, body).json["kv_transfer_params"]
    return found


def decode(engine: NixlEngine, name: str, params: Mapping[str, object], **more: object) -> Answer:
    body = completion(name, kv_transfer_params=params, **more)
    return client.post(engine.url + COMPLETION, body)


def log_probabilities(answer: Answer) -> list[float]:
    found: list[float] = answer.json["choices"][0]["logprobs"]["token_logprobs"]
    return found


def computed_alone(engine: NixlEngine, name: str) -> list[float]:
    """The log-probabilities of the answer, of blocks that nobody else has."""
    answer = client.post(engine.url + COMPLETION, completion(name, cache_salt="alone"))
    return log_probabilities(answer)


@pytest.mark.parametrize("path", [CHAT, COMPLETION, RESPONSES, MESSAGES])
def test_a_prefill_leg_is_answered_with_a_reference(nixl_engines: Pair, path: str) -> None:
    body = {**body_for(path), "kv_transfer_params": ASKS_FOR_REFERENCE}

    found = client.post(nixl_engines[0].url + path, body).json["kv_transfer_params"]

    assert {name: type(found[name]) for name in NEEDED} == NEEDED
    assert found["do_remote_prefill"] is True
    assert found["remote_host"] == "127.0.0.1"
    assert found["remote_port"] == nixl_engines[0].side_channel


def test_a_streamed_prefill_leg_of_a_chat_is_answered_without_a_reference(
    nixl_engines: Pair,
) -> None:
    body = {**body_for(CHAT), "stream": True, "kv_transfer_params": ASKS_FOR_REFERENCE}

    assert b"remote_block_ids" not in client.post(nixl_engines[0].url + CHAT, body).raw


def test_a_decode_leg_fetches_the_whole_prompt_and_answers_as_one_engine_does(
    nixl_engines: Pair,
) -> None:
    prefill, other = nixl_engines
    fetched = metric(other, "vllm:prompt_tokens_by_source_total", "external_kv_transfer")

    answer = decode(other, "whole", reference(prefill, "whole"))

    now = wait_until(
        lambda: (
            metric(other, "vllm:prompt_tokens_by_source_total", "external_kv_transfer") - fetched
        ),
        "the engine counts what it fetched",
    )
    assert now == NUM_TOKENS
    assert log_probabilities(answer) == pytest.approx(computed_alone(other, "whole"), abs=1e-4)


def test_a_decode_leg_says_the_prefill_engines_cached_tokens(nixl_engines: Pair) -> None:
    prefill, other = nixl_engines
    reference(prefill, "cached")

    usage = decode(other, "cached", reference(prefill, "cached")).json["usage"]

    assert usage["prompt_tokens_details"]["cached_tokens"] == 5 * BLOCK_SIZE


def test_a_reference_is_not_bound_to_its_prompt(nixl_engines: Pair) -> None:
    """A second prompt gets the first one's blocks, and keeps them: status 200, a wrong answer."""
    prefill, other = nixl_engines
    right = computed_alone(other, "second")

    wrong = decode(other, "second", reference(prefill, "first"), cache_salt="a")
    later = client.post(other.url + COMPLETION, completion("second", cache_salt="a"))

    assert (wrong.status, later.status) == (200, 200)
    assert log_probabilities(wrong) != pytest.approx(right, abs=1e-2)
    assert log_probabilities(later) != pytest.approx(right, abs=1e-2)


def test_a_reference_whose_lease_has_ended_is_counted_by_the_prefill_engine_alone(
    nixl_engines: Pair,
) -> None:
    prefill, other = nixl_engines
    ended = metric(prefill, ENDED_LEASES)
    params = reference(prefill, "expired")

    wait_until(
        lambda: metric(prefill, ENDED_LEASES) > ended,
        "the lease ends",
        seconds=LEASE_SECONDS + 30,
    )

    assert decode(other, "expired", params).status == 200


def test_an_engine_that_may_fetch_from_nobody_computes_if_it_is_told_to(
    nixl_engines: Pair,
) -> None:
    """The first one recomputes, the second one fails."""
    recomputes, fails = nixl_engines
    gone = {"remote_engine_id": "gone", "remote_port": free_ports(1)[0]}

    computed = decode(recomputes, "gone", {**reference(fails, "gone"), **gone})
    failed = decode(fails, "gone, too", {**reference(recomputes, "gone, too"), **gone})

    assert log_probabilities(computed) == pytest.approx(
        computed_alone(recomputes, "gone"), abs=1e-4
    )
    assert failed.status == 500


def test_a_failed_load_is_an_error_event_after_the_role_of_a_streamed_chat(
    nixl_engines: Pair,
) -> None:
    prefill, fails = nixl_engines
    asked = {**body_for(CHAT), "kv_transfer_params": ASKS_FOR_REFERENCE}
    params = client.post(prefill.url + CHAT, asked).json["kv_transfer_params"]
    body = {**body_for(CHAT), "stream": True}

    broken = {"kv_transfer_params": {**params, "remote_engine_id": "another"}}
    answer = client.post(fails.url + CHAT, {**body, **broken})

    events = [line for line in answer.raw.decode().splitlines() if line]
    assert answer.status == 200
    assert '"role":"assistant","content":""' in events[0]
    assert events[1].startswith('data: {"error":')


def test_an_engine_tells_how_it_hands_over_its_blocks(nixl_engines: Pair) -> None:
    told = [
        client.get(f"{engine.url}/server_info?config_format=json").json for engine in nixl_engines
    ]

    configs = [each["vllm_config"]["kv_transfer_config"] for each in told]
    assert [c["kv_connector"] for c in configs] == ["NixlConnector"] * 2
    assert [c["kv_load_failure_policy"] for c in configs] == ["recompute", "fail"]
    assert configs[0]["kv_connector_extra_config"]["kv_lease_duration"] == LEASE_SECONDS
    ports = [int(each["vllm_env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"]) for each in told]
    assert ports == [engine.side_channel for engine in nixl_engines]
