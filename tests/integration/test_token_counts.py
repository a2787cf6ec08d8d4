"""How many tokens messages have: counted here, or by an engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, until

from inferway.config import FlowSettings, ModelRewrite, ProbeSettings, RewriteTarget
from inferway.routing.limits.callers import hash_of

PATH, ENGINE = "/v1/messages/count_tokens", "x-inferway-engine"
BODY: dict[str, Any] = {
    "model": "smollm2",
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
        {"type": "text", "text": "Be brief."},
    ],
    "messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}],
}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}


async def proven(fleet: Fleet) -> None:
    """Until the engine has told that it counts as we do."""

    async def counts() -> bool:
        return fleet.gateway.fleet.model("smollm2").counts_messages

    await until(counts)


async def asked(fleet: Fleet, url: str, **more: Any) -> tuple[tuple[int, str, bytes], str | None]:
    """An answer, and the engine that has given it."""
    async with fleet.http.post(url + PATH, json={**BODY, **more}) as answer:
        told = answer.status, answer.content_type, await answer.read()
        return told, answer.headers.get(ENGINE)


async def test_the_answer_is_that_of_an_engine_which_is_not_asked(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await proven(fleet)

    theirs, _ = await asked(fleet, fleet.engines[0].url)

    assert await asked(fleet, fleet.url) == (theirs, None)
    assert theirs[0] == 200


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "What is this?"}, IMAGE],
        LONG * 200,  # too long for the model
        [{"type": "document"}],
    ],
    ids=["image", "too long", "document"],
)
async def test_what_cannot_be_counted_here_an_engine_answers(
    start_fleet: StartFleet, content: Any
) -> None:
    fleet = await start_fleet(1)
    await proven(fleet)
    messages = [{"role": "user", "content": content}]

    theirs, _ = await asked(fleet, fleet.engines[0].url, messages=messages)
    ours, engine = await asked(fleet, fleet.url, messages=messages)

    assert ours == theirs
    assert engine is not None


async def test_an_engine_that_is_not_proven_answers_itself(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, probe=ProbeSettings(join=False))

    (status, _, _), engine = await asked(fleet, fleet.url)

    assert status == 200
    assert engine is not None


async def test_a_model_that_nobody_serves_is_not_found(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    await proven(fleet)

    answer = await fleet.post(PATH, {**BODY, "model": "none"})

    assert (answer.status, answer.body["error"]["type"]) == (404, "not_found_error")


async def test_a_rewrite_holds(start_fleet: StartFleet) -> None:
    rule = ModelRewrite(models=["asked"], targets=[RewriteTarget(model="smollm2")])
    fleet = await start_fleet(1, model_rewrites=[rule])
    await proven(fleet)

    assert await asked(fleet, fleet.url, model="asked") == await asked(fleet, fleet.url)


async def test_a_key_is_wanted_where_keys_are(start_fleet: StartFleet, tmp_path: Path) -> None:
    key, keys = "k" * 40, tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- {{name: acme, hash: '{hash_of(key)}'}}\n")
    fleet = await start_fleet(1, api_keys=str(keys))
    await proven(fleet)

    without = await fleet.post(PATH, BODY)
    right = await fleet.post(PATH, BODY, **{"x-api-key": key})

    assert (without.status, without.body["error"]["type"]) == (401, "authentication_error")
    assert (right.status, set(right.body)) == (200, {"input_tokens", "context_management"})


async def test_it_takes_its_turn(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, flow=FlowSettings(in_flight=1, queue=0))
    await proven(fleet)
    busy = {**BODY, "max_tokens": 2000, "stream": True}

    async with fleet.http.post(f"{fleet.url}/v1/messages", json=busy) as running:
        await running.content.readline()
        refused = await fleet.post(PATH, BODY)
    async with asyncio.timeout(10):
        while (await fleet.post(PATH, BODY)).status != 200:  # until the other one is gone
            await asyncio.sleep(0.01)

    assert (refused.status, refused.body["error"]["type"]) == (429, "rate_limit_error")
