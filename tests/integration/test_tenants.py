"""With salts for tenants, nobody finds, or is sent to, what another tenant has asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, until
from tests.integration.recorders import Recorder, in_front_of

from inferway.errors import ConfigError
from inferway.routing.limits.callers import hash_of
from inferway.routing.salt import TenantSalt

SECRET = "a secret"
CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": LONG}], "max_tokens": 8}
TENANT = "x-gateway-inference-fairness-id"


@pytest.fixture(autouse=True)
def secret_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SALT", SECRET)


@pytest.fixture
async def fleet(start_fleet: StartFleet) -> Fleet:
    return await start_fleet(1, salt_per_tenant_env="SALT", tokens_once="off")


async def all_known(fleet: Fleet) -> None:
    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(len(fleet.engines))]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines]

    await until(same)


async def asked(fleet: Fleet, tenant: str, **fields: object) -> tuple[int, int, int]:
    """(matched by us, reused by the engine, blocks that would have been reusable)."""
    answer = await fleet.post("/v1/chat/completions", {**CHAT, **fields}, **{TENANT: tenant})
    assert answer.status == 200
    assert answer.headers["x-inferway-edited"] == "cache_salt"
    await all_known(fleet)
    blocks = int(answer.headers["x-inferway-prompt-blocks"])
    return answer.matched, answer.cached_tokens // 16, (answer.reusable(blocks)) // 16


async def test_two_tenants_never_match_each_other_s_blocks(fleet: Fleet) -> None:
    first = await asked(fleet, "acme")
    for tenant in ("rival", "", "acme2", "ACME"):
        assert (await asked(fleet, tenant))[:2] == (0, 0)
    again = await asked(fleet, "acme")

    assert first[:2] == (0, 0)
    assert again[0] == again[1] == again[2] > 0


async def test_a_tenant_s_own_salt_still_keeps_its_users_apart(fleet: Fleet) -> None:
    assert (await asked(fleet, "acme", cache_salt="user-1"))[:2] == (0, 0)
    assert (await asked(fleet, "acme", cache_salt="user-2"))[:2] == (0, 0)
    assert (await asked(fleet, "acme"))[:2] == (0, 0)

    matched, reused, reusable = await asked(fleet, "acme", cache_salt="user-1")

    assert matched == reused == reusable > 0


async def test_nobody_becomes_another_tenant_by_a_salt_of_his_own(fleet: Fleet) -> None:
    await asked(fleet, "acme")
    stolen = TenantSalt(SECRET).of("acme", None)

    assert (await asked(fleet, "rival", cache_salt=stolen))[:2] == (0, 0)


async def test_long_names_are_not_cut_to_be_the_same(fleet: Fleet) -> None:
    assert (await asked(fleet, "a" * 300 + "b"))[:2] == (0, 0)
    assert (await asked(fleet, "a" * 300 + "c"))[:2] == (0, 0)
    assert (await asked(fleet, "a" * 300 + "b"))[1] > 0


async def test_scores_are_those_of_the_tenant_that_is_named(fleet: Fleet) -> None:
    await asked(fleet, "acme")
    prompt = {name: CHAT[name] for name in ("model", "messages")}
    scores = {}
    for tenant in ("acme", "rival", ""):
        answer = await fleet.post("/score_chat_completions", prompt, **{TENANT: tenant})
        scores[tenant] = next(iter(answer.body["pod_scores"].values()), 0)
        assert answer.body["messages"] == CHAT["messages"]

    assert scores.pop("acme") > 0
    assert set(scores.values()) == {0}


async def test_every_kind_of_request_is_salted(fleet: Fleet) -> None:
    kinds: dict[str, dict[str, object]] = {
        "/v1/completions": {"model": "smollm2", "prompt": LONG, "max_tokens": 4},
        "/v1/responses": {"model": "smollm2", "input": LONG, "max_output_tokens": 4},
    }
    for path, body in kinds.items():
        seen = []
        for tenant in ("acme", "rival", "acme"):
            answer = await fleet.post(path, body, **{TENANT: tenant})
            assert answer.headers["x-inferway-edited"] == "cache_salt"
            seen.append(answer.matched)
            await all_known(fleet)
        assert seen[:2] == [0, 0], path
        assert seen[2] > 0, path


async def test_the_tenant_is_the_key_s_where_there_are_keys(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    keys = {name: f"{name}-{'k' * 40}" for name in ("acme", "rival")}
    lines = [f"- {{name: {name}, hash: '{hash_of(key)}'}}" for name, key in keys.items()]
    (tmp_path / "keys.yaml").write_text("keys:\n" + "\n".join(lines) + "\n")
    fleet = await start_fleet(1, salt_per_tenant_env="SALT", api_keys=str(tmp_path / "keys.yaml"))
    reused = []
    for name in ("acme", "rival", "acme"):
        # what the header says does not count
        headers = {"Authorization": f"Bearer {keys[name]}", TENANT: "acme"}
        answer = await fleet.post("/v1/chat/completions", CHAT, **headers)
        reused.append(answer.cached_tokens)
        told = [name for name in answer.headers if name.lower().startswith("x-inferway-")]
        assert told == ["x-inferway-edited"]  # its own body was changed, however it was decided
        assert answer.headers["x-inferway-edited"] == "cache_salt"

    assert reused[:2] == [0, 0]
    assert reused[2] > 0


async def test_bodies_that_nobody_reads_are_salted_too() -> None:
    engine = Recorder()
    body = b'{"model": "m", "messages": []}'
    async with in_front_of(engine, salt_per_tenant_env="SALT") as front:
        _, headers, _ = await front.ask("/v1/messages", body, **{TENANT: "acme"})
        await front.ask("/tokenize", body, **{TENANT: "acme"})

    salt = TenantSalt(SECRET).of("acme", None)
    assert json.loads(engine.seen[0].body) == {**json.loads(body), "cache_salt": salt}
    assert headers["x-inferway-edited"] == "cache_salt"
    assert engine.seen[1].body == body  # nothing of it is cached


async def test_paths_that_know_no_salt_are_closed_unless_they_are_named() -> None:
    engine = Recorder()
    async with in_front_of(engine, salt_per_tenant_env="SALT") as front:
        assert (await front.ask("/v1/audio/speech", b'{"model": "m"}'))[0] == 404
    async with in_front_of(
        engine, salt_per_tenant_env="SALT", allow_paths=["/v1/audio/speech"]
    ) as front:
        assert (await front.ask("/v1/audio/speech", b'{"model": "m"}'))[0] == 200


async def test_the_secret_must_be_there(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SALT")

    with pytest.raises(ConfigError, match=r"salt_per_tenant_env 'SALT' is not set"):
        await start_fleet(1, salt_per_tenant_env="SALT")


PICTURE = (
    '{"model": "m", "metadata": {"uuid": "mine"}, "messages": [{"role": "user", "content":'
    ' [{"type": "image_url", "image_url": {"url": "data:,x"}, %s: "cat"},'
    ' {"type": "text", "text": "uuid"}]}]}'
)


@pytest.mark.parametrize("spelled", ['"uuid"', '"\\u0075uid"'])
@pytest.mark.parametrize("salted", [True, False])
async def test_what_a_tenant_calls_a_picture_is_no_other_tenant_s_picture(
    spelled: str, salted: bool
) -> None:
    """For vLLM the uuid is the picture, whatever the salt says."""
    engine = Recorder()
    settings = {"salt_per_tenant_env": "SALT"} if salted else {}
    named = []
    async with in_front_of(engine, **settings) as front:
        for path in ("/v1/chat/completions", "/pooling"):
            for tenant in ("acme", "rival", "acme"):
                body = (PICTURE % spelled).encode()
                status, headers, _ = await front.ask(
                    path, body, content_type="application/json", **{TENANT: tenant}
                )
                assert status == 200
                assert "uuid" in headers["x-inferway-edited"]
                sent = json.loads(engine.seen[-1].body)
                assert sent["metadata"] == {"uuid": "mine"}
                named.append(sent["messages"][0]["content"][0]["uuid"])

    assert named[0] == named[2] == named[3]
    assert named[1] == named[4]
    assert len({*named, "cat"}) == 3


async def test_without_tenants_a_picture_keeps_its_name() -> None:
    engine = Recorder()
    body = (PICTURE % '"uuid"').encode()
    async with in_front_of(engine) as front:
        await front.ask("/v1/chat/completions", body, content_type="application/json")

    assert engine.seen[0].body == body


async def test_a_picture_s_name_that_is_no_text_is_refused() -> None:
    engine = Recorder()
    body = (PICTURE % '"uuid"').replace('"cat"', "[1]").encode()
    async with in_front_of(engine) as front:
        status, _, answer = await front.ask(
            "/v1/chat/completions", body, content_type="application/json", **{TENANT: "acme"}
        )

    assert (status, engine.seen) == (400, [])
    assert "uuid of a message's part: expected text" in json.loads(answer)["error"]["message"]


async def test_a_picture_s_name_in_a_body_of_another_encoding_is_the_tenant_s() -> None:
    engine = Recorder()
    body = (PICTURE % '"uuid"').encode("utf-16")
    async with in_front_of(engine) as front:
        status, _, _ = await front.ask(
            "/v1/chat/completions", body, content_type="application/json", **{TENANT: "acme"}
        )

    assert status == 200
    sent = json.loads(engine.seen[0].body)["messages"][0]["content"][0]
    assert len(sent["uuid"]) == 64
