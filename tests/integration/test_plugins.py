"""A gateway with configured plugins, before simulated engines."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from typing import Any

from aiohttp import web
from tests.integration.conftest import LONG, StartFleet, answering

from inferway.config import EngineSettings
from inferway.simulator.engine import SimulatedEngine


def plugins(*types: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    return {"plugins": [{"type": t, "parameters": parameters.get(t, {})} for t in types]}


def hello(words: str) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": words}], "max_tokens": 4}


async def test_a_session_stays_at_the_engine_that_its_token_names(start_fleet: StartFleet) -> None:
    kept = await start_fleet(3, scheduling=plugins("session-affinity-scorer"))
    first = await kept.post("/v1/chat/completions", hello("Hi"))
    token = first.headers["x-session-token"]
    assert b64decode(token).decode() == first.engine
    others = [await kept.post("/v1/chat/completions", hello(f"No {i}")) for i in range(6)]
    same = [
        await kept.post("/v1/chat/completions", hello(f"Hi {i}"), **{"x-session-token": token})
        for i in range(4)
    ]

    assert {answer.engine for answer in same} == {first.engine}
    assert {answer.headers["x-session-token"] for answer in same} == {token}
    assert len({answer.engine for answer in others}) == 3


async def test_a_client_without_the_admins_key_gets_its_token(
    start_fleet: StartFleet, monkeypatch: Any
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "secret")
    fleet = await start_fleet(
        2, admin_key_env="ADMIN_KEY", scheduling=plugins("session-affinity-scorer")
    )

    answer = await fleet.post("/v1/chat/completions", hello("Hi"))

    assert "x-session-token" in answer.headers
    assert not [name for name in answer.headers if name.lower().startswith("x-inferway-engine")]


async def test_without_events_the_approximate_producer_keeps_conversations_together(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(
        3, scheduling=plugins("queue-scorer", "prefix-cache-scorer", "max-score-picker")
    )

    where: Counter[tuple[int, str]] = Counter()
    turns: dict[int, list[str]] = {n: [f"{n}: {LONG}"] for n in range(3)}
    for _ in range(3):
        for n, said in turns.items():
            answer = await fleet.chat(*said)
            where[n, answer.engine] += 1
            said += [answer.body["choices"][0]["message"]["content"], "Go on. " * 30]

    assert set(where.values()) == {3}
    assert len({engine for _, engine in where}) == 3


PREFILL_AND_DECODE = {
    "plugins": [
        {"type": "prefill-filter"},
        {"type": "decode-filter"},
        {"type": "queue-scorer"},
        {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 100}},
        {
            "type": "disagg-profile-handler",
            "parameters": {"deciders": {"prefill": "prefix-based-pd-decider"}},
        },
    ],
    "schedulingProfiles": [
        {"name": name, "plugins": [{"pluginRef": f"{name}-filter"}, {"pluginRef": "queue-scorer"}]}
        for name in ("prefill", "decode")
    ],
}


async def test_the_engine_that_decodes_is_told_who_prefills_a_long_prompt(
    start_fleet: StartFleet,
) -> None:
    told: dict[str, str | None] = {}

    async def decode(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "smollm2", "root": "/none"}]})
        if request.path == "/v1/completions":
            prompt = (await request.json())["prompt"]
            told[prompt] = request.headers.get("x-prefiller-host-port")
            return web.json_response({"model": "smollm2", "choices": []})
        return web.Response(status=404)

    def prefill(engine: SimulatedEngine) -> EngineSettings:
        return EngineSettings(url=engine.url, labels={"llm-d.ai/role": "prefill"})

    async with answering(decode) as url:
        decoder = EngineSettings(url=url, labels={"llm-d.ai/role": "decode"})
        fleet = await start_fleet(1, [decoder], prefill, scheduling=PREFILL_AND_DECODE)
        for prompt in ("short", LONG * 4):
            body = {"model": "smollm2", "prompt": prompt, "max_tokens": 1}
            forged = {"x-prefiller-host-port": "attacker:80"}
            answer = await fleet.post("/v1/completions", body, **forged)
            assert answer.status == 200

    host_port = fleet.engines[0].url.removeprefix("http://")
    assert told == {"short": None, LONG * 4: host_port}
