"""Requests for one model that go to another, through the whole gateway."""

from __future__ import annotations

from collections import Counter
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from openai.types.chat import ChatCompletionUserMessageParam
from tests.integration.conftest import LONG, Fleet, StartFleet, answering, simulated

from inferway.app import Gateway
from inferway.config import EngineSettings, ModelRewrite, RewriteTarget, ServeSettings
from inferway_sim.config import EventsConfig

CHAT: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": LONG}]


def rule(*targets: tuple[str, int], models: tuple[str, ...] = ("asked",)) -> ModelRewrite:
    return ModelRewrite(
        models=list(models),
        targets=[RewriteTarget(model=model, weight=weight) for model, weight in targets],
    )


async def rewriting(start_fleet: StartFleet, *targets: tuple[str, int]) -> Fleet:
    """Two engines with a model each, and a rule for requests that name `asked`."""
    engines = [
        simulated(served_model_names=(name,), events=EventsConfig()) for name in ("small", "large")
    ]
    return await start_fleet(engines, model_rewrites=[rule(*targets)])


def client(fleet: Fleet) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0)


async def test_targets_are_drawn_by_their_weights(start_fleet: StartFleet) -> None:
    fleet = await rewriting(start_fleet, ("small", 9), ("large", 1))

    answers = [await fleet.chat(f"{i}", model="asked", max_tokens=1) for i in range(150)]

    small, large = (engine.url.removeprefix("http://") for engine in fleet.engines)
    drawn = Counter(answer.engine for answer in answers)
    assert {answer.body["model"] for answer in answers} == {"asked"}
    assert {answer.headers["x-inferway-edited"] for answer in answers} == {"model"}
    assert drawn.keys() <= {small, large}
    assert 110 < drawn[small] < 150  # 135 on average, more than 5 standard deviations around


async def test_the_answer_names_the_model_that_was_asked_for(start_fleet: StartFleet) -> None:
    fleet = await rewriting(start_fleet, ("large", 1))

    async with client(fleet) as api:
        whole = await api.chat.completions.create(model="asked", messages=CHAT, max_tokens=4)
        chunks = [
            chunk
            async for chunk in await api.chat.completions.create(
                model="asked",
                messages=CHAT,
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        text = await api.completions.create(model="asked", prompt=LONG, max_tokens=4)
        response = await api.responses.create(model="asked", input=LONG, max_output_tokens=4)
        events = [
            event
            async for event in await api.responses.create(
                model="asked", input=LONG, max_output_tokens=4, stream=True
            )
        ]
        vectors = await api.embeddings.create(model="asked", input=["a", "b"])

    assert {whole.model, text.model, response.model, vectors.model} == {"asked"}
    assert {chunk.model for chunk in chunks} == {"asked"}
    assert chunks[-1].usage is not None
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == whole.choices[0].message.content
    named = {
        e.response.model for e in events if e.type in ("response.created", "response.completed")
    }
    assert named == {"asked"}
    assert [item.index for item in vectors.data] == [0, 1]


async def test_an_answer_has_the_length_it_says(start_fleet: StartFleet) -> None:
    fleet = await rewriting(start_fleet, ("large", 1))
    body = {"model": "asked", "prompt": LONG, "max_tokens": 4}

    async with fleet.http.post(f"{fleet.url}/v1/completions", json=body) as edited:
        raw = await edited.read()
    async with fleet.http.post(f"{fleet.url}/v1/completions", json=body | {"model": "large"}) as r:
        same = await r.read()

    assert "content-length" not in edited.headers  # it is not known when the head is sent
    assert int(r.headers["content-length"]) == len(same)
    assert raw.count(b'"asked"') == 1
    assert b"large" not in raw
    assert "x-inferway-edited" not in r.headers


async def test_the_engine_gets_the_rest_as_it_was_sent(start_fleet: StartFleet) -> None:
    asked: list[tuple[bytes, str | None]] = []

    async def engine(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "target", "root": "/none"}]})
        if request.path == "/v1/completions":
            raw = await request.read()
            if b"1.50" in raw:  # the gateway has questions of its own
                asked.append((raw, request.headers.get("content-length")))
            return web.json_response({"model": "target", "choices": []})
        return web.Response(status=404)

    async with answering(engine) as url:
        fleet = await start_fleet(
            1, [EngineSettings(url=url)], model_rewrites=[rule(("target", 1))]
        )
        raw = b'{ "x":1.50,"model" : "asked" ,\n"prompt":"\\u00e9","model":"asked"}'
        answer = await fleet.post("/v1/completions", raw)

    sent = b'{ "x":1.50,"model" : "asked" ,\n"prompt":"\\u00e9","model":"target"}'
    assert asked == [(sent, str(len(sent)))]
    assert answer.body == {"model": "asked", "choices": []}


async def test_a_target_that_nobody_serves_is_the_operators_fault(start_fleet: StartFleet) -> None:
    fleet = await rewriting(start_fleet, ("huge", 1))

    answer = await fleet.chat("hi", model="asked")

    assert answer.status == 503
    assert answer.body["error"] == {
        "message": "model_rewrites: 'asked' is sent to 'huge', but no engine serves 'huge';"
        " known: large, small",
        "type": "server_error",
        "param": None,
        "code": "no_engine_available",
    }
    assert (await fleet.chat("hi", model="other")).status == 404


async def test_the_names_of_rules_are_among_the_models(start_fleet: StartFleet) -> None:
    engines = [
        simulated(served_model_names=("small",), max_model_len=1024),
        simulated(served_model_names=("large",), max_model_len=2048),
    ]
    rules = [
        rule(("nobody", 1), ("large", 1), ("small", 1), models=("asked", "too")),
        rule(("nobody", 1), models=("lost",)),
        rule(("small", 1), models=("large",)),
    ]
    fleet = await start_fleet(engines, model_rewrites=rules)

    listed = (await fleet.get("/v1/models")).body["data"]

    lengths = {card["id"]: card["max_model_len"] for card in listed}
    assert lengths == {"small": 1024, "large": 2048, "asked": 1024, "too": 1024}


@pytest.fixture
async def full_engine() -> Any:
    """Says that eight requests wait in it."""

    async def engine(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "root": "/none"}]})
        if request.path == "/metrics":
            return web.Response(
                text='vllm:num_requests_waiting{model_name="m"} 8.0\n'
                'vllm:num_requests_running{model_name="m"} 8.0\n'
                'vllm:kv_cache_usage_perc{model_name="m"} 0.5\n'
            )
        if request.method == "POST":
            return web.json_response({"model": "m"})
        return web.Response(status=404)

    async with answering(engine) as url:
        yield url


async def test_a_sheddable_request_is_refused_while_the_engines_are_full(full_engine: str) -> None:
    settings = ServeSettings(
        engines=[EngineSettings(url=full_engine)],
        port=0,
        scrape_seconds=0.05,
        objectives={"batch": -1, "chat": 5},
    )
    gateway = Gateway(settings)
    await gateway.start()
    statuses: dict[str, int] = {}
    try:
        async with aiohttp.ClientSession() as http:
            for objective in ("batch", "chat", "unheard of"):
                async with http.post(
                    f"http://127.0.0.1:{gateway.port}/v1/completions",
                    json={"model": "m", "prompt": "x"},
                    headers={"x-gateway-inference-objective": objective},
                ) as answer:
                    statuses[objective] = answer.status
                    if objective == "batch":
                        refusal = await answer.json()
    finally:
        await gateway.close()

    assert statuses == {"batch": 429, "chat": 200, "unheard of": 200}
    assert refusal["error"] == {
        "message": "system saturated, sheddable request dropped",
        "type": "rate_limit_error",
        "param": None,
        "code": "saturated",
    }


@pytest.mark.parametrize("value", ["soon", "-1", "inf", "nan", ""])
async def test_a_header_that_cannot_hold_is_named(start_fleet: StartFleet, value: str) -> None:
    fleet = await start_fleet(1)
    body = {"model": "smollm2", "prompt": "hi", "max_tokens": 1}

    answer = await fleet.post("/v1/completions", body, **{"x-llm-d-slo-ttft-ms": value})

    assert answer.status == 400
    assert answer.body["error"]["param"] == "x-llm-d-slo-ttft-ms"
    assert repr(value) in answer.body["error"]["message"]
