"""API keys, and what they say of a request, before simulated engines."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, answering, until

from inferway.app import Gateway
from inferway.config import EngineSettings, ServeSettings
from inferway.errors import ConfigError
from inferway.routing.limits.callers import hash_of, new_key

USER, ADMIN = new_key(), new_key()
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": LONG}], "max_tokens": 4}
DECISION = ("x-inferway-engine", "x-inferway-matched-blocks", "x-inferway-prompt-blocks")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys.yaml"
    path.write_text(
        f"keys:\n- {{name: user, hash: '{hash_of(USER)}', tenant: team, priority: 1}}\n"
        f"- {{name: admin, hash: '{hash_of(ADMIN)}', admin: true}}\n"
    )
    return str(path)


async def ask(fleet: Fleet, path: str, key: str | None, body: object = CHAT) -> Answer:
    return await fleet.post(path, body, **({} if key is None else bearer(key)))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/structured/explain", "/v1/nothing"])
async def test_requests_want_a_key(start_fleet: StartFleet, keys: str, path: str) -> None:
    fleet = await start_fleet(1, api_keys=keys)
    fleet.admin = bearer(ADMIN)

    without, wrong = await ask(fleet, path, None), await ask(fleet, path, new_key())

    assert (without.status, wrong.status) == (401, 401)
    assert without.headers["WWW-Authenticate"] == "Bearer"
    assert without.body["error"]["code"] == wrong.body["error"]["code"] == "invalid_api_key"
    assert (await ask(fleet, path, USER)).status != 401
    assert await fleet.metric("inferway_key_refused_total") == 2


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/v1/chat/completions", None, 401), ("/query", USER, 403), ("/nothing", USER, 404)],
    ids=["no key", "no admin", "no path"],
)
async def test_a_large_body_is_received_only_from_who_may_send_it(
    start_fleet: StartFleet, keys: str, path: str, key: str | None, status: int
) -> None:
    fleet = await start_fleet(1, api_keys=keys)
    fleet.admin = bearer(ADMIN)
    authorization = "" if key is None else f"authorization: Bearer {key}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", fleet.gateway.port)
    head = f"POST {path} HTTP/1.1\r\nhost: gw\r\ncontent-length: 30000000\r\n{authorization}\r\n"
    writer.write(head.encode())

    answer = await reader.read()  # to the end of the connection: nothing of the body was sent
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert await fleet.metric("inferway_key_refused_total") == (key is None)


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_want_none(start_fleet: StartFleet, keys: str, path: str) -> None:
    fleet = await start_fleet(1, api_keys=keys)

    async with fleet.http.get(fleet.url + path) as answer:
        assert answer.status == 200


async def test_who_is_no_admin_is_told_no_names_of_engines_and_keys(
    start_fleet: StartFleet, keys: str
) -> None:
    fleet = await start_fleet(2, api_keys=keys)
    name = fleet.gateway.fleet.engines[0].name

    async def told(path: str, **headers: str) -> tuple[int, str]:
        async with fleet.http.get(fleet.url + path, headers=headers) as answer:
            return answer.status, await answer.text()

    ready = {"ready": True, "why": None, "num_engines": 2, "num_healthy": 2}
    for headers in ({}, bearer(USER)):
        assert json.loads((await told("/ready", **headers))[1]) == ready
    assert (await told("/metrics"))[0] == 401
    assert (await told("/metrics", **bearer(USER)))[0] == 403
    for path in ("/ready", "/metrics"):
        status, page = await told(path, **bearer(ADMIN))
        assert (status, name in page) == (200, True)


async def test_why_it_is_not_ready_is_told_without_names(
    start_fleet: StartFleet, keys: str
) -> None:
    fleet = await start_fleet(1, api_keys=keys)
    name = fleet.gateway.fleet.engines[0].name
    await fleet.engines[0].stop()

    async def is_away() -> bool:
        async with fleet.http.get(fleet.url + "/ready") as answer:
            return answer.status == 503

    await until(is_away)
    async with fleet.http.get(fleet.url + "/ready") as answer:
        told = await answer.json()
    assert told == {"ready": False, "why": "no engine answers", "num_engines": 1, "num_healthy": 0}
    async with fleet.http.get(fleet.url + "/ready", headers=bearer(ADMIN)) as answer:
        assert (await answer.json())["why"] == f"no engine answers: {name}"


async def test_decision_headers_are_for_admins(start_fleet: StartFleet, keys: str) -> None:
    fleet = await start_fleet(1, api_keys=keys)
    fleet.admin = bearer(ADMIN)

    users = await ask(fleet, "/v1/chat/completions", USER)
    admins = await ask(fleet, "/v1/chat/completions", ADMIN)

    assert (users.status, admins.status) == (200, 200)
    assert not set(DECISION) & set(users.headers)
    assert set(DECISION) <= set(admins.headers)
    assert await fleet.metric("inferway_key_requests_total", key="user") == 1


async def test_admin_paths_are_for_admins(start_fleet: StartFleet, keys: str) -> None:
    fleet = await start_fleet(1, api_keys=keys)
    path = "/score_chat_completions"

    users = await ask(fleet, path, USER)

    assert (users.status, users.body["error"]["code"]) == (403, "permission_denied")
    assert (await ask(fleet, path, None)).status == 401
    assert (await ask(fleet, path, ADMIN)).status == 200


async def test_the_admin_key_of_the_environment_goes_on_to_work(
    start_fleet: StartFleet, keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_KEY", "s3cret")
    fleet = await start_fleet(1, api_keys=keys, admin_key_env="ADMIN_KEY")

    answer = await ask(fleet, "/v1/chat/completions", "s3cret")

    assert answer.status == 200
    assert set(DECISION) <= set(answer.headers)
    assert (await ask(fleet, "/score_chat_completions", "s3cret")).status == 200
    assert (await ask(fleet, "/score_chat_completions", ADMIN)).status == 200


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
async def test_the_key_does_not_travel_on(start_fleet: StartFleet, keys: str, name: str) -> None:
    seen: list[dict[str, str]] = []

    async def engine(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path == "/v1/completions" and "x-other" in request.headers:
            seen.append(dict(request.headers))
        return web.json_response({})

    async with answering(engine) as url:
        fleet = await start_fleet(0, more=[EngineSettings(url=url)], api_keys=keys, scoring=False)
        value = f"Bearer {USER}" if name == "Authorization" else USER
        answer = await fleet.post(
            "/v1/completions", {"model": "m", "prompt": "p"}, **{name: value, "x-other": "1"}
        )

    assert answer.status == 200
    assert seen[0]["x-other"] == "1"
    assert USER not in str(seen)


async def breaks_off(request: web.Request) -> web.Response:
    """An engine that answers all but requests."""
    if request.path == "/v1/completions":
        assert request.transport is not None
        request.transport.abort()
    return web.json_response({"data": [{"id": "m"}]})


@pytest.mark.parametrize("key", [USER, ADMIN, None], ids=["user", "admin", "no keys"])
async def test_errors_name_engines_to_admins_and_where_there_are_no_keys(
    start_fleet: StartFleet, keys: str, key: str | None
) -> None:
    settings = {} if key is None else {"api_keys": keys}
    async with answering(breaks_off) as url:
        fleet = await start_fleet(0, more=[EngineSettings(url=url)], scoring=False, **settings)
        asked = {"model": "m", "prompt": "p"}
        address = url.removeprefix("http://")
        lost = await ask(fleet, "/v1/completions", key, asked)

    async def gone() -> bool:
        return await fleet.metric("inferway_engine_up") == 0

    await until(gone)
    none_left = await ask(fleet, "/v1/completions", key, asked)

    assert (lost.status, none_left.status) == (502, 503)
    assert (address in str(lost.body)) == (address in str(none_left.body)) == (key != USER)
    assert none_left.body["error"]["code"] == "no_engine_available"


async def test_the_key_says_the_priority_and_headers_do_not(
    start_fleet: StartFleet, keys: str
) -> None:
    fleet = await start_fleet(1, api_keys=keys, objectives={"low": -5})
    director = fleet.gateway.director
    priorities: list[int] = []

    class Seen:
        def refusal(self, request: Any, _: object) -> None:
            priorities.append(request.objectives.priority)

    director.scheduling = replace(director.scheduling, admitters=[Seen()])
    await fleet.post(
        "/v1/chat/completions", CHAT, **bearer(USER), **{"x-gateway-inference-objective": "low"}
    )

    assert priorities == [1]


async def test_openais_client_understands_the_401(start_fleet: StartFleet, keys: str) -> None:
    fleet = await start_fleet(1, api_keys=keys)
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=new_key()) as client:
        with pytest.raises(openai.AuthenticationError, match="unknown API key"):
            await client.models.list()
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key=USER) as client:
        assert [model.id async for model in client.models.list()]


async def test_a_file_that_cannot_hold_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n- {name: a, key: plain}\n")

    with pytest.raises(ConfigError, match=r"keys\.yaml: object .* - at `\$\.keys\[0\]`"):
        Gateway(
            ServeSettings(engines=[EngineSettings(url="http://127.0.0.1:1")], api_keys=str(path))
        )
