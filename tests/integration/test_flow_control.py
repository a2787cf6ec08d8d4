"""Limits, failing engines, draining and reloading: the whole gateway before engines."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
import trustme
from aiohttp import web
from tests.integration.conftest import LONG, Answer, Fleet, StartFleet, answering, simulated, until

from inferway.app import Gateway
from inferway.config import (
    EjectionSettings,
    EngineSettings,
    FlowSettings,
    LimitSettings,
    ServeSettings,
)
from inferway.errors import ConfigError
from inferway.routing.limits.callers import hash_of, new_key

COMPLETION = {"model": "m", "prompt": "p", "max_tokens": 1}


class Engine:
    """Answers completions of model `m` when it may, and counts how many it has at once."""

    def __init__(self) -> None:
        self.at_once = self.most = self.seen = 0
        self.go = asyncio.Event()
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path != "/v1/completions":
            return web.json_response({})
        self.seen += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.go.wait()
        finally:
            self.at_once -= 1
        return web.json_response({"choices": []}, status=self.status)


async def ask(fleet: Fleet, **headers: str) -> Answer:
    return await fleet.post("/v1/completions", COMPLETION, **headers)


def named(url: str, name: str) -> EngineSettings:
    return EngineSettings(url=url, name=name)


# ------------------------------------------------------------------------------------- limits


async def test_each_engine_has_no_more_than_its_limit_and_all_are_answered(
    start_fleet: StartFleet,
) -> None:
    one, other = Engine(), Engine()
    async with answering(one.answer) as a, answering(other.answer) as b:
        fleet = await start_fleet(
            *(0, [named(a, "a"), named(b, "b")]),
            scoring=False,
            flow=FlowSettings(engine_in_flight=2),
        )
        answers = [asyncio.ensure_future(ask(fleet)) for _ in range(20)]

        async def all_came() -> bool:
            waiting = await fleet.metric("inferway_flow_waiting", priority="0")
            return (one.at_once, other.at_once, waiting) == (2, 2, 16)

        await until(all_came)
        one.go.set()
        other.go.set()
        statuses = [(await answer).status for answer in answers]

    assert statuses == [200] * 20
    assert (one.most, other.most) == (2, 2)
    limiter = fleet.gateway._auth.control.limiter
    assert (limiter.in_flight, limiter.engines) == (0, {})


async def test_requests_that_wait_are_matched_when_it_is_their_turn(
    start_fleet: StartFleet,
) -> None:
    """By prompts that were derived, in front of simulated engines."""
    fleet = await start_fleet(2, flow=FlowSettings(engine_in_flight=1, in_flight=None))

    answers = await asyncio.gather(*(fleet.chat(LONG + str(n % 3)) for n in range(12)))

    assert [answer.status for answer in answers] == [200] * 12
    assert any(answer.matched for answer in answers)


async def test_a_refusal_says_when_to_come_again(start_fleet: StartFleet) -> None:
    engine = Engine()
    async with answering(engine.answer) as url:
        fleet = await start_fleet(
            *(0, [named(url, "a")]), scoring=False, flow=FlowSettings(in_flight=1, queue=0)
        )
        first = asyncio.ensure_future(ask(fleet))

        async def came() -> bool:
            return engine.at_once == 1

        await until(came)
        refused = await ask(fleet)
        engine.go.set()
        await first

    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert refused.body["error"]["code"] == "queue_full"
    assert await fleet.metric("inferway_flow_refused_total", why="full") == 1
    assert await fleet.metric("inferway_requests_total", outcome="refused") == 1


async def test_openais_client_understands_the_429(start_fleet: StartFleet) -> None:
    engine = Engine()
    async with answering(engine.answer) as url:
        fleet = await start_fleet(
            *(0, [named(url, "a")]), scoring=False, flow=FlowSettings(in_flight=1)
        )
        first = asyncio.ensure_future(ask(fleet))

        async def came() -> bool:
            return engine.at_once == 1

        await until(came)
        async with openai.AsyncOpenAI(
            base_url=f"{fleet.url}/v1", api_key="-", timeout=0.5, max_retries=0
        ) as client:
            with pytest.raises(openai.RateLimitError, match="no engine had room for it") as refused:
                await client.completions.create(
                    model="m", prompt="p", extra_headers={"x-slo-ttft-ms": "50"}
                )
        engine.go.set()
        await first

    assert refused.value.code == "wait_too_long"
    assert refused.value.response.headers["retry-after"] == "1"


async def test_what_is_refused_for_another_reason_gives_its_place_back(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet([simulated(max_model_len=64)], flow=FlowSettings(in_flight=1))

    for _ in range(3):
        assert (await fleet.chat(LONG)).status == 400
    assert (await fleet.chat("hi")).status == 200


# ---------------------------------------------------------------------------- failing engines


async def test_an_engine_that_fails_is_passed_over_and_comes_back(start_fleet: StartFleet) -> None:
    bad, good = Engine(), Engine()
    bad.go.set()
    good.go.set()
    bad.status = 503
    async with answering(bad.answer) as a, answering(good.answer) as b:
        fleet = await start_fleet(
            *(0, [named(a, "bad"), named(b, "good")]),
            scoring=False,
            ejection=EjectionSettings(failures=2, seconds=0.2),
        )
        statuses = []
        while bad.seen < 2:
            statuses.append((await ask(fleet)).status)
        ejected = await fleet.metric("inferway_engine_ejections_total", engine="bad")
        bad.status = 200

        async def is_back() -> bool:
            assert (await ask(fleet)).status == 200
            return await fleet.metric("inferway_engine_ejected", engine="bad") == 0

        await until(is_back)

    assert set(statuses) == {200}
    assert ejected == 1
    assert await fleet.metric("inferway_retries_total") == 2


async def test_engines_that_all_fail_are_all_tried(start_fleet: StartFleet) -> None:
    bad = Engine()
    bad.go.set()
    bad.status = 503
    async with answering(bad.answer) as url:
        fleet = await start_fleet(
            *(0, [named(url, "bad")]), scoring=False, ejection=EjectionSettings(failures=1)
        )
        for _ in range(3):
            await ask(fleet)
        bad.status = 200

        assert (await ask(fleet)).status == 200


# ------------------------------------------------------------------------------------ draining


async def change(fleet: Fleet, name: str, what: str) -> tuple[int, dict[str, Any]]:
    url = f"{fleet.url}/admin/engines/{name}/{what}"
    async with fleet.http.post(url) as answer:
        return answer.status, await answer.json()


async def test_a_web_page_of_another_site_drains_no_engine(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    [name] = [engine.name for engine in fleet.gateway.fleet.engines]

    refused = await fleet.post(f"/admin/engines/{name}/drain", b"", origin="https://evil.example")

    assert (refused.status, refused.body["error"]["code"]) == (403, "permission_denied")
    assert (await fleet.chat(LONG)).status == 200


async def test_a_drained_engine_finishes_what_it_has_and_gets_no_more(
    start_fleet: StartFleet,
) -> None:
    one, other = Engine(), Engine()
    other.go.set()
    async with answering(one.answer) as a, answering(other.answer) as b:
        fleet = await start_fleet(*(0, [named(a, "one"), named(b, "http://b/1")]), scoring=False)
        await change(fleet, "http:%2F%2Fb%2F1", "drain")
        running = asyncio.ensure_future(ask(fleet))

        async def came() -> bool:
            return one.at_once == 1

        await until(came)
        await change(fleet, "http:%2F%2Fb%2F1", "resume")
        status, told = await change(fleet, "one", "drain")
        engines = [(await ask(fleet)).engine for _ in range(5)]
        one.go.set()

        assert (status, told["drained"], told["load"]["in_flight"]) == (200, True, 1)
        assert engines == ["http://b/1"] * 5
        assert ((await running).status, (await running).engine) == (200, "one")
        assert await fleet.metric("inferway_engine_drained", engine="one") == 1
        await change(fleet, "one", "resume")
        assert {(await ask(fleet)).engine for _ in range(6)} == {"one", "http://b/1"}


async def test_a_model_whose_engines_are_all_drained_is_503(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    name = fleet.gateway.fleet.engines[0].name
    await change(fleet, name, "drain")

    answer = await fleet.chat("hi")

    assert answer.status == 503
    assert f"its engines are drained: {name}" in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [("none", "drain", "no engine is called 'none'; known: "), ("none", "stop", "expected /admin")],
)
async def test_what_cannot_be_drained_is_404(
    start_fleet: StartFleet, name: str, what: str, message: str
) -> None:
    status, told = await change(await start_fleet(1), name, what)

    assert status == 404
    assert message in told["error"]["message"]


# ----------------------------------------------------------------------------------- reloading


def settings_of(fleet: Fleet, **changed: Any) -> ServeSettings:
    return msgspec.structs.replace(fleet.gateway.settings, **changed)


async def test_engines_keys_and_limits_are_taken(start_fleet: StartFleet, tmp_path: Path) -> None:
    key, path = new_key(), tmp_path / "keys.yaml"
    path.write_text(f"keys:\n- {{name: one, hash: '{hash_of(key)}', admin: true}}\n")
    engine = Engine()
    engine.go.set()
    async with answering(engine.answer) as url:
        fleet = await start_fleet(1, scoring=False)
        new = settings_of(
            fleet,
            engines=[named(url, "new")],
            api_keys=str(path),
            limits=LimitSettings(body_bytes=1000),
            flow=FlowSettings(in_flight=7),
        )
        await fleet.gateway.reload(lambda: new)
        fleet.admin = bearer = {"Authorization": f"Bearer {key}"}

        assert (await ask(fleet)).status == 401
        assert (await ask(fleet, **bearer)).status == 200
        assert engine.seen == 1
        large = {**COMPLETION, "prompt": "p" * 1000}
        assert (await fleet.post("/v1/completions", large, **bearer)).status == 413
        assert fleet.gateway._auth.control.limiter.settings.in_flight == 7
        assert await fleet.metric("inferway_reloads_total", outcome="done") == 1


async def test_what_cannot_hold_changes_nothing_and_is_named(
    start_fleet: StartFleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("keys: 5\n")
    fleet = await start_fleet(1)
    new = settings_of(fleet, api_keys=str(path), limits=LimitSettings(body_bytes=1))
    await fleet.gateway.reload(lambda: new)

    def unreadable() -> ServeSettings:
        raise ConfigError("gw.yaml: not valid YAML")

    await fleet.gateway.reload(unreadable)

    assert (await fleet.chat("hi")).status == 200
    assert await fleet.metric("inferway_reloads_total", outcome="refused") == 2
    assert "keys.yaml: expected `array`, got `int` - at `$.keys`" in caplog.text
    assert "not reloaded, and all stays as it was: gw.yaml: not valid YAML" in caplog.text


async def test_what_needs_a_restart_is_said(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start_fleet(1)
    new = settings_of(fleet, heal=0.5, port=1)

    await fleet.gateway.reload(lambda: new)

    assert "needs a restart: port, heal" in caplog.text


async def test_what_needs_a_restart_is_said_as_long_as_it_is_not_in_force(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start_fleet(1)
    old, new = settings_of(fleet), settings_of(fleet, heal=0.5)
    await fleet.gateway.reload(lambda: new)
    caplog.clear()

    await fleet.gateway.reload(lambda: new)
    assert "needs a restart: heal" in caplog.text
    caplog.clear()
    await fleet.gateway.reload(lambda: old)
    assert "needs a restart" not in caplog.text


async def test_what_changes_while_a_gateway_starts_is_taken_when_it_has_started() -> None:
    settings = ServeSettings(engines=[EngineSettings(url="http://127.0.0.1:1")], port=0)
    new = msgspec.structs.replace(settings, flow=FlowSettings(in_flight=7))
    gateway = Gateway(settings)
    reload = asyncio.ensure_future(gateway.reload(lambda: new))
    await asyncio.sleep(0)
    await gateway.start()
    await reload
    await gateway.close()

    assert gateway._auth.control.limiter.settings.in_flight == 7


async def test_a_broken_certificate_changes_nothing_and_a_new_one_is_shown(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    chain, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue() -> ssl.SSLContext:
        """One that only this context trusts."""
        authority = trustme.CA()
        leaf = authority.issue_cert("127.0.0.1")
        chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    async def answers(trusted: ssl.SSLContext) -> bool:
        url = f"https://127.0.0.1:{fleet.gateway.port}/health"
        connector = aiohttp.TCPConnector(ssl=trusted)
        async with aiohttp.ClientSession(connector=connector) as http:
            try:
                async with http.get(url) as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

    first = issue()
    fleet = await start_fleet(1, tls_cert=str(chain), tls_key=str(key))
    settings = fleet.gateway.settings
    flow = msgspec.structs.replace(settings, flow=FlowSettings(in_flight=1))
    key.write_text("none")
    await fleet.gateway.reload(lambda: flow)
    assert fleet.gateway._auth.control.limiter.settings == settings.flow
    assert await answers(first)

    second = issue()
    await fleet.gateway.reload(lambda: flow)

    assert (await answers(first), await answers(second)) == (False, True)
