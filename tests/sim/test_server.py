"""A simulated engine over HTTP, as a client meets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from tests.sim.doubles import ByteModel

from inferway_sim.config import EventsConfig, LatencyModel, SimulatorConfig
from inferway_sim.engine import SimulatedEngine
from inferway_sim.replies import Reply

Json = dict[str, Any]
Scenario = Callable[[SimulatedEngine, aiohttp.ClientSession], Awaitable[Any]]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def serving(scenario: Scenario, reply: Reply | None = None, **settings: Any) -> Any:
    """Run `scenario` against an engine that echoes unless told otherwise."""

    async def run() -> Any:
        config = SimulatorConfig("m", **{"mode": "echo", **settings})
        async with (
            SimulatedEngine(config, ByteModel(), reply) as engine,
            aiohttp.ClientSession(engine.url) as client,
        ):
            return await scenario(engine, client)

    return asyncio.run(run())


def posting(*bodies: tuple[str, Json], **settings: Any) -> list[tuple[int, Json]]:
    """Send bodies one after the other to one engine: (status, answer) of each."""

    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        return [await post(client, path, body) for path, body in bodies]

    answers: list[tuple[int, Json]] = serving(scenario, **settings)
    return answers


async def post(client: aiohttp.ClientSession, path: str, body: Json) -> tuple[int, Json]:
    async with client.post(path, json=body) as response:
        return response.status, await response.json()


async def stream(client: aiohttp.ClientSession, path: str, body: Json) -> list[Json]:
    """The chunks of a stream that ends with [DONE]."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def chat(text: str = "Say something nice about caches.", **fields: Any) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def cached_tokens(answer: Json) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_echo_says_back_the_last_user_message() -> None:
    [(status, answer)] = posting((CHAT, chat("Good morning")))

    assert status == 200
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert (choice["message"]["role"], choice["message"]["content"]) == (
        "assistant",
        "Good morning",
    )
    assert choice["finish_reason"] == "stop"


def test_echo_reads_the_text_parts_of_a_message() -> None:
    parts = [{"type": "text", "text": "Good "}, {"type": "text", "text": "evening"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}

    [(_, answer)] = posting((CHAT, body))

    assert answer["choices"][0]["message"]["content"] == "Good evening"


def test_usage_counts_the_end_of_reply_token_as_vllm_does() -> None:
    [(_, answer)] = posting((CHAT, chat("abc")))

    prompt = len("<user>abc<assistant>")
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 4,
        "total_tokens": prompt + 4,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


def test_of_several_prompts_the_last_ones_cached_tokens_are_told_as_vllm_does() -> None:
    body = {"model": "m", "prompt": ["x" * 40, "y" * 80], "max_tokens": 1}

    answers = posting((COMPLETIONS, body), (COMPLETIONS, body))

    assert [cached_tokens(answer) for _, answer in answers] == [0, 64]


def test_a_reply_is_cut_at_max_tokens() -> None:
    [(_, answer)] = posting((CHAT, chat("abcdef", max_completion_tokens=2)))

    assert answer["choices"][0]["message"]["content"] == "ab"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_ignore_eos_fills_max_tokens() -> None:
    [(_, answer)] = posting((CHAT, chat("abc", max_tokens=7, ignore_eos=True)))

    assert answer["choices"][0]["message"]["content"] == "abcabca"


def test_a_repeated_prompt_reports_its_cached_tokens() -> None:
    answers = posting((CHAT, chat("x" * 70)), (CHAT, chat("x" * 70)))

    prompt = len("<user><assistant>") + 70
    assert [cached_tokens(answer) for _, answer in answers] == [0, (prompt - 1) // 16 * 16]


def test_the_next_turn_reuses_what_was_generated() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> tuple[int, int]:
        body = chat("y" * 64)
        _, first = await post(client, CHAT, body)
        reply = first["choices"][0]["message"]
        again = {"role": "user", "content": "and?"}
        _, second = await post(
            client, CHAT, {**body, "messages": [*body["messages"], reply, again]}
        )
        return first["usage"]["prompt_tokens"], cached_tokens(second)

    prompt_tokens, cached = serving(scenario)

    assert cached == (prompt_tokens + 64) // 16 * 16


def test_a_chat_streams_a_role_chunk_then_one_chunk_per_token() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> list[Json]:
        return await stream(client, CHAT, chat("hé"))

    first, *rest = serving(scenario)

    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"]["content"] for chunk in rest] == ["h", "", "é", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in rest] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in rest} == {"chat.completion.chunk"}


def test_a_stream_ends_with_usage_if_asked_for() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> list[Json]:
        return await stream(client, CHAT, chat("ab", stream_options={"include_usage": True}))

    *_, last = serving(scenario)

    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3
    assert cached_tokens(last) == 0


def test_continuous_usage_counts_up() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}

    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> list[Json]:
        return await stream(client, CHAT, chat("ab", stream_options=options))

    chunks = serving(scenario)

    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "de"], ["abc", "de"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
    ],
)
def test_a_completion_takes_text_and_token_ids_one_or_several(
    prompt: object, texts: list[str]
) -> None:
    [(status, answer)] = posting((COMPLETIONS, {"model": "m", "prompt": prompt}))

    assert status == 200
    assert [choice["text"] for choice in answer["choices"]] == texts


def test_a_completion_has_sixteen_tokens_unless_told_otherwise() -> None:
    [(_, answer)] = posting((COMPLETIONS, {"model": "m", "prompt": "z" * 40}))

    assert answer["usage"]["completion_tokens"] == 16


def test_several_prompts_stream_interleaved_under_their_index() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> list[Json]:
        return await stream(client, COMPLETIONS, {"model": "m", "prompt": ["abc", "de"]})

    texts = ["", ""]
    for chunk in serving(scenario):
        [choice] = chunk["choices"]
        texts[choice["index"]] += choice["text"]

    assert texts == ["abc", "de"]


def test_token_ids_are_returned_where_vllm_returns_them() -> None:
    completion = {"model": "m", "prompt": "a", "return_token_ids": True}
    (_, chatted), (_, completed) = posting(
        (CHAT, chat("a", return_token_ids=True)), (COMPLETIONS, completion)
    )

    assert chatted["prompt_token_ids"] == list(b"<user>a<assistant>")
    assert chatted["choices"][0]["token_ids"] == [97, 256]
    assert completed["choices"][0]["prompt_token_ids"] == [97]
    assert completed["choices"][0]["token_ids"] == [97, 256]


def test_the_random_reply_depends_on_seed_and_prompt_only() -> None:
    bodies = [(CHAT, chat("one")), (CHAT, chat("two"))]
    there = posting(*bodies, mode="random", seed=7)
    back = posting(*reversed(bodies), mode="random", seed=7)
    other = posting(*bodies, mode="random", seed=8)

    def texts(answers: list[tuple[int, Json]]) -> list[str]:
        return [answer["choices"][0]["message"]["content"] for _, answer in answers]

    assert texts(there) == texts(back)[::-1]
    assert texts(there) != texts(other)


def test_a_reply_hook_sees_the_prompt_and_says_what_it_likes() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> str:
        _, answer = await post(client, CHAT, chat("hi"))
        return str(answer["choices"][0]["message"]["content"])

    reply = serving(scenario, reply=lambda request: f"{request.model}: {request.text}!")

    assert reply == "m: hi!"


def test_models_lists_names_and_adapters_as_vllm_does() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> Json:
        async with client.get("/v1/models") as response:
            answer: Json = await response.json()
            return answer

    listing = serving(scenario, served_model_names=("a", "b"), lora_modules={"l": "/l"})

    fields = ("id", "root", "parent", "max_model_len")
    assert [tuple(card[field] for field in fields) for card in listing["data"]] == [
        ("a", "m", None, 8192),
        ("b", "m", None, 8192),
        ("l", "/l", "a", None),
    ]


def test_an_adapter_shares_no_blocks_with_its_base() -> None:
    bodies = [(CHAT, {**chat("x" * 70), "model": name}) for name in ("m", "l", "l")]

    answers = posting(*bodies, lora_modules={"l": "/l"})

    assert [cached_tokens(answer) for _, answer in answers] == [0, 0, 80]
    assert [answer["model"] for _, answer in answers] == ["m", "l", "l"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, chat() | {"model": "nobody"}, 404, "model"),
        (CHAT, {"model": "m", "messages": []}, 400, "messages"),
        (CHAT, chat(max_tokens=0), 400, "max_tokens"),
        (CHAT, chat("x" * 8192), 400, "input_tokens"),
        (CHAT, chat(n=2), 400, "n"),
        (CHAT, chat(logprobs=True), 400, "logprobs"),
        (COMPLETIONS, {"model": "m", "prompt": ""}, 400, "prompt"),
        (COMPLETIONS, {"model": "m", "prompt": "a", "echo": True}, 400, "echo"),
    ],
)
def test_errors_are_shaped_as_vllms(path: str, body: Json, status: int, param: str) -> None:
    [(found, answer)] = posting((path, body))

    assert found == status
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, status)


def test_tokenize_answers_for_chats_and_prompts() -> None:
    (_, of_chat), (_, of_prompt) = posting(
        ("/tokenize", chat("a")), ("/tokenize", {"model": "m", "prompt": "ab"})
    )

    assert of_chat["tokens"] == list(b"<user>a<assistant>")
    assert of_prompt == {"count": 2, "max_model_len": 8192, "tokens": [97, 98], "token_strs": None}


def test_a_reset_empties_the_cache() -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        await post(client, CHAT, chat("x" * 70))
        before = len(engine.cached_blocks())
        _, answer = await post(client, "/reset_prefix_cache", {})
        return before, answer, len(engine.cached_blocks())

    before, answer, after = serving(scenario)

    assert before > 0
    assert (answer, after) == ({"success": True}, 0)


def test_metrics_have_vllms_names_and_tell_the_truth() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> str:
        for _again in range(2):
            await post(client, CHAT, chat("x" * 70))
        async with client.get("/metrics") as response:
            return await response.text()

    text = serving(scenario)

    labels = '{engine="0",model_name="m"}'
    for line in (
        f"vllm:num_requests_running{labels} 0.0",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:kv_cache_usage_perc{labels} 0.0",
        f"vllm:prefix_cache_queries_total{labels} 174.0",
        f"vllm:prefix_cache_hits_total{labels} 80.0",
        f"vllm:prompt_tokens_total{labels} 174.0",
        f"vllm:prompt_tokens_cached_total{labels} 80.0",
        f"vllm:generation_tokens_total{labels} 142.0",
        f"vllm:time_to_first_token_seconds_count{labels} 2.0",
    ):
        assert line in text
    assert 'vllm:cache_config_info{block_size="16"' in text
    assert 'num_gpu_blocks="1024"' in text


def test_behind_the_slash_metrics_can_be_asked_for_by_name() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> list[str]:
        await post(client, CHAT, chat("x" * 70))
        asked = "name[]=vllm:num_requests_running&name[]=vllm:time_to_first_token_seconds_count"
        pages = []
        for path in ("/metrics/?" + asked, "/metrics/", "/metrics?" + asked):
            async with client.get(path) as response:
                pages.append(await response.text())
        return pages

    named, all_of_them, ignored = serving(scenario)

    labels = '{engine="0",model_name="m"}'
    # In no order: prometheus_client keeps them in a set.
    assert {line for line in named.splitlines() if not line.startswith("#")} == {
        f"vllm:time_to_first_token_seconds_count{labels} 1.0",
        f"vllm:num_requests_running{labels} 0.0",
    }
    assert "vllm:cache_config_info" in all_of_them
    assert "vllm:cache_config_info" in ignored  # as vLLM does


def test_event_sources_are_announced_with_a_wildcard_host() -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        async with client.get("/kv_event_sources") as response:
            return engine.events_endpoint, engine.replay_endpoint, await response.json()

    events, replay, sources = serving(scenario, events=EventsConfig(topic="t"))

    assert sources["0"]["endpoint"].replace("*", "127.0.0.1") == events
    assert sources["0"]["replay_endpoint"].replace("*", "127.0.0.1") == replay
    assert (sources["0"]["topic"], sources["0"]["buffer_steps"]) == ("t", 10_000)


def test_an_engine_without_events_announces_none() -> None:
    async def scenario(_engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        async with client.get("/kv_event_sources") as response:
            return await response.json()

    assert serving(scenario, events=EventsConfig(endpoint=None)) == {}


SLOW = LatencyModel(time_to_first_token=0.001, inter_token_latency=3600.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_client_that_leaves_a_stream_frees_its_blocks() -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> int:
        async with client.post(CHAT, json=chat("x" * 70, stream=True)) as response:
            await response.content.readuntil(b"\n\n")
            assert engine.num_requests == 1
            response.close()
        await until(lambda: engine.num_requests == 0)
        return len(engine.cached_blocks())

    assert serving(scenario, latency=SLOW) == 5


def test_a_client_that_leaves_before_the_answer_frees_its_blocks() -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        waiting = asyncio.create_task(post(client, CHAT, chat()))
        await until(lambda: engine.num_requests == 1)
        waiting.cancel()
        await until(lambda: engine.num_requests == 0)
        return (await post(client, "/reset_prefix_cache", {}))[1]

    assert serving(scenario, latency=SLOW) == {"success": True}


def test_a_request_that_finds_no_place_to_wait_is_refused() -> None:
    async def scenario(engine: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        first = asyncio.create_task(post(client, CHAT, chat()))
        await until(lambda: engine.num_requests == 1)
        refused = await post(client, CHAT, chat())
        first.cancel()
        return refused

    status, answer = serving(scenario, latency=SLOW, max_num_seqs=1, max_waiting_queue_length=0)

    assert status == 429
    assert "max-waiting-queue-length" in answer["error"]["message"]


def test_stopping_cuts_off_what_still_runs() -> None:
    async def run() -> None:
        engine = SimulatedEngine(SimulatorConfig("m", latency=SLOW), ByteModel())
        await engine.start()
        async with aiohttp.ClientSession(engine.url) as client:
            waiting = asyncio.create_task(post(client, CHAT, chat()))
            await until(lambda: engine.num_requests == 1)
            await asyncio.wait_for(engine.stop(), 10)
            with pytest.raises(aiohttp.ClientError):
                await waiting

    asyncio.run(run())
