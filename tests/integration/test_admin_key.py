"""With an admin key, what the caches hold of a prompt is the operator's, over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import openai
import pytest
from aiohttp import web
from tests.integration.conftest import LONG, Fleet, StartFleet, answering, until

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway.errors import ConfigError

KEY = "s3cret"
BEARER = {"Authorization": f"Bearer {KEY}"}
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": LONG}]}
PATHS = {
    "/score_chat_completions": CHAT,
    "/score_completions": {"model": "smollm2", "prompt": LONG},
    "/query": {"model": "smollm2", "token_ids": [1] * 16},
}
DECISION = ("x-inferway-engine", "x-inferway-matched-blocks", "x-inferway-prompt-blocks")


@pytest.fixture(autouse=True)
def key_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", KEY)


async def guarded(start_fleet: StartFleet) -> Fleet:
    return await start_fleet(2, admin_key_env="ADMIN_KEY")


@pytest.mark.parametrize("path", PATHS)
async def test_scores_want_the_key(start_fleet: StartFleet, path: str) -> None:
    fleet = await guarded(start_fleet)

    without = await fleet.post(path, PATHS[path])
    wrong = await fleet.post(path, PATHS[path], Authorization="Bearer guess")
    right = await fleet.post(path, PATHS[path], **BEARER)

    assert (without.status, wrong.status, right.status) == (401, 401, 200)
    assert without.headers["WWW-Authenticate"] == "Bearer"
    assert without.body["error"] == {
        "message": "this path wants the gateway's admin key: send `Authorization: Bearer KEY`",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert "guess" not in str(wrong.body)
    assert "authorization: this is not the gateway's admin key" in str(wrong.body)


async def test_anthropics_clients_send_it_in_a_header_of_their_own(start_fleet: StartFleet) -> None:
    fleet = await guarded(start_fleet)

    right = await fleet.post("/score_chat_completions", CHAT, **{"x-api-key": KEY})
    wrong = await fleet.post("/score_chat_completions", CHAT, **{"x-api-key": "guess"})

    assert (right.status, wrong.status) == (200, 401)
    assert "guess" not in str(wrong.body)


async def test_admin_paths_are_not_told_apart_without_the_key(start_fleet: StartFleet) -> None:
    fleet = await guarded(start_fleet)

    assert (await fleet.get("/admin/nothing")).status == 401
    assert (await fleet.post("/admin/nothing", {}, **BEARER)).status == 404


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models"])
async def test_everything_else_stays_open(start_fleet: StartFleet, path: str) -> None:
    fleet = await guarded(start_fleet)

    async with fleet.http.get(fleet.url + path) as answer:
        assert answer.status == 200


async def test_metrics_and_the_names_of_engines_want_the_key(start_fleet: StartFleet) -> None:
    fleet = await guarded(start_fleet)

    async with fleet.http.get(f"{fleet.url}/metrics") as answer:
        assert answer.status == 401
    async with fleet.http.get(f"{fleet.url}/metrics", headers=BEARER) as answer:
        assert answer.status == 200
    assert "engines" not in (await fleet.get("/ready")).body
    async with fleet.http.get(f"{fleet.url}/ready", headers=BEARER) as answer:
        assert len((await answer.json())["engines"]) == 2


async def test_without_a_key_everything_is_open(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)

    assert [(await fleet.post(path, body)).status for path, body in PATHS.items()] == [200] * 3
    assert set(DECISION) <= (await fleet.chat("hi")).headers.keys()


async def test_how_a_request_was_decided_is_told_to_admins_only(start_fleet: StartFleet) -> None:
    fleet = await guarded(start_fleet)

    async with fleet.http.post(fleet.url + "/v1/chat/completions", json=CHAT) as answer:
        told = answer.headers
    async with fleet.http.post(
        fleet.url + "/v1/chat/completions", json=CHAT, headers={"Authorization": "Bearer guess"}
    ) as answer:
        told_a_guess = answer.headers
    admin = await fleet.post("/v1/chat/completions", CHAT, **BEARER)

    assert not [name for name in told if name.lower().startswith("x-inferway")]
    assert not [name for name in told_a_guess if name.lower().startswith("x-inferway")]
    assert "x-request-id" in told
    assert set(DECISION) <= admin.headers.keys()


async def test_why_load_alone_decided_is_told_to_all_where_it_lies_in_their_request(
    start_fleet: StartFleet,
) -> None:
    texts = {"model": "smollm2", "input": ["a"], "padding": "max_length"}
    guarded_fleet = await guarded(start_fleet)
    client = await guarded_fleet.post("/v1/embeddings", texts)
    no_scores = await start_fleet(1, admin_key_env="ADMIN_KEY", scoring=False)

    assert client.headers["x-inferway-reason"] == "embeddings"
    assert "x-inferway-reason" not in (await no_scores.post("/v1/embeddings", texts)).headers
    admin = await no_scores.post("/v1/embeddings", texts, **BEARER)
    assert admin.headers["x-inferway-reason"] == "load-only"


async def test_openai_s_client_is_told_what_its_key_allows(start_fleet: StartFleet) -> None:
    fleet = await guarded(start_fleet)

    async def answer(key: str) -> openai.types.chat.ChatCompletion | dict[str, str]:
        async with openai.AsyncOpenAI(base_url=fleet.url + "/v1", api_key=key) as client:
            raw = await client.chat.completions.with_raw_response.create(**CHAT)  # type: ignore[call-overload]
            assert raw.parse().choices[0].message.content
            return dict(raw.headers)

    assert set(DECISION) <= (await answer(KEY)).keys()  # type: ignore[union-attr]
    assert not set(DECISION) & (await answer("sk-client")).keys()  # type: ignore[union-attr]
    async with openai.AsyncOpenAI(base_url=fleet.url, api_key="sk-client") as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.post("/query", body=PATHS["/query"], cast_to=object)
        assert refused.value.code == "invalid_api_key"
        admin = client.with_options(api_key=KEY)
        found = await admin.post("/query", body=PATHS["/query"], cast_to=object)
        assert isinstance(found, dict)
        assert "instances" in found


@pytest.mark.tools
async def test_curl_is_answered_with_the_key(start_fleet: StartFleet) -> None:
    fleet = await guarded(start_fleet)

    async def curl(*more: str) -> str:
        body = '{"model": "smollm2", "token_ids": [1, 2, 3]}'
        process = await asyncio.create_subprocess_exec(
            *["curl", "-s", "-w", "%{http_code}", "-o", "/dev/null", "-d", body],
            *[*more, fleet.url + "/query"],
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        return out.decode()

    assert await curl() == "401"
    assert await curl("-H", f"authorization: bearer {KEY}") == "200"
    assert await curl("-u", f"admin:{KEY}") == "401"


class Recorder:
    """An engine that keeps the headers of what it is asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[str]]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.path, request.headers.getall("authorization", [])))
        match request.path:
            case "/v1/models":
                return web.json_response({"data": [{"id": "m", "root": "/nowhere"}]})
            case "/metrics":
                return web.Response(text="")
            case "/v1/chat/completions":
                return web.json_response({"choices": []})
        raise web.HTTPNotFound

    def keys(self) -> list[list[str]]:
        return [keys for path, keys in self.seen if path == "/v1/chat/completions"]


@pytest.mark.parametrize(
    ("engine_key", "sent", "arrived"),
    [
        (None, [f"Bearer {KEY}"], []),
        (None, [f"bearer  {KEY}"], []),
        (None, ["Bearer client"], ["Bearer client"]),
        (None, [f"Bearer {KEY}", "Bearer client"], ["Bearer client"]),
        ("engine", [f"Bearer {KEY}"], ["Bearer engine"]),
        ("engine", ["Bearer client"], ["Bearer engine"]),
    ],
)
async def test_the_admins_key_reaches_no_engine(
    monkeypatch: pytest.MonkeyPatch,
    engine_key: str | None,
    sent: list[str],
    arrived: list[str],
) -> None:
    engine = Recorder()
    if engine_key is not None:
        monkeypatch.setenv("ENGINE_KEY", engine_key)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(answering(engine.answer))
        settings = ServeSettings(
            engines=[EngineSettings(url=url, api_key_env="ENGINE_KEY" if engine_key else None)],
            port=0,
            remote_render_ms=0,
            admin_key_env="ADMIN_KEY",
        )
        gateway = Gateway(settings)
        await gateway.start()
        stack.push_async_callback(gateway.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        headers = [("Authorization", value) for value in sent]
        target = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
        async with http.post(target, json={**CHAT, "model": "m"}, headers=headers) as answer:
            assert answer.status == 200

    assert engine.keys() == [arrived]
    assert not any(KEY in key for _, keys in engine.seen for key in keys)


async def test_a_prompt_that_an_admin_has_sent_is_scored_like_any_other(
    start_fleet: StartFleet,
) -> None:
    fleet = await guarded(start_fleet)
    await fleet.post("/v1/chat/completions", CHAT, **BEARER)

    async def known() -> bool:
        scores = (await fleet.post("/score_chat_completions", CHAT, **BEARER)).body["pod_scores"]
        return any(scores.values())

    await until(known)


def test_a_key_that_is_not_there_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADMIN_KEY")
    settings = ServeSettings(engines=[EngineSettings(url="http://e:1")], admin_key_env="ADMIN_KEY")

    with pytest.raises(ConfigError, match="admin_key_env 'ADMIN_KEY' is not set"):
        Gateway(settings)
