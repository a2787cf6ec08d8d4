"""Bodies that vLLM takes and a stricter parser would refuse, through the whole gateway."""

from __future__ import annotations

import json

import pytest
from tests.integration.conftest import LONG, StartFleet
from tests.integration.recorders import Recorder, in_front_of

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": LONG}]
BODY = {"model": "m", "messages": MESSAGES}
TEXT = json.dumps(BODY)

ODD = {
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-32 without a mark": TEXT.encode("utf-32-le"),
    "a byte order mark": b"\xef\xbb\xbf" + TEXT.encode(),
    "numbers in text": json.dumps({**BODY, "max_tokens": "1", "stream": "no"}).encode(),
    "NaN": json.dumps({**BODY, "unknown": float("nan")}).encode(),
    "half of a surrogate pair": json.dumps({**BODY, "user": "\ud800"}).encode(),
    "no model": json.dumps({"messages": MESSAGES}).encode(),
    "a null for the model": json.dumps({**BODY, "model": None}).encode(),
}


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_the_engine_gets_the_clients_own_bytes(path: str) -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        for name, raw in ODD.items():
            status, headers, _ = await front.ask(path, raw)
            assert (status, "x-inferway-edited" in headers) == (200, False), name

    assert [seen.body for seen in engine.seen] == list(ODD.values())


async def test_they_are_matched_like_any_other(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1)
    told = await fleet.scores(LONG)
    assert set(told.values()) <= {0}

    for name, raw in ODD.items():
        body = json.dumps({**json.loads(raw), "max_tokens": "4"})
        if b'"m"' in raw.replace(b"\0", b""):
            body = json.dumps({**json.loads(raw), "max_tokens": "4", "model": "smollm2"})
        answer = await fleet.post(CHAT, body.encode("utf-16"))
        assert (answer.status, answer.body["model"]) == (200, "smollm2"), name
        assert answer.headers["x-inferway-prompt-blocks"] != "0"


async def test_without_a_model_and_with_several_the_error_lists_them() -> None:
    async with in_front_of(Recorder(models=("m",)), Recorder(models=("n",))) as front:
        for path in (CHAT, "/tokenize"):
            status, _, raw = await front.ask(path, ODD["no model"])
            assert status == 400
            assert "expected one of: m, n" in json.loads(raw)["error"]["message"]


async def test_they_are_salted_with_all_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", "a secret")
    engine = Recorder()
    async with in_front_of(engine, salt_per_tenant_env="SALT") as front:
        for raw in ODD.values():
            _, headers, _ = await front.ask(CHAT, raw)
            assert headers["x-inferway-edited"] == "cache_salt"

    for raw, seen in zip(ODD.values(), engine.seen, strict=True):
        got = json.loads(seen.body)
        assert len(got.pop("cache_salt")) == 64
        assert json.dumps(got) == json.dumps(json.loads(raw))


async def test_a_salt_that_is_no_text_is_refused_where_a_tenants_must_be_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SALT", "a secret")
    engine = Recorder()
    raw = json.dumps({**BODY, "cache_salt": 5}).encode()
    async with in_front_of(engine, salt_per_tenant_env="SALT") as front:
        refused, _, told = await front.ask("/v1/messages", raw)
        passed, _, _ = await front.ask("/tokenize", raw)

    assert (refused, passed) == (400, 200)
    assert json.loads(told)["error"]["message"].startswith("cache_salt: ")
    assert [seen.body for seen in engine.seen] == [raw]
