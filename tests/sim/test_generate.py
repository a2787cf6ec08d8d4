"""Tokens in, tokens out, of a simulated engine as of vLLM's."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.test_server import Json, Scenario, post, posting, serving, stream

GENERATE = "/inference/v1/generate"
IDS = [*range(65, 105)]  # two blocks and a half


def asked(*, ids: list[Any] = IDS, params: Json | None = None, **fields: Any) -> Json:
    return {"token_ids": ids, "sampling_params": {"max_tokens": 3, **(params or {})}, **fields}


def generated(*bodies: Json, **settings: Any) -> list[tuple[int, Json]]:
    return posting(*((GENERATE, body) for body in bodies), enable_scale_out=True, **settings)


def test_without_the_flag_it_answers_as_vllm_does() -> None:
    [(status, answer)] = posting((GENERATE, asked()))

    assert (status, answer["error"]["type"]) == (403, "PermissionDeniedError")


def test_ids_come_back_and_the_second_time_from_the_cache() -> None:
    (_, first), (status, second) = generated(asked(), asked(model="m", return_token_ids=True))

    assert status == 200
    assert second["choices"][0]["token_ids"] == IDS[:3]  # it echoes
    assert (first["prompt_token_ids"], second["prompt_token_ids"]) == (None, IDS)
    assert second["usage"] == {
        "prompt_tokens": 40,
        "total_tokens": 43,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_several_answers_are_of_one_prompt() -> None:
    [(_, answer)] = generated(asked(params={"n": 3}))

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (40, 9)


def test_a_stream_ends_with_its_usage() -> None:
    async def scenario(_engine: Any, client: Any) -> list[Json]:
        options = {"include_usage": True}
        return await stream(client, GENERATE, asked(params={"n": 2}, stream_options=options))

    run: Scenario = scenario
    chunks = serving(run, enable_scale_out=True)

    of_first = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == 0]
    assert [choice["token_ids"] for choice in of_first] == [[each] for each in IDS[:3]]
    assert [choice["finish_reason"] for choice in of_first] == [None, None, "length"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 6)


def test_what_it_is_not_told_to_read_in_its_cache_it_computes() -> None:
    _, (_, second) = generated(asked(), asked(params={"skip_reading_prefix_cache": True}))

    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (asked(ids=[]), 400),
        (asked(ids=[-1]), 400),
        (asked(ids=[1] * 9000), 400),
        ({"token_ids": [1]}, 400),
        (asked(params={"max_tokens": 0}), 400),
        (asked(model="other"), 404),
    ],
)
def test_bad_requests_are_refused(body: Json, status: int) -> None:
    [(answered, answer)] = generated(body)

    assert (answered, answer["error"]["code"]) == (status, status)


def test_salts_keep_prompts_apart() -> None:
    async def scenario(_engine: Any, client: Any) -> list[int]:
        cached = []
        for salt in ("a", "b", "a"):
            _, answer = await post(client, GENERATE, asked(cache_salt=salt))
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        return cached

    assert serving(scenario, enable_scale_out=True) == [0, 0, 32]
