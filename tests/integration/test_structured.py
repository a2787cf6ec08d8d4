"""Requests that ask for the shape of their answer: client -> gateway -> simulated engines."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import openai
import pydantic
import pytest
from tests.cpu import slowness
from tests.integration.conftest import Fleet, StartFleet, simulated, until
from tests.integration.recorders import Recorder, in_front_of

from inferway.config import ProbeSettings, StructuredSettings
from inferway_sim.config import EventsConfig, LatencyModel
from inferway_structured.spec import json_spec

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def asking(schema: object, **more: Any) -> dict[str, Any]:
    named = {"name": "n", "schema": schema, **more}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def tool(parameters: object, name: str = "f", **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


NO_EVENTS = EventsConfig(endpoint=None, replay_endpoint=None)


async def echoing(start_fleet: StartFleet, plugin: bool = True, **settings: Any) -> Fleet:
    """An engine that says what it is told, as one with our plugin."""
    return await start_fleet(
        [simulated(mode="echo", structured=plugin, events=NO_EVENTS)], **settings
    )


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a type that is none": (
        asking({"type": "object", "properties": {"a": {"type": "strng"}}}),
        "response_format/json_schema/schema/properties/a/type",
    ),
    "a schema that is none": (asking([1]), "response_format/json_schema/schema"),
    "a pattern that is none": (
        asking({"type": "string", "pattern": "("}),
        "response_format/json_schema/schema/pattern",
    ),
    "a tower": (
        asking(json.loads('{"items":' * 100 + "{}" + "}" * 100)),
        "response_format/json_schema/schema",
    ),
    "a long array": (
        asking({"type": "array", "maxItems": 100_000}),
        "response_format/json_schema/schema/maxItems",
    ),
    "600 kB": (
        asking({"enum": ["x" * 1000 + str(i) for i in range(600)]}),
        "response_format/json_schema/schema",
    ),
    "a regular expression with look-ahead": (
        {"structured_outputs": {"regex": "(?=a)b"}},
        "structured_outputs/regex",
    ),
    "a grammar that is none": (
        {"structured_outputs": {"grammar": "start: ("}},
        "structured_outputs/grammar",
    ),
    "an empty choice": ({"structured_outputs": {"choice": []}}, "structured_outputs/choice"),
    "a tool's schema": (
        {"tools": [tool({"type": "nothing"}, strict=True)], "tool_choice": "required"},
        "tools/0/function/parameters/type",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_what_cannot_be_kept_is_refused_with_its_place_and_no_engine_sees_it(
    start_fleet: StartFleet, what: str
) -> None:
    fleet = await echoing(start_fleet)
    fields, param = BAD[what]

    answer = await fleet.chat("hi", **fields)

    assert (answer.status, answer.body["error"]["param"]) == (400, param)
    assert answer.body["error"]["code"] == "invalid_structure"
    assert await fleet.metric("inferway_upstream_sent_total") == 0
    assert await fleet.metric("inferway_gate_requests_total", outcome="refused") == 1


@pytest.mark.parametrize(
    ("said", "valid"), [('{"n":1}', "true"), ('{"n":"1"}', "false"), ("n is 1", "false")]
)
async def test_an_answer_says_whether_it_has_the_shape(
    start_fleet: StartFleet, said: str, valid: str
) -> None:
    fleet = await echoing(start_fleet)

    answer = await fleet.chat(said, max_tokens=50, **asking(SCHEMA))

    assert answer.body["choices"][0]["message"]["content"] == said
    assert answer.headers["x-inferway-valid"] == valid
    assert await fleet.metric("inferway_gate_answers_total", valid=valid) == 1


async def test_an_answer_without_a_shape_says_nothing(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)

    answer = await fleet.chat("hi", tools=[tool(SCHEMA)], response_format={"type": "text"})

    assert answer.status == 200
    assert "x-inferway-valid" not in answer.headers
    assert "x-inferway-unenforced" not in answer.headers


async def test_a_response_and_a_completion_are_judged_too(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA}

    response = await fleet.post(
        "/v1/responses", {"model": "smollm2", "input": '{"n":1}', "text": {"format": form}}
    )
    completion = await fleet.post(
        "/v1/completions",
        {"model": "smollm2", "prompt": "no", "max_tokens": 9, "structured_outputs": {"regex": "y"}},
    )

    assert response.headers["x-inferway-valid"] == "true"
    assert completion.headers["x-inferway-valid"] == "false"


async def test_a_stream_says_it_before_its_end_and_clients_do_not_mind(
    start_fleet: StartFleet,
) -> None:
    fleet = await echoing(start_fleet, structured=StructuredSettings(report_validity=True))
    client = openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="-", max_retries=0)
    fields: Any = asking(SCHEMA)

    async with client:
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": '{"n":1}'}],
            max_tokens=50,
            stream=True,
            **fields,
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": '{"n":1}'}],
        "max_tokens": 50,
        "stream": True,
        **fields,
    }
    async with fleet.http.post(fleet.url + "/v1/chat/completions", json=body) as r:
        raw = await r.text()

    assert text == '{"n":1}'
    assert raw.endswith(": x-inferway-valid true\n\ndata: [DONE]\n\n")
    assert await fleet.metric("inferway_gate_answers_total", valid="true") == 2


class Number(pydantic.BaseModel):
    n: int


async def test_the_official_client_parses_what_it_has_asked_for(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)

    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="-") as client:
        chat = await client.chat.completions.parse(
            model="smollm2",
            messages=[{"role": "user", "content": '{"n":1}'}],
            response_format=Number,
        )
        response = await client.responses.parse(
            model="smollm2", input='{"n":2}', text_format=Number
        )

    assert chat.choices[0].message.parsed == Number(n=1)
    assert response.output_parsed == Number(n=2)
    assert await fleet.metric("inferway_gate_answers_total", valid="true") == 2


async def test_the_official_client_is_told_the_place(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)
    fields: Any = asking({"type": "strng"})

    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="-") as client:
        with pytest.raises(openai.BadRequestError) as e:
            await client.chat.completions.create(
                model="smollm2", messages=[{"role": "user", "content": "hi"}], **fields
            )

    assert (e.value.param, e.value.code) == (
        "response_format/json_schema/schema/type",
        "invalid_structure",
    )


async def test_what_a_stock_engine_enforces_is_not_known(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet, plugin=False)

    answer = await fleet.chat('{"n":1}', max_tokens=50, **asking(SCHEMA, strict=True))

    assert answer.headers["x-inferway-unenforced"] == "unknown"
    assert answer.headers["x-inferway-valid"] == "true"


async def test_of_what_stock_engines_do_not_read_it_is_said(start_fleet: StartFleet) -> None:
    stock = await echoing(start_fleet, plugin=False)
    ours = await echoing(start_fleet)

    ignored = await stock.chat('{"n":"x"}', max_tokens=50, guided_json=SCHEMA)
    kept = await ours.chat('{"n":1}', max_tokens=50, guided_json=SCHEMA)

    assert ignored.headers["x-inferway-unenforced"] == "guided_json"
    assert ignored.headers["x-inferway-valid"] == "false"
    assert "x-inferway-unenforced" not in kept.headers


@pytest.mark.parametrize(
    ("fields", "unenforced"),
    [
        ({"guided_regex": "("}, {"ours": "guided_regex", "stock": "guided_regex"}),
        ({"guided_json": "{"}, {"ours": "guided_json", "stock": "guided_json"}),
        (
            {"guided_regex": "a", "guided_json": {}},
            {"ours": "guided_json, guided_regex", "stock": "guided_json, guided_regex"},
        ),
        (
            {"guided_grammar": "auto", **asking({"type": "object"})},
            {"ours": "guided_grammar", "stock": "unknown, guided_grammar"},
        ),
    ],
)
@pytest.mark.parametrize("engine", ["ours", "stock"])
async def test_what_vllm_does_not_read_is_no_reason_to_refuse_and_is_named(
    start_fleet: StartFleet, fields: dict[str, Any], unenforced: dict[str, str], engine: str
) -> None:
    fleet = await echoing(start_fleet, plugin=engine == "ours")

    answer = await fleet.chat("{}", max_tokens=50, **fields)

    assert (answer.status, answer.headers["x-inferway-unenforced"]) == (200, unenforced[engine])


async def test_of_what_is_not_kept_explain_says_why(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)

    told = await fleet.post("/v1/structured/explain", {"guided_json": "{"})

    (spec,) = told.body["specs"]
    assert spec["verdict"] == "refused"
    assert spec["refused"]["reason"].startswith("guided_json: not valid JSON")


async def test_a_body_that_is_nested_too_deeply_is_refused(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)
    deep = b"[" * 100_000 + b"]" * 100_000
    chat = b'{"model":"smollm2","messages":[{"role":"user","content":"hi"}],"guided_json":%b}'

    answer = await fleet.post("/v1/chat/completions", chat % deep)

    assert (answer.status, answer.body["error"]["message"]) == (400, "body: nested too deeply")


UNIQUE = {"type": "object", "properties": {"a b": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize("is_strict", [True, False])
async def test_what_is_not_enforced_is_named(start_fleet: StartFleet, is_strict: bool) -> None:
    fleet = await echoing(start_fleet)

    answer = await fleet.chat("{}", **asking(UNIQUE, strict=is_strict))

    assert answer.headers["x-inferway-unenforced"] == "/properties/a%20b uniqueItems"


async def test_what_is_not_enforced_is_refused_with_strict_if_that_is_set(
    start_fleet: StartFleet,
) -> None:
    fleet = await echoing(start_fleet, structured=StructuredSettings(refuse_unenforced=True))

    lenient = await fleet.chat("{}", **asking(UNIQUE))
    strict = await fleet.chat("{}", **asking(UNIQUE, strict=True))

    assert lenient.status == 200
    assert strict.status == 400
    assert strict.body["error"]["param"] == "response_format/json_schema/schema/properties/a b"
    assert "uniqueItems" in strict.body["error"]["message"]


async def test_what_two_engines_were_lost_with_is_refused_and_a_third_one_is_spared(
    start_fleet: StartFleet,
) -> None:
    slow = simulated(
        structured=True, events=NO_EVENTS, latency=LatencyModel(time_to_first_token=60.0)
    )
    fleet = await start_fleet([slow] * 3, probe=ProbeSettings(join=False, one_in=0))

    async def arrived() -> bool:
        return any(engine.num_requests for engine in fleet.engines)

    asked = asyncio.ensure_future(fleet.chat("hi", **asking(SCHEMA)))
    for _ in range(2):
        await until(arrived)
        (lost,) = [engine for engine in fleet.engines if engine.num_requests]
        fleet.engines.remove(lost)
        await lost.stop()
    answer = await asked

    async def refused() -> bool:
        return await fleet.metric("inferway_gate_quarantined") == 1

    await until(refused)
    again = await fleet.chat("hi", **asking(SCHEMA))
    assert answer.status == 502
    assert again.status == 400
    assert "2 engines were lost while they worked on it alone" in again.body["error"]["message"]
    assert fleet.engines[0].num_requests == 0


async def test_of_strict_requests_to_stock_engines_only_the_invalid_are_refused(
    start_fleet: StartFleet,
) -> None:
    fleet = await echoing(start_fleet, plugin=False)

    unknown = await fleet.chat("{}", **asking({"type": "object", "discriminator": {}}, strict=True))
    invalid = await fleet.chat("{}", **asking({"type": "strng"}, strict=True))

    assert (unknown.status, unknown.headers["x-inferway-valid"]) == (200, "true")
    assert invalid.status == 400


async def test_an_engine_is_told_a_shape_in_advance_once(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)
    (engine,) = fleet.engines
    assert engine.structured is not None

    for _ in range(3):
        await fleet.chat('{"n":1}', **asking(SCHEMA))

    async def sent() -> bool:
        return await fleet.metric("inferway_gate_warmed_total", outcome="sent") == 1

    await until(sent)
    assert engine.structured.warmed == [("json", json_spec(SCHEMA, "").text)]


async def test_a_stock_engine_is_told_nothing(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet, plugin=False)

    await fleet.chat("hi", **asking(SCHEMA))

    assert await fleet.metric("inferway_gate_warmed_total") == 0


async def test_an_explanation_names_what_becomes_of_each_keyword(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet)

    good = await fleet.post("/v1/structured/explain", asking(SCHEMA))
    bad = await fleet.post("/v1/structured/explain", {"kind": "regex", "text": "("})
    nothing = await fleet.post("/v1/structured/explain", {"model": "m"})

    (told,) = good.body["specs"]
    assert told["verdict"] == "enforced"
    assert told["place"] == "response_format/json_schema/schema"
    assert {(each["keyword"], each["is"]) for each in told["keywords"]} >= {("type", "enforced")}
    assert bad.body["specs"][0]["verdict"] == "refused"
    assert nothing.status == 400


async def test_a_trial_compile_comes_to_the_same_verdict(start_fleet: StartFleet) -> None:
    fleet = await echoing(start_fleet, structured=StructuredSettings(trial_compile=True))

    answer = await fleet.chat('{"n":1}', max_tokens=50, **asking(SCHEMA, strict=True))

    assert answer.headers["x-inferway-valid"] == "true"
    assert await fleet.metric("inferway_helper_jobs_total", work="structured-trial") == 1


async def test_a_client_without_an_admin_key_is_told_of_the_shape_and_not_of_the_routing(
    start_fleet: StartFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN", "secret")
    fleet = await echoing(start_fleet, plugin=False, admin_key_env="ADMIN")

    answer = await fleet.chat('{"n":1}', max_tokens=50, **asking(SCHEMA))

    assert answer.headers["x-inferway-unenforced"] == "unknown"
    assert answer.headers["x-inferway-valid"] == "true"
    assert "x-inferway-engine" not in answer.headers


HOSTILE = [
    *(fields for fields, _ in BAD.values()),
    {"structured_outputs": {"regex": "(a|b)*a(a|b){12}"}},
    {"structured_outputs": {"regex": "((a{1,50}){1,50}){1,50}"}},
    asking({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    asking({"properties": {f"p{i}": {"type": "string", "pattern": "^a{9}$"} for i in range(1500)}}),
    asking({"anyOf": [{} for _ in range(1900)]}),
    {"tools": [tool(SCHEMA, f"f{i}") for i in range(500)], "tool_choice": "required"},
]


async def test_a_stream_does_not_notice_hostile_shapes_beside_it(start_fleet: StartFleet) -> None:
    """What a turn of the event loop takes of the CPU; engine and clients run in it, too."""
    engine = simulated(
        structured=True, events=NO_EVENTS, latency=LatencyModel(inter_token_latency=0.002)
    )
    fleet = await start_fleet([engine])
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    bodies = [json.dumps({**chat, **fields}).encode() for fields in HOSTILE]
    stream = {**chat, "max_tokens": 400, "stream": True, "ignore_eos": True}

    async def good() -> bytes:
        lines = b""
        async with fleet.http.post(fleet.url + "/v1/chat/completions", json=stream) as r:
            async for line in r.content:
                lines = line.strip() or lines
        return lines

    async def beside() -> bytes:
        streaming = asyncio.ensure_future(good())
        while not streaming.done():
            answers = [await fleet.post("/v1/chat/completions", body) for body in bodies]
            statuses[:] = [answer.status for answer in answers]
        return await streaming

    await fleet.post("/v1/chat/completions", bodies[0])  # loads the libraries
    statuses: list[int] = []
    turns = []
    asking = asyncio.ensure_future(beside())
    while not asking.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        turns.append(time.thread_time() - began)

    assert asking.result() == b"data: [DONE]"
    assert statuses[: len(BAD)] == [400] * len(BAD)
    assert max(turns) / slowness() < 0.1


MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
WEATHER = {"name": "weather", "input_schema": SCHEMA}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"tools": [{**WEATHER, "input_schema": {"type": 5}, "strict": True}]},
            "tools/0/input_schema/type",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"pattern": "("}}}},
            "output_config/format/schema/pattern",
        ),
    ],
)
async def test_anthropic_s_messages_are_checked_before_an_engine_sees_them(
    fields: dict[str, Any], param: str
) -> None:
    engine = Recorder()
    body = {**MESSAGES, "tool_choice": {"type": "any"}, **fields}
    async with in_front_of(engine) as front:
        status, _, answer = await front.ask("/v1/messages", json.dumps(body))

    error = json.loads(answer)["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["message"].startswith(f"{param}: ")
    assert not engine.seen


@pytest.mark.parametrize(("given", "valid"), [({"n": 1}, "true"), ({"n": "1"}, "false")])
async def test_anthropic_s_tool_calls_are_judged(given: dict[str, Any], valid: str) -> None:
    call = {"type": "tool_use", "id": "t", "name": "weather", "input": given}
    engine = Recorder(answer=json.dumps({"type": "message", "content": [call]}).encode())
    body = {**MESSAGES, "tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
    async with in_front_of(engine) as front:
        status, headers, answer = await front.ask("/v1/messages", json.dumps(body))
        free, told, _ = await front.ask("/v1/messages", json.dumps(MESSAGES))

    assert (status, headers["x-inferway-valid"]) == (200, valid)
    assert headers["x-inferway-unenforced"] == "unknown"
    assert json.loads(answer) == json.loads(engine.answer)
    assert free == 200
    assert "x-inferway-valid" not in told


async def test_what_asks_elsewhere_for_nothing_is_not_looked_at() -> None:
    engine = Recorder()
    body = json.dumps({"model": "m", "prompt": "x", "tools": [{"name": 5}]})
    async with in_front_of(engine) as front:
        status, headers, _ = await front.ask("/tokenize", body)

    assert status == 200
    assert "x-inferway-unenforced" not in headers
