"""Requests of every kind through the whole gateway: where they go, and why."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, until

TOOL = {
    "type": "function",
    "name": "look",
    "description": "looks",
    "parameters": {"type": "object", "properties": {}},
    "strict": True,
}


async def all_known(fleet: Fleet) -> None:
    """Until the index knows as many blocks as the engines hold."""

    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(len(fleet.engines))]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines]

    await until(same)


async def respond(fleet: Fleet, given: Any, **fields: Any) -> Answer:
    body = {"model": "smollm2", "input": given, "max_output_tokens": 8, **fields}
    return await fleet.post("/v1/responses", body)


def reused(answer: Answer) -> int:
    """In blocks of 16."""
    return int(answer.body["usage"]["input_tokens_details"]["cached_tokens"]) // 16


async def decided(fleet: Fleet) -> dict[str, float]:
    names = ("kv-aware", "response-items", "embeddings")
    counts = [await fleet.metric("inferway_decisions_total", reason=name) for name in names]
    return {name: n for name, n in zip(names, counts, strict=True) if n}


@pytest.mark.parametrize(
    "fields",
    [
        {"instructions": "Be brief. " * 20},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
async def test_a_growing_response_is_matched_as_the_engine_reuses_it(
    start_fleet: StartFleet, fields: dict[str, Any]
) -> None:
    fleet = await start_fleet(3)
    items: list[dict[str, Any]] = [{"role": "user", "content": LONG}]
    engines, seen = set(), []
    for turn in range(4):
        answer = await respond(fleet, items, **fields)
        assert answer.status == 200
        engines.add(answer.engine)
        seen.append((answer.matched, reused(answer)))
        items += [*answer.body["output"], {"role": "user", "content": f"and {turn}?"}]
        await all_known(fleet)

    assert len(engines) == 1
    assert seen[0] == (0, 0)
    assert [matched for matched, _ in seen] == [blocks for _, blocks in seen]
    assert all(blocks > 0 for _, blocks in seen[1:])
    assert await decided(fleet) == {"kv-aware": 4}


async def test_text_alone_is_matched_and_its_tokens_are_counted(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    first = await respond(fleet, LONG)
    await all_known(fleet)

    again = await respond(fleet, LONG)

    assert (again.engine, again.matched) == (first.engine, again.matched)
    assert reused(again) == again.matched > 0
    delivered = await fleet.metric("inferway_delivered_tokens_total", engine=first.engine)
    assert delivered == 16 * reused(again)


@pytest.mark.parametrize("asked", [0, 1])
async def test_what_reads_no_cache_is_believed_to_reuse_nothing(
    start_fleet: StartFleet, asked: int
) -> None:
    fleet = await start_fleet(1)

    async def is_held() -> bool:
        return sum((await fleet.scores(LONG)).values()) > 0

    await fleet.chat(LONG)
    await until(is_held)

    unread = await fleet.chat(LONG, prompt_logprobs=asked)
    read = await fleet.chat(LONG)

    assert (unread.matched, unread.cached_tokens) == (0, 0)
    assert 0 < read.expected_tokens == read.cached_tokens


async def test_a_chat_and_a_response_with_the_same_tokens_share_their_blocks(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)
    chat = await fleet.chat(LONG)
    await all_known(fleet)

    same = await respond(fleet, LONG)

    assert (same.engine, reused(same)) == (chat.engine, same.matched)
    assert same.matched > 0


async def test_what_only_the_engine_renders_goes_by_load(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)

    response = await respond(fleet, "hi", previous_response_id="resp_1")
    vectors = await fleet.post(
        "/v1/embeddings", {"model": "smollm2", "input": [LONG, "b"], "padding": "max_length"}
    )

    assert await decided(fleet) == {"response-items": 1, "embeddings": 1}
    assert response.headers["x-inferway-reason"] == "response-items"
    assert vectors.headers["x-inferway-reason"] == "embeddings"
    assert "x-inferway-reason" not in (await fleet.chat("hi")).headers
    assert vectors.status == 200
    assert vectors.body["usage"]["prompt_tokens"] > 20


@pytest.mark.parametrize("fields", [{"input": LONG}, {"input": ["a", LONG]}])
async def test_embeddings_go_where_their_prompts_are_kept(
    fields: dict[str, Any], start_fleet: StartFleet
) -> None:
    fleet = await start_fleet(3)
    answers = []
    for _ in range(3):
        answers.append(await fleet.post("/v1/embeddings", {"model": "smollm2", **fields}))
        await all_known(fleet)

    assert len({answer.engine for answer in answers}) == 1
    assert [answer.matched > 0 for answer in answers] == [False, True, True]
    assert await decided(fleet) == {"kv-aware": 3}


async def test_openais_client_streams_a_response(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none") as api:
        whole = await api.responses.create(model="smollm2", input=LONG, max_output_tokens=8)
        async with api.responses.stream(model="smollm2", input=LONG, max_output_tokens=8) as stream:
            text = "".join(
                [
                    event.delta
                    async for event in stream
                    if event.type == "response.output_text.delta"
                ]
            )
            final = await stream.get_final_response()
        vectors = await api.embeddings.create(model="smollm2", input="a", encoding_format="float")

    assert text == final.output_text == whole.output_text
    assert final.usage is not None
    assert final.usage.input_tokens_details.cached_tokens > 0
    assert len(vectors.data[0].embedding) == 8


@pytest.mark.parametrize(
    ("path", "message", "param"),
    [
        ("completions", "invalid completions request: must have prompt field", "prompt"),
        (
            "chat/completions",
            "invalid chat completions request: must have valid messages field",
            "messages",
        ),
        ("responses", "invalid responses request: must have input field", "input"),
        ("embeddings", "invalid embeddings request: must have input field", "input"),
    ],
)
async def test_an_error_names_the_field_in_openais_form(
    start_fleet: StartFleet, path: str, message: str, param: str
) -> None:
    fleet = await start_fleet(1)

    answer = await fleet.post(f"/v1/{path}", {"model": "smollm2"})

    error = {"type": "invalid_request_error", "code": None}
    assert (answer.status, answer.body) == (
        400,
        {"error": {"message": message, "param": param, **error}},
    )


async def test_a_prompt_too_long_is_told_in_the_words_of_its_kind(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    long = await respond(fleet, "word " * 9000)
    much = await respond(fleet, "hi", max_output_tokens=100_000)

    assert (long.status, long.body["error"]["param"]) == (400, "input")
    assert (
        "maximum context length is 8192 tokens. However, your prompt contains 9"
        in (long.body["error"]["message"])
    )
    assert (much.status, much.body["error"]["param"]) == (400, "max_output_tokens")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, "/v1/responses/resp_1") for method in ("GET", "POST", "DELETE")),
        *(("POST", "/v1/conversations"), ("GET", "/v1/conversations/conv_1")),
    ],
)
async def test_what_an_engine_stores_is_asked_of_that_engine(
    start_fleet: StartFleet, method: str, path: str
) -> None:
    fleet = await start_fleet(1)

    async with fleet.http.request(method, f"{fleet.url}{path}") as r:
        answer = (r.status, (await r.json())["error"])

    assert answer[0] == 404
    assert (
        "ask that engine itself (x-inferway-engine of its answers names it)" in answer[1]["message"]
    )


async def test_other_methods_are_not_allowed(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    async with fleet.http.get(f"{fleet.url}/v1/responses") as r:
        assert (r.status, r.headers["allow"]) == (405, "POST")
