"""Engines get the ids of their prompts: through the data plane, from the picker, and never where
the ids might not be theirs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from tests.integration.conftest import LONG, Fleet, StartFleet, answering, until
from tests.integration.program import Start
from tests.integration.test_epp import MODEL
from tests.integration.test_probe import MOODY, PLAIN, compared, probed
from tests.llmd.ext_proc.pods import rqb, rqh
from tests.sim.in_a_thread import simulated

from inferway.config import EjectionSettings, EngineSettings, ModelSettings, ProbeSettings
from inferway.fleet.prober import LIVE_AGREEMENTS
from inferway_llmd.ext_proc.messages import METHOD, SERVICE, ProcessingRequest, ProcessingResponse
from inferway_sim.engine import SimulatedEngine

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def engine_in_a_thread() -> Iterator[SimulatedEngine]:
    with simulated() as engine:
        yield engine


@dataclass
class Relay:
    """Passes all that it is asked on to an engine, and keeps the bodies of clients' requests;
    answers those with `status`, if it is given one, itself."""

    engine: str
    http: aiohttp.ClientSession
    status: int | None = None
    bodies: list[bytes] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.method == "POST" and "x-request-id" in request.headers:
            self.bodies.append(body)
            if self.status is not None:
                return web.json_response({}, status=self.status)
        url, headers = self.engine + request.path_qs, {"content-type": "application/json"}
        async with self.http.request(request.method, url, data=body, headers=headers) as answer:
            return web.Response(
                status=answer.status, body=await answer.read(), content_type=answer.content_type
            )


@asynccontextmanager
async def relayed(start_fleet: StartFleet, **settings: Any) -> AsyncIterator[tuple[Fleet, Relay]]:
    """A gateway in front of a relay in front of a simulated engine."""
    behind = await start_fleet(1, tokens_once="off")
    relay = Relay(behind.engines[0].url, behind.http)
    async with answering(relay.handle) as url:
        fleet = await start_fleet(0, [EngineSettings(url=url, block_size=16)], **settings)
        yield fleet, relay


async def prompt_ids(fleet: Fleet, relay: Relay, path: str, body: dict[str, Any]) -> list[int]:
    """As the engine makes them."""
    async with fleet.http.post(
        relay.engine + path, json={**body, "return_token_ids": True, "max_tokens": 1}
    ) as answer:
        told = await answer.json()
    ids: list[int] = told.get("prompt_token_ids") or told["choices"][0]["prompt_token_ids"]
    return ids


async def proven(fleet: Fleet) -> None:
    async def agrees() -> bool:
        return await fleet.metric("inferway_engine_proof", state="agrees") == 1

    await until(agrees)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [(CHAT, {"messages": [{"role": "user", "content": LONG}]}), (COMPLETION, {"prompt": LONG})],
)
async def test_a_proven_engine_gets_the_ids_that_it_would_have_made(
    start_fleet: StartFleet, path: str, prompt: dict[str, Any]
) -> None:
    async with relayed(start_fleet) as (fleet, relay):
        await proven(fleet)
        body = {"model": "smollm2", **prompt, "max_tokens": 4, "temperature": 0}
        ids = await prompt_ids(fleet, relay, path, body)

        answer = await fleet.post(path, body)

        sent = json.loads(relay.bodies[-1])
        assert ids == (
            sent.pop("kv_transfer_params")["prompt_token_ids"] if path == CHAT else sent["prompt"]
        )
        assert {**sent, **prompt} == body
        assert answer.headers["x-inferway-edited"] == "tokens"
        assert answer.body["usage"]["prompt_tokens"] == len(ids)
        assert await fleet.metric("inferway_tokens_once_total", outcome="sent") == 1


async def test_a_short_prompt_and_one_that_nobody_has_proven_go_as_they_came(
    start_fleet: StartFleet,
) -> None:
    async with relayed(start_fleet, probe=ProbeSettings(join=False)) as (fleet, relay):
        for text in ("hi", LONG):
            body = json.dumps({"model": "smollm2", "messages": [{"role": "user", "content": text}]})
            answer = await fleet.post(CHAT, body.encode())

            assert relay.bodies[-1] == body.encode()
            assert "x-inferway-edited" not in answer.headers
        for outcome in ("short", "unproven"):
            assert await fleet.metric("inferway_tokens_once_total", outcome=outcome) == 1


@pytest.mark.parametrize(("mode", "is_sent"), [("on", True), ("off", False)])
async def test_an_operator_may_have_all_or_none_sent(
    start_fleet: StartFleet, mode: str, is_sent: bool
) -> None:
    probe = ProbeSettings(join=False)
    async with relayed(start_fleet, probe=probe, tokens_once=mode) as (fleet, relay):
        await fleet.chat("hi")

        assert ("kv_transfer_params" in json.loads(relay.bodies[-1])) is is_sent


async def test_a_client_s_own_ids_are_refused_as_ever(start_fleet: StartFleet) -> None:
    async with relayed(start_fleet) as (fleet, relay):
        await proven(fleet)

        answer = await fleet.chat(LONG, kv_transfer_params={"prompt_token_ids": [1, 2]})

        assert (answer.status, answer.body["error"]["param"]) == (400, "kv_transfer_params")
        assert relay.bodies == []


async def test_another_engine_that_takes_no_ids_gets_the_client_s_bytes(
    start_fleet: StartFleet,
) -> None:
    """The second one tells no version, as engines other than vLLM."""
    behind = await start_fleet(1, tokens_once="off")
    first = Relay(behind.engines[0].url, behind.http, status=503)
    second = Relay(behind.engines[0].url, behind.http)

    async def without_version(request: web.Request) -> web.Response:
        if request.path == "/version":
            raise web.HTTPNotFound
        return await second.handle(request)

    async with answering(first.handle) as one, answering(without_version) as other:
        engines = [EngineSettings(url=url, block_size=16) for url in (one, other)]
        fleet = await start_fleet(0, engines, ejection=EjectionSettings(failures=1000, least=1000))

        async def both_proven() -> bool:
            page = await fleet.get("/ready")
            probes = [engine["probes"] for engine in page.body["engines"]]
            return all(p and p["smollm2"]["state"] == "agrees" for p in probes)

        await until(both_proven)
        for turn in range(8):  # of two engines that hold nothing of a prompt, each has its turn
            message = {"role": "user", "content": f"{turn}: {LONG}"}
            raw = json.dumps({"model": "smollm2", "messages": [message]}).encode()
            answer = await fleet.post(CHAT, raw)
            if first.bodies:
                break

        assert "kv_transfer_params" in json.loads(first.bodies[0])
        assert second.bodies[-1] == raw
        assert answer.status == 200
        assert "x-inferway-edited" not in answer.headers


async def test_one_live_difference_ends_it_for_the_model(
    start_fleet: StartFleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start_fleet(
        1,
        flags=ModelSettings(chat_template=MOODY),
        models={"smollm2": ModelSettings(chat_template=PLAIN)},
        probe=ProbeSettings(one_in=1),
    )
    await probed(fleet, "agrees")
    assert (await fleet.chat(LONG)).headers["x-inferway-edited"] == "tokens"

    await compared(fleet, "differs", 1, lambda: fleet.chat("the magic word is xyzzy"))
    await compared(fleet, "agrees", LIVE_AGREEMENTS + 1, lambda: fleet.chat("hi", max_tokens=1))
    answer = await fleet.chat(LONG)

    assert int(answer.headers["x-inferway-prompt-blocks"]) > 0  # routed by its prompt again
    assert "x-inferway-edited" not in answer.headers
    assert await fleet.metric("inferway_model_tokens_once_off", model="smollm2") == 1
    assert len([line for line in caplog.messages if "(tokens_once)" in line]) == 1


def test_the_picker_gives_the_proxy_a_body_with_ids(
    start: Start, engine_in_a_thread: SimulatedEngine
) -> None:
    picker = start(
        *("epp", "--engine", engine_in_a_thread.url, "--host", "127.0.0.1", "--tokens-once", "on"),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
        "--secure-serving=false",
    )
    port = picker.read_until(r"proxy at 127\.0\.0\.1:(\d+)")
    url = picker.read_until(r"listening on (http://\S+)")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        process = channel.stream_stream(
            f"/{SERVICE}/{METHOD}",
            ProcessingRequest.SerializeToString,
            ProcessingResponse.FromString,
        )
        head = rqh((":method", "POST"), (":path", CHAT))
        answers = iter(process(iter([head, rqb(json.dumps(body).encode(), eos=True)])))
        told, piece = next(answers), next(answers)
    with urllib.request.urlopen(url + "/metrics", timeout=30) as response:
        page = response.read().decode()

    sent = piece.request_body.response.body_mutation.streamed_response.body
    options = told.request_headers.response.header_mutation.set_headers
    headers = {option.header.key: option.header.raw_value.decode() for option in options}
    ids = json.loads(sent)["kv_transfer_params"]["prompt_token_ids"]
    assert json.loads(sent) == {**body, "kv_transfer_params": {"prompt_token_ids": ids}}
    assert len(ids) > 5
    assert headers["content-length"] == str(len(sent))
    assert 'inferway_tokens_once_total{outcome="sent"} 1.0' in page
