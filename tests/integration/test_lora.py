"""Loading an adapter: an admin's matter, and all engines' or one's."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.integration.recorders import Recorder, in_front_of

LOAD = "/v1/load_lora_adapter"
BODY = b'{"lora_name": "a", "lora_path": "/adapters/a"}'
KEY = {"authorization": "Bearer s3cret"}


@pytest.fixture(autouse=True)
def key_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN_KEY", "s3cret")


@pytest.mark.parametrize("path", [LOAD, "/v1/unload_lora_adapter"])
async def test_it_goes_to_all_engines_with_their_own_key(path: str) -> None:
    engines = [Recorder(), Recorder()]
    async with in_front_of(*engines, admin_key_env="ADMIN_KEY") as front:
        status, _, body = await front.ask(path, BODY, **KEY)

    said = {"status": 200, "said": '{"ok": true}'}
    assert (status, json.loads(body)) == (200, {"engines": {"e0": said, "e1": said}})
    for engine in engines:
        (seen,) = engine.seen
        assert (seen.path, seen.body) == (path, BODY)
        assert seen.headers["content-type"] == "application/json"
        assert "authorization" not in seen.headers


async def test_it_goes_to_the_engines_that_are_named() -> None:
    engines = [Recorder(), Recorder(), Recorder()]
    async with in_front_of(*engines, admin_key_env="ADMIN_KEY") as front:
        status, _, _ = await front.ask(LOAD + "?engine=e1&engine=e2", BODY, **KEY)
        unknown, _, said = await front.ask(LOAD + "?engine=e9", BODY, **KEY)

    assert (status, [len(engine.seen) for engine in engines]) == (200, [0, 1, 1])
    assert unknown == 404
    assert b"known: e0, e1, e2" in said


async def test_the_worst_answer_is_the_answer() -> None:
    engines = [Recorder(), Recorder(status=404, answer=b'{"error": "no such path"}')]
    async with in_front_of(*engines, admin_key_env="ADMIN_KEY") as front:
        status, _, body = await front.ask(LOAD, BODY, **KEY)

    assert status == 404
    assert json.loads(body)["engines"]["e0"]["status"] == 200
    assert "no such path" in json.loads(body)["engines"]["e1"]["said"]


async def test_it_wants_the_key() -> None:
    engine = Recorder()
    async with in_front_of(engine, admin_key_env="ADMIN_KEY") as front:
        status, _, _ = await front.ask(LOAD, BODY)
        wrong, _, _ = await front.ask(LOAD, BODY, authorization="Bearer guess")

    assert (status, wrong, engine.seen) == (401, 401, [])


async def test_where_no_key_is_configured_there_is_no_such_path() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        status, _, _ = await front.ask(LOAD, BODY)

    assert (status, engine.seen) == (404, [])


async def test_what_the_engine_serves_then_is_asked_at_once() -> None:
    """And not when it would be its turn, in up to 10 s."""
    engine = Recorder()
    async with in_front_of(engine, admin_key_env="ADMIN_KEY") as front:
        engine.models = ("m", "a")
        await front.ask(LOAD, BODY, **KEY)
        async with asyncio.timeout(5):
            while (await front.ask("/tokenize", b'{"model": "a"}'))[0] != 200:
                await asyncio.sleep(0.01)

    assert engine.seen[-1].body == b'{"model": "a"}'
