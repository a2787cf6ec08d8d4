"""Which paths reach an engine, and which one, where nobody here makes a prompt of the body."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from tests.integration.recorders import Recorder, in_front_of

from inferway.config import FlowSettings, ModelRewrite, RewriteTarget
from inferway.openai_api.kinds import PARSERS, UNREAD
from inferway.routing.limits.callers import hash_of

JSON = "application/json"
# vLLM 0.32 answers all of these to whoever asks (entrypoints/serve, entrypoints/rl).
UNGUARDED = [
    "/sleep",
    "/wake_up",
    "/collective_rpc",
    "/update_weights",
    "/init_weight_transfer_engine",
    "/reset_prefix_cache",
    "/start_profile",
    "/pause",
    "/abort_requests",
    "/inference/v1/abort_requests",
    "/scale_elastic_ep",
    "/invocations",
]


@pytest.mark.parametrize("path", UNREAD)
async def test_a_known_path_is_forwarded_as_it_came(path: str) -> None:
    engine = Recorder()
    body = b'{"model": "m",  "input": "\\u0061"}'
    async with in_front_of(engine) as front:
        status, headers, answer = await front.ask(path, body, content_type=JSON)

    assert (status, answer) == (200, engine.answer)
    assert [(seen.path, seen.body) for seen in engine.seen] == [(path, body)]
    assert headers["x-inferway-engine"] == "e0"
    assert "x-inferway-edited" not in headers


@pytest.mark.parametrize("path", UNGUARDED)
async def test_what_engines_leave_unguarded_does_not_reach_them(path: str) -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        for spelled in (path, path + "?x=1", path + "/", "/" + path, path.upper(), "/v1" + path):
            for method in ("POST", "GET"):
                status, _, body = await front.ask(spelled, b"{}", method=method)
                assert status == 404, spelled
                assert json.loads(body)["error"]["code"] == "path_not_found"

    assert engine.seen == []


async def test_a_path_that_is_allowed_is_forwarded_with_its_method_alone() -> None:
    engine = Recorder()
    allowed = ["/inference/v1/abort_requests", "GET /tokenizer_info"]
    async with in_front_of(engine, allow_paths=allowed) as front:
        posted = await front.ask("/inference/v1/abort_requests", b'{"model": "m"}')
        got = await front.ask("/tokenizer_info", method="GET")
        wrong = await front.ask("/tokenizer_info", b"{}")

    assert [posted[0], got[0], wrong[0]] == [200, 200, 405]
    assert [(seen.method, seen.path) for seen in engine.seen] == [
        ("POST", "/inference/v1/abort_requests"),
        ("GET", "/tokenizer_info"),
    ]


async def test_the_model_says_which_engine() -> None:
    small, large = Recorder(("small",)), Recorder(("large",))
    async with in_front_of(small, large) as front:
        for _ in range(5):
            await front.ask("/tokenize", b'{"prompt": "a", "model": "large"}')
        status, _, body = await front.ask("/tokenize", b'{"model": "none"}')

    assert (len(small.seen), len(large.seen)) == (0, 5)
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")


async def test_a_form_s_field_says_which_engine() -> None:
    small, large = Recorder(("small",)), Recorder(("large",))
    async with in_front_of(small, large) as front:
        for first in (True, False):
            form = aiohttp.FormData()
            if first:
                form.add_field("model", "large")
            form.add_field("file", b'\r\n\r\nname="model"\r\n\r\nsmall', filename="a.wav")
            if not first:
                form.add_field("model", "large")
            status, _, _ = await front.ask("/v1/audio/transcriptions", form)
            assert status == 200

    assert (len(small.seen), len(large.seen)) == (0, 2)
    assert b"RIFF" not in large.seen[0].body
    assert large.seen[0].headers["content-type"].startswith("multipart/form-data; boundary=")


async def test_without_a_model_the_only_one_answers() -> None:
    engines = [Recorder(("m", "adapter-a")), Recorder(("m",))]
    async with in_front_of(*engines) as front:
        status, _, _ = await front.ask("/detokenize", b'{"tokens": [1]}')

    assert status == 200
    assert sum(len(engine.seen) for engine in engines) == 1


async def test_without_a_model_nobody_chooses_between_several() -> None:
    engines = [Recorder(("small",)), Recorder(("large",))]
    async with in_front_of(*engines) as front:
        status, _, body = await front.ask("/detokenize", b'{"tokens": [1]}')

    error = json.loads(body)["error"]
    assert (status, error["param"]) == (400, "model")
    assert "large, small" in error["message"]


async def test_what_is_no_json_is_refused_by_its_place() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        status, _, body = await front.ask("/tokenize", b'{"model": ', content_type=JSON)

    assert (status, engine.seen) == (400, [])
    assert "body: not valid JSON" in json.loads(body)["error"]["message"]


async def test_a_rewrite_holds_for_them_and_for_their_answers() -> None:
    engine = Recorder(("real",), answer=b'{"model": "real"}')
    rewrites = [ModelRewrite(models=["asked"], targets=[RewriteTarget(model="real")])]
    async with in_front_of(engine, model_rewrites=rewrites) as front:
        _, headers, answer = await front.ask("/score", b'{"model":"asked"}', content_type=JSON)
        form = aiohttp.FormData()
        form.add_field("file", b"RIFF", filename="a.wav")
        form.add_field("model", "asked")
        await front.ask("/v1/audio/translations", form)

    assert engine.seen[0].body == b'{"model":"real"}'
    assert (headers["x-inferway-edited"], answer) == ("model", b'{"model": "asked"}')
    assert b"\r\n\r\nreal\r\n" in engine.seen[1].body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize(
    "field",
    [
        '"kv_transfer_params": {"do_remote_prefill": true, "remote_host": "10.0.0.1"}',
        '"kv\\u005ftransfer_params": {}',
        '"ec_transfer_params": {"a": 1}',
        '"vllm_xargs": {"kv_transfer_params": "x"}',
    ],
)
async def test_a_client_does_not_say_where_blocks_come_from(path: str, field: str) -> None:
    engine = Recorder()
    body = f'{{"model": "m", "prompt": "a", "messages": [{{"role": "user"}}], {field}}}'.encode()
    async with in_front_of(engine) as front:
        status, _, answer = await front.ask(path, body, content_type=JSON)

    place = json.loads(answer)["error"]["message"].partition(":")[0]
    assert (status, engine.seen) == (400, [])
    assert place.split(".")[-1] in ("kv_transfer_params", "ec_transfer_params")
    assert "10.0.0.1" not in answer.decode()


async def test_a_client_does_not_say_it_in_a_form_either() -> None:
    engine = Recorder()
    async with in_front_of(engine) as front:
        form = aiohttp.FormData({"model": "m", "vllm_xargs": '{"kv_transfer_params": "x"}'})
        form.add_field("file", b"RIFF", filename="a.wav")
        status, _, answer = await front.ask("/v1/audio/transcriptions", form)

    assert (status, engine.seen) == (400, [])
    assert json.loads(answer)["error"]["param"] == "vllm_xargs.kv_transfer_params"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_no_client_says_which_place_it_has_in_an_engines_queue(path: str) -> None:
    engine = Recorder()
    body = b'{"model": "m", "messages": [{"role": "user"}], "priority": -1}'
    async with in_front_of(engine) as front:
        status, _, answer = await front.ask(path, body, content_type=JSON)

    assert (status, engine.seen) == (400, [])
    assert json.loads(answer)["error"]["message"].startswith("priority: ")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize(
    ("setting", "member"),
    [
        ("trust_kv_transfer_params", b'"kv_transfer_params": {"a": 1}'),
        ("trust_priority", b'"priority": -1'),
    ],
)
async def test_a_trusted_one_does(path: str, setting: str, member: bytes) -> None:
    engine = Recorder()
    body = b'{"model": "m", "messages": [{"role": "user"}], %b}' % member
    async with in_front_of(engine, **{setting: True}) as front:
        status, _, _ = await front.ask(path, body, content_type=JSON)

    assert (status, engine.seen[0].body) == (200, body)


async def test_a_null_is_an_absent_field() -> None:
    engine = Recorder()
    body = b'{"model": "m", "messages": [{"role": "user"}], "kv_transfer_params": null}'
    async with in_front_of(engine) as front:
        status, _, _ = await front.ask("/v1/chat/completions", body, content_type=JSON)

    assert status == 200


async def test_an_engine_that_is_lost_is_replaced_unseen() -> None:
    broken, sound = Recorder(status=503), Recorder()
    async with in_front_of(broken, sound) as front:
        statuses = [(await front.ask("/score", b'{"model": "m"}'))[0] for _ in range(6)]

    assert statuses == [200] * 6


def test_no_path_is_in_both_tables() -> None:
    assert not set(PARSERS) & set(UNREAD)


async def test_they_want_a_key_where_keys_are_wanted_and_it_ends_here(tmp_path: Path) -> None:
    engine, key = Recorder(), "k" * 40
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys:\n- {{name: acme, hash: '{hash_of(key)}'}}\n")
    async with in_front_of(engine, api_keys=str(keys)) as front:
        body = b'{"model": "m", "messages": []}'
        without, _, _ = await front.ask("/v1/messages", body)
        wrong, _, _ = await front.ask("/v1/messages", body, x_api_key="guess")
        bearer, told, _ = await front.ask("/v1/messages", body, authorization=f"Bearer {key}")
        anthropic, _, _ = await front.ask("/v1/messages", body, x_api_key=key)

    assert (without, wrong, bearer, anthropic) == (401, 401, 200, 200)
    for seen in engine.seen:
        assert not {"authorization", "x-api-key"} & seen.headers.keys()
    assert "x-inferway-engine" not in told  # it is no admin's


async def test_they_take_their_turn_as_all_others_do() -> None:
    engine = Recorder(pause=asyncio.Event())
    async with in_front_of(engine, flow=FlowSettings(in_flight=1, queue=0)) as front:
        first = asyncio.ensure_future(front.ask("/tokenize", b'{"model": "m"}'))
        while not engine.seen:
            await asyncio.sleep(0.01)
        status, headers, _ = await front.ask("/tokenize", b'{"model": "m"}')
        assert engine.pause is not None
        engine.pause.set()
        done, _, _ = await first

    assert (status, done, len(engine.seen)) == (429, 200, 1)
    assert int(headers["retry-after"]) >= 1
