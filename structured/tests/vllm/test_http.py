"""The middleware around an app of a few lines, which stands for vLLM's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from structured.tests.patient import PATIENT
from tests.engines.hostile_shapes import BAD

from inferway_structured.requests import GUIDED
from inferway_structured.turns import TokenBucket
from inferway_structured.vllm.calls import ON_ITS_WAY
from inferway_structured.vllm.front import ApiServerSide
from inferway_structured.vllm.http import Middleware
from inferway_structured.vllm.metrics import Collector

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

CHAT = "/v1/chat/completions"
SET = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    "required": ["a"],
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {"type": "function", "function": {"name": "count", "parameters": NUMBER}}


@dataclass
class Answered:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Engine:
    """Answers what it is told to, and keeps what it was asked."""

    text: str = '{"n":1}'
    event_chars: int = 1  # of a stream
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    before: Callable[[], Awaitable[None]] | None = None  # the answer

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:  # noqa: ARG002
        body = (await receive())["body"]
        self.bodies.append(body)
        if self.before is not None:
            await self.before()
        if b'"stream": true' in body:
            return await self._stream(send)
        answer = {"choices": [{"index": 0, "message": {"content": self.text}}]}
        await send(start(self.status, "application/json"))
        return await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    async def _stream(self, send: Send) -> None:
        await send(start(200, "text/event-stream; charset=utf-8"))
        for at in range(0, len(self.text), self.event_chars):
            piece = self.text[at : at + self.event_chars]
            event = {"choices": [{"index": 0, "delta": {"content": piece}}]}
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})
        done = {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True}
        await send(done)
        await send({"type": "http.response.body", "body": b""})


def start(status: int, kind: str) -> Message:
    headers = [(b"content-type", kind.encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


@dataclass
class Cores:
    """One engine core, as vLLM's client reaches it."""

    why: dict[str, Any] = field(default_factory=dict)
    judged: dict[str, Any] | None = None  # None: it does not know how to
    compiled: asyncio.Event | None = None  # set when it is
    asked: list[tuple[str, Any]] = field(default_factory=list)

    async def call_utility_async(self, name: str, command: str, words: str) -> str:
        assert name == "inferway_structured"
        self.asked.append((command, json.loads(words)))
        told = {"why": self.why, "warm": {"accepted": True}, "stats": {"counts": {}, "held": []}}
        if self.judged is not None:
            told["judge"] = self.judged
        if command == "judge" and self.compiled is not None:
            await self.compiled.wait()
        return json.dumps(told[command])


@dataclass
class Server:
    """The middleware with what it finds in vLLM's app."""

    front: ApiServerSide
    engine: Engine = field(default_factory=Engine)
    cores: Cores = field(default_factory=Cores)
    reports: bool = False
    refuses: bool = False

    def __post_init__(self) -> None:
        self.app = Middleware(self.engine, self.front, Collector(self.front))

    async def ask(
        self, body: object, path: str = CHAT, method: str = "POST", root: str = ""
    ) -> Answered:
        config = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)
        settings = {
            **{"structured": True, "report_validity": self.reports},
            "refuse_unenforced": self.refuses,
        }
        state = SimpleNamespace(
            vllm_config=SimpleNamespace(
                structured_outputs_config=config, additional_config={"inferway": settings}
            ),
            engine_client=SimpleNamespace(engine_core=self.cores),
        )
        scope = {
            "type": "http",
            "method": method,
            "path": root + path,
            "root_path": root,
            "app": SimpleNamespace(state=state),
        }
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        answered = Answered()

        async def receive() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            else:
                answered.body += message["body"]

        await self.app(scope, receive, send)
        return answered


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    front = ApiServerSide(PATIENT)
    yield Server(front)
    await front.close()


def form(schema: object, **more: object) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": schema, **more},
        }
    }


async def test_a_request_without_a_shape_passes_as_it_came(server: Server) -> None:
    answered = await server.ask({"messages": []})

    assert server.engine.bodies == [b'{"messages": []}']
    assert answered.headers == {"content-type": "application/json"}


async def test_what_is_not_json_is_left_to_vllm(server: Server) -> None:
    await server.ask(b'{"response_format": ')

    assert server.engine.bodies == [b'{"response_format": ']


async def test_a_bad_shape_is_refused_before_the_engine_and_with_its_place(server: Server) -> None:
    answered = await server.ask(form({"type": "objekt"}))

    assert answered.status == 400
    assert answered.json["error"]["param"] == "response_format/json_schema/schema/type"
    assert answered.json["error"]["type"] == "BadRequestError"
    assert server.engine.bodies == []


async def test_a_name_written_with_escapes_is_read(server: Server) -> None:
    body = json.dumps(form({"type": "objekt"})).replace("response_format", "respons\\u0065_format")

    assert (await server.ask(body.encode())).status == 400


@pytest.mark.parametrize(
    ("words", "outputs"),
    [
        ({"guided_json": NUMBER}, {"json": NUMBER}),
        ({"guided_json": json.dumps(NUMBER)}, {"json": json.dumps(NUMBER)}),
        (
            {"guided_json": NUMBER, "guided_whitespace_pattern": " ?"},
            {"json": NUMBER, "whitespace_pattern": " ?"},
        ),
        ({"guided_regex": "a+", "guided_json": None}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"], "guided_decoding_backend": "x"}, {"choice": ["a", "b"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"guided_json_object": True, "guided_regex": False}, {"json_object": True}),
    ],
)
async def test_what_vllm_up_to_0_11_was_asked_vllm_reads_in_the_words_of_today(
    server: Server, words: dict[str, Any], outputs: dict[str, Any]
) -> None:
    others = {"model": "m", "user": "\ud800", "seed": 2**70}

    answered = await server.ask({**others, **words})

    read = json.loads(server.engine.bodies[0])
    assert answered.status == 200
    assert read.pop("structured_outputs") == outputs
    assert {name: value for name, value in read.items() if name in others} == others
    assert not read.keys() & GUIDED.keys()


@pytest.mark.parametrize(
    ("body", "unenforced"),
    [
        ({"guided_json": {"type": "objekt"}}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_json": NUMBER, "guided_regex": "a"}, "guided_json, guided_regex"),
        ({"guided_regex": "a", **form(NUMBER)}, "guided_regex"),
        ({"use_beam_search": True, **form({})}, "response_format/json_schema/schema"),
    ],
)
async def test_what_vllm_does_not_read_passes_as_it_came_and_is_named(
    server: Server, body: dict[str, Any], unenforced: str
) -> None:
    answered = await server.ask(body)

    assert (answered.status, answered.headers["x-inferway-unenforced"]) == (200, unenforced)
    assert server.engine.bodies == [json.dumps(body).encode()]


@pytest.mark.parametrize(
    "body",
    [
        {"guided_json": NUMBER, "structured_outputs": {"json": NUMBER}},
        {"guided_json": NUMBER, "tools": [TOOL], "tool_choice": "required"},
        {"guided_json": None, **form(NUMBER)},
        {"messages": [{"content": "guided_json"}]},
    ],
)
async def test_vllm_reads_the_clients_bytes_where_they_say_the_shape(
    server: Server, body: dict[str, Any]
) -> None:
    await server.ask(body)

    assert server.engine.bodies == [json.dumps(body).encode()]


async def test_a_large_body_is_checked_too(server: Server) -> None:
    body = {"messages": ["x" * 100_000], **form({"type": "objekt"})}

    assert (await server.ask(body)).status == 400


async def test_a_path_behind_a_prefix_is_known(server: Server) -> None:
    assert (await server.ask(form({"type": "objekt"}), root="/engine")).status == 400


async def test_an_answer_says_whether_it_is_valid(server: Server) -> None:
    valid = await server.ask(form(NUMBER))
    server.engine.text = '{"n":'
    broken = await server.ask(form(NUMBER))

    assert valid.headers["x-inferway-valid"] == "true"
    assert broken.headers["x-inferway-valid"] == "false"
    assert server.front.counts.answers.snapshot() == {"true": 1, "false": 1}


@pytest.mark.parametrize("is_strict", [True, False])
async def test_what_nobody_enforces_is_named(server: Server, is_strict: bool) -> None:
    server.engine.text = '{"a":[1,1]}'

    answered = await server.ask(form(SET, strict=is_strict))

    assert answered.headers["x-inferway-unenforced"] == "/properties/a uniqueItems"
    assert answered.headers["x-inferway-valid"] == "false"


LEFT_OUT = {"backend": "llguidance", "unenforced": [["/properties/n", "minimum"]]}
REFUSED = {"status": 400, "message": "no", "place": "/properties/n", "keyword": "type"}


async def test_the_engine_core_says_what_it_does_not_enforce_when_it_compiles(
    server: Server,
) -> None:
    server.cores.judged = LEFT_OUT

    first = await server.ask(form(NUMBER))
    again = await server.ask(form(NUMBER))

    for answered in (first, again):
        assert answered.headers["x-inferway-unenforced"] == "/properties/n minimum"
        assert answered.headers["x-inferway-valid"] == "true"
    assert [command for command, _ in server.cores.asked] == ["judge"]
    assert server.cores.asked[0][1]["kind"] == "json"


@pytest.mark.parametrize("streams", [True, False])
async def test_what_the_engine_core_refuses_is_400_before_a_byte_of_the_answer(
    server: Server, streams: bool
) -> None:
    server.cores.judged = REFUSED

    first = await server.ask({"stream": streams, **form(NUMBER)})
    again = await server.ask({"stream": streams, **form(NUMBER)})

    for answered in (first, again):
        assert answered.status == 400
        assert answered.json["error"] == {
            "message": "response_format/json_schema/schema/properties/n: no",
            "type": "BadRequestError",
            "param": "response_format/json_schema/schema/properties/n",
            "code": 400,
            "keyword": "type",
        }
    assert len(server.engine.bodies) == 1  # the second is known


async def test_a_stream_begins_when_the_engine_core_has_compiled(server: Server) -> None:
    server.cores.judged, server.cores.compiled = LEFT_OUT, asyncio.Event()
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()

    server.engine.before = begin
    asking = asyncio.ensure_future(server.ask({"stream": True, **form(NUMBER)}))
    await begun.wait()  # the engine has the request though its shape is not judged

    server.cores.compiled.set()
    answered = await asking

    assert answered.headers["x-inferway-unenforced"] == "/properties/n minimum"
    assert answered.body.endswith(b"data: [DONE]\n\n")


async def test_a_shape_that_was_killed_is_refused_for_a_while(server: Server) -> None:
    server.cores.judged = {**REFUSED, "killed": True}

    await server.ask(form(NUMBER))
    again = await server.ask(form(NUMBER))

    assert again.status == 400
    assert "refused for a while" in again.json["error"]["message"]
    assert len(server.cores.asked) == 1


async def test_what_nobody_enforces_is_refused_with_strict_if_that_is_set(server: Server) -> None:
    server.engine.text, server.refuses = '{"a":[1,1]}', True

    lenient = await server.ask(form(SET))
    strict = await server.ask(form(SET, strict=True))
    explained = await server.ask(form(SET, strict=True), "/v1/structured/explain")

    assert lenient.status == 200
    assert explained.json["refused"]["by"] == "strict"
    assert strict.status == 400
    assert strict.json["error"]["param"].startswith(
        "response_format/json_schema/schema/properties/a"
    )


@dataclass
class Params:
    """vLLM's StructuredOutputsParams."""

    structural_tag: str | None = None
    json: Any = None


CONFIG = SimpleNamespace(disable_any_whitespace=False, disable_additional_properties=False)


def calls(*schemas: object) -> dict[str, Any]:
    """As vLLM writes them."""
    tags = [
        {
            "type": "tag",
            "begin": f"<{at}>",
            "content": {"type": "json_schema", "json_schema": schema, "style": "json"},
            "end": "</>",
        }
        for at, schema in enumerate(schemas)
    ]
    form = {"type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True}
    return {"type": "structural_tag", "format": form}


async def asking(server: Server, params: Params | None, *tools: object, **more: object) -> Answered:
    async def make() -> None:
        if params is not None:
            await server.front.examine_params("id", params, CONFIG)
            server.front.require(params, CONFIG)

    server.engine.before = make
    return await server.ask({"tools": tools, "tool_choice": "required", **more})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("made", "named"),
    [
        ([NUMBER], None),
        ([True], "parameters"),
        (None, "parameters"),  # a parser of which vLLM asks nothing of the engine
    ],
)
async def test_arguments_that_vllm_has_left_free_are_named(
    server: Server, made: list[object] | None, named: str | None, stream: bool
) -> None:
    params = None if made is None else Params(json.dumps(calls(*made)))

    answered = await asking(server, params, TOOL, stream=stream)

    assert answered.status == 200
    assert answered.headers.get("x-inferway-unenforced") == named


async def test_calls_that_cannot_be_kept_together_may_have_any_arguments(server: Server) -> None:
    """Each alone may be: what vLLM takes goes through."""
    tag = calls(NUMBER, {"enum": ["a" * 9_000_000]})

    answered = await asking(server, params := Params(json.dumps(tag)), TOOL)

    assert answered.status == 200
    assert answered.headers["x-inferway-unenforced"] == "parameters"
    any_object = {"type": "object", "properties": {}}
    assert params.structural_tag == json.dumps(calls(any_object, any_object))


async def test_an_array_of_calls_may_have_any_arguments_too(server: Server) -> None:
    call = {"properties": {"name": {"enum": ["count"]}, "parameters": {"type": "objekt"}}}
    schema = {"type": "array", "items": {"type": "object", "anyOf": [call]}, "$defs": {}}

    answered = await asking(server, params := Params(json=schema), TOOL)

    assert answered.headers["x-inferway-unenforced"] == "parameters"
    assert params.json["items"]["anyOf"][0]["properties"]["parameters"] == {"type": "object"}


async def test_a_schema_that_cannot_be_read_is_refused_of_strict_tools_alone(
    server: Server,
) -> None:
    bad = {"name": "bad", "parameters": {"type": "objekt"}}
    free = {"type": "function", "function": bad}
    strict = {"type": "function", "function": {**bad, "strict": True}}

    passed = await asking(server, Params(json.dumps(calls(NUMBER, True))), TOOL, free)
    refused = await asking(server, None, TOOL, strict)

    assert passed.headers["x-inferway-unenforced"] == "tools/1/function/parameters"
    assert refused.status == 400
    assert refused.json["error"]["param"] == "tools/1/function/parameters/type"


async def test_what_the_engine_core_says_of_calls_has_a_place_in_the_request(
    server: Server,
) -> None:
    async def known() -> None:
        request = ON_ITS_WAY.get()
        assert request is not None
        request.ids.append("id")

    server.engine.status, server.engine.before = 500, known
    server.cores.why = {"status": 400, "message": "no", "place": "/format/tags/0", "keyword": None}

    one = await server.ask({"tools": [TOOL], "tool_choice": "required"})
    two = await server.ask({"tools": [TOOL, TOOL], "tool_choice": "required"})

    assert one.json["error"]["param"] == "tools/0/function/parameters"
    assert two.json["error"]["param"] == "tools"


async def test_a_stream_is_judged_and_says_so_only_if_it_should(server: Server) -> None:
    silent = await server.ask({"stream": True, **form(NUMBER)})
    server.reports = True
    reporting = await server.ask({"stream": True, **form(NUMBER)})

    assert silent.body.endswith(b"}\n\ndata: [DONE]\n\n")
    assert reporting.body.endswith(b"\n\n: x-inferway-valid true\n\ndata: [DONE]\n\n")
    assert server.front.counts.answers.value("true") == 2


async def test_a_text_that_looks_like_the_end_of_a_stream_is_text(server: Server) -> None:
    server.reports = True
    server.engine.text, server.engine.event_chars = '"data: [DONE]"', 99

    answered = await server.ask({"stream": True, **form({"type": "string"})})

    event = b'{"choices": [{"index": 0, "delta": {"content": "\\"data: [DONE]\\""}}]}'
    end = b"\n\n: x-inferway-valid true\n\ndata: [DONE]\n\n"
    assert answered.body == b"data: " + event + end


@pytest.mark.parametrize("status", [500, 400])  # of vLLM up to 0.32, and from 0.33 on
async def test_an_error_of_the_engine_about_the_shape_gets_its_reason(
    server: Server, status: int
) -> None:
    async def asks_the_engine() -> None:
        request = ON_ITS_WAY.get()
        assert request is not None
        request.ids.append("chatcmpl-1")

    server.engine.status = status
    server.engine.before = asks_the_engine
    plain = await server.ask(form(NUMBER))
    server.cores.why = {"status": 400, "message": "too long", "place": "/n", "keyword": None}
    explained = await server.ask(form(NUMBER))

    assert plain.json == {"choices": [{"index": 0, "message": {"content": '{"n":1}'}}]}
    assert explained.status == 400
    assert explained.json["error"]["param"] == "response_format/json_schema/schema/n"


async def test_a_client_that_has_left_is_not_answered(server: Server) -> None:
    """Nor does the engine hear of it."""
    front, engine = server.front, server.engine

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        raise AssertionError

    scope = {"type": "http", "method": "POST", "path": CHAT}
    await Middleware(engine, front, Collector(front))(scope, gone, send)

    assert engine.bodies == []


@pytest.mark.parametrize("name", BAD)
async def test_no_hostile_shape_holds_the_event_loop_or_passes(server: Server, name: str) -> None:
    """What a shape costs is paid elsewhere: judged here, the enum of 20,000 makes 40,000 calls in
    one turn of the loop. Calls are counted, for a time would depend on the machine."""
    fields, place = BAD[name]
    body = json.dumps({"messages": [], **fields}).encode()
    await server.ask(form(NUMBER))  # loads the libraries

    calls = [0]

    def count(frame: object, event: str, argument: object) -> None:  # noqa: ARG001
        calls[-1] += 1

    asking = asyncio.ensure_future(server.ask(body))
    sys.setprofile(count)  # of this thread alone
    try:
        while not asking.done():
            await asyncio.sleep(0)
            calls.append(0)
    finally:
        sys.setprofile(None)

    answered = asking.result()
    assert max(calls) < 10_000
    assert answered.status == 400
    assert answered.json["error"]["param"].startswith(place)
    assert len(server.engine.bodies) == 1


async def test_equal_shapes_are_judged_once_however_many_ask(server: Server) -> None:
    await asyncio.gather(*(server.ask(form(NUMBER)) for _ in range(20)))

    assert len(server.front.verdicts._known) == 1


@pytest.mark.parametrize("spec", [{"kind": "regex", "text": "a+"}, form(NUMBER)])
async def test_an_engine_core_is_told_what_to_warm(server: Server, spec: object) -> None:
    answered = await server.ask(spec, "/v1/structured/warm")

    ((command, words),) = server.cores.asked
    assert answered.status == 202
    assert (command, bool(words["text"])) == ("warm", True)
    assert answered.json["key"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"kind": "poem"}', "kind"),
        (b'{"kind": "regex", "text": 5}', "text"),
        (b'{"kind": "regex", "text": "a", "options": {"b": 1}}', "options"),
        (b'{"kind": "regex", "text": "(a"}', "text"),
    ],
)
async def test_what_cannot_be_warmed_is_refused(
    server: Server, body: bytes, param: str | None
) -> None:
    answered = await server.ask(body, "/v1/structured/warm")

    assert answered.status == 400
    assert answered.json["error"]["param"] == param
    assert server.cores.asked == []


async def test_a_body_too_large_is_refused(server: Server) -> None:
    assert (await server.ask(b" " * 2_000_000, "/v1/structured/warm")).status == 413


async def test_a_shape_is_explained_without_the_engine_core(server: Server) -> None:
    told = await server.ask({"kind": "json", "text": json.dumps(SET)}, "/v1/structured/explain")

    assert (told.json["verdict"], told.json["backend"]) == ("partly", "llguidance")
    assert server.cores.asked == []


async def test_stats_are_the_servers_and_its_cores(server: Server) -> None:
    await server.ask(form(NUMBER))

    told = (await server.ask(b"", "/v1/structured/stats", "GET")).json

    assert told["plugin"] == "inferway"
    assert told["counts"]["answers"] == {"true": 1}
    assert told["cores"] == [{"held": []}]


async def test_other_paths_and_methods_of_ours_are_refused(server: Server) -> None:
    assert (await server.ask(b"", "/v1/structured/other")).status == 404
    assert (await server.ask(b"", "/v1/structured/stats")).status == 405


async def test_warm_ups_are_bounded_in_rate(server: Server) -> None:
    spec = {"kind": "regex", "text": "a+"}
    server.app.endpoints.warmings = TokenBucket(0.0)  # nothing comes after the first

    statuses = [(await server.ask(spec, "/v1/structured/warm")).status for _ in range(2)]

    assert statuses == [202, 429]
