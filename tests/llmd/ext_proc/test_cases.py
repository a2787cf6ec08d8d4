"""The neutral cases: what the reference is asked, and what it answers (llm-d, GIE, a real Envoy).

Where we differ, on purpose:
- no-pods-header-only: 503, as the protocol's text has it, where llm-d answers 500
- only headers that change are set; the reference writes all that came (it would make one of two)
- envoy-http1-post: a body with Content-Length is answered once it has come, before its end has
- a response in several pieces is answered in as many, none is kept back
- evict-in-flight, queue-ttl: the picker has no queue, and calls back nothing that it has sent on
- passthrough-parser, parser-skip: which bodies are read is told by their path, not by a parser
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from tests.llmd.ext_proc.journeys import Untouched
from tests.llmd.ext_proc.pods import Pods, Stream, rqb, rqh, rqt, rsb, rsh, rst

from inferway.config import ModelRewrite, RewriteTarget
from inferway.errors import SaturatedError
from inferway.model import Headers, Target
from inferway.openai_api.trust import Trust
from inferway.routing.rewrite import Rewrites
from inferway_llmd.ext_proc import answers
from inferway_llmd.ext_proc.exchange import ProcessingStream
from inferway_llmd.ext_proc.messages import FULL_DUPLEX_STREAMED, ProcessingResponse
from inferway_llmd.ext_proc.questions import Pick, Rules
from inferway_llmd.ext_proc.reading import headers_of
from inferway_structured.report import UNENFORCED_HEADER

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parent / "cases.json").read_text())
}
NO_QUEUE = {"evict-in-flight", "queue-ttl"}
OTHER_SHAPE = {
    *("chunking-62000", "raw-value-wins", "envoy-client-gone-mid-sse", "sheddable-saturated"),
    *NO_QUEUE,
}
UNREAD = {"passthrough-parser", "parser-skip"}
REWRITE = Rewrites(
    [
        ModelRewrite(
            models=["model-to-be-rewritten"], targets=[RewriteTarget(model="rewritten-model")]
        )
    ]
)


def message(said: dict[str, Any], case: str) -> Any:
    meta = said.get("meta")
    eos = said.get("eos", False)
    match said:
        case {"rqh": headers}:
            if case in UNREAD:
                headers = {**headers, ":path": "/v1/audio/transcriptions"}
            made = rqh(*headers.items(), eos=eos, meta=meta)
            if "protocol_config" in said:
                made.protocol_config.request_body_mode = FULL_DUPLEX_STREAMED
                made.protocol_config.response_body_mode = FULL_DUPLEX_STREAMED
            return made
        case {"rqb": body}:
            return rqb(with_prompt(body, case), eos=eos, meta=meta)
        case {"rqt": _}:
            return rqt()
        case {"rsh": headers}:
            return rsh(*headers.items(), eos=eos, meta=meta)
        case {"rsb": body}:
            return rsb(body.encode(), eos=eos)
        case {"rst": _}:
            return rst()
    raise AssertionError(said)


def with_prompt(body: str, case: str) -> bytes:
    """A completion without a prompt is none; these cases are about something else."""
    if case == "envoy-request-trailers":
        return body.encode()[:-1] + b',"prompt":"p"}'
    return body.encode()


def kind(answer: Any) -> str:
    return {
        "request_headers": "RQH",
        "request_body": "RQB",
        "request_trailers": "RQT",
        "response_headers": "RSH",
        "response_body": "RSB",
        "response_trailers": "RST",
        "immediate_response": "IMM",
    }[answer.WhichOneof("kind")]


def piece(answer: Any) -> Any:
    part = answer.request_body if kind(answer) == "RQB" else answer.response_body
    return part.response.body_mutation.streamed_response


def joined(answered: Sequence[Any], expected: Sequence[Any]) -> list[Any]:
    """Consecutive pieces of a body are one where the case has one."""
    made: list[Any] = []
    for answer in answered:
        one_expected = len(expected) < len(answered)
        if (
            one_expected
            and made
            and kind(answer) == kind(made[-1])
            and kind(answer) in ("RQB", "RSB")
        ):
            piece(made[-1]).body += piece(answer).body
            piece(made[-1]).end_of_stream |= piece(answer).end_of_stream
            made[-1].dynamic_metadata.MergeFrom(answer.dynamic_metadata)
        else:
            made.append(answer)
    return made


def assert_answers(answer: Any, expected: Any, came: dict[str, str]) -> None:
    if isinstance(expected, str):
        assert kind(answer) == expected
        return
    word = next(key for key in expected if key[:1] in "RI")
    assert kind(answer) == word.removesuffix("-in")
    if word == "IMM":
        reply = answer.immediate_response
        assert reply.status.code == expected["IMM"]
        prefix = expected["body"].removesuffix("error unmarshaling request bodyMap: ...")
        exact = prefix == expected["body"]
        assert fnmatchcase(reply.body.decode(), expected["body"] if exact else prefix + "*")
        return
    if word in ("RQB", "RSB"):
        assert same_body(piece(answer).body, expected[word])
        assert piece(answer).end_of_stream == expected["eos"]
    elif word == "RQH-in":
        assert destination(answer) in expected[word]
    else:
        part = answer.request_headers if word == "RQH" else answer.response_headers
        assert part.response.clear_route_cache or not expected[word].get("clear_route_cache")
        told = dict(headers_of_options(part.response.header_mutation.set_headers))
        for name, value in expected[word]["set"].items():
            # what came and is not changed is not told again
            assert told.get(name.lower(), came.get(name, came.get(name.lower()))) == value, name
    if "dyn" in expected:
        told_metadata = {
            namespace: dict(values.struct_value.fields)
            for namespace, values in answer.dynamic_metadata.fields.items()
        }
        for name, value in expected["dyn"]["envoy.lb"].items():
            field = told_metadata["envoy.lb"][name]
            assert (field.string_value or field.number_value) == value


def headers_of_options(options: Any) -> list[tuple[str, str]]:
    return [(o.header.key.lower(), o.header.raw_value.decode()) for o in options]


def destination(answer: Any) -> str:
    options = answer.request_headers.response.header_mutation.set_headers
    return dict(headers_of_options(options))["x-gateway-destination-endpoint"]


def same_body(made: bytes, expected: str) -> bool:
    if expected == "*":
        return True
    if expected.startswith("{"):
        return bool(json.loads(made) == json.loads(expected))
    return made.decode() == expected


@pytest.mark.parametrize("name", sorted(CASES.keys() - OTHER_SHAPE))
async def test_a_stream_is_answered_as_the_reference_does(name: str) -> None:
    case = CASES[name]
    # We never close a stream whose answer is still to come: see exchange.py
    expected = deepcopy([each for each in case["out"] if each != "CLOSE"])
    stream = Stream(
        case["pods"],
        rewrites=REWRITE,
        conformance=name in ("deferred-headers", "served-endpoint"),
        cost=lambda usage: usage.completion,
    )
    came: dict[str, str] = {}
    for said in case["in"]:
        came |= said.get("rqh", {}) | said.get("rsh", {})
    if name == "get-header-only":  # what it expects came with no header of the case
        expected[0]["RQH"]["set"] = {"x-gateway-destination-endpoint": "192.168.1.1:8000"}
    if name == "envoy-request-trailers":
        expected[1]["RQB"] = with_prompt(expected[1]["RQB"], name).decode()
    if name == "envoy-http1-post":
        expected[1:2] = [{**expected[1], "eos": False}, {"RQB": "", "eos": True}]
    if name == "no-pods-header-only":  # the protocol's text says 503
        words = expected[0]["body"].replace("Internal", "ServiceUnavailable")
        expected[0] |= {"IMM": 503, "body": words}

    answered = await stream.send(*[message(said, name) for said in case["in"]])

    answered = joined(answered, expected)
    if "RQH-in" in expected[0]:
        del answered[1:]  # the case tells the first only
    assert len(answered) == len(expected), [kind(a) for a in answered]
    for answer, wanted in zip(answered, expected, strict=True):
        assert_answers(answer, wanted, came)
    assert not stream.exchange.over or "CLOSE" not in case["out"]


async def test_who_goes_in_the_middle_of_a_stream_leaves_no_slot() -> None:
    case = CASES["envoy-client-gone-mid-sse"]
    stream = Stream(case["pods"])

    answered = await stream.send(*[message(said, "") for said in case["in"][:-1]])

    assert [kind(answer) for answer in answered] == case["out"][:-1]
    assert stream.fleet.booked == ["a:1"]
    stream.exchange.close()  # the half-close
    assert stream.fleet.booked == []
    assert stream.outcomes == {"client_gone": 1}


def test_bodies_are_cut_as_the_reference_cuts_them() -> None:
    counts = CASES["chunking-62000"]["out"][0]["RQB-count"]

    for size, count in zip((0, 61_000, 62_000, 62_001, 63_000, 125_000), counts, strict=True):
        made = answers.request_pieces(b"x" * size, ended=True)
        pieces = [piece(ProcessingResponse.FromString(a)) for a in made]

        assert len(pieces) == count
        assert b"".join(p.body for p in pieces) == b"x" * size
        assert [p.end_of_stream for p in pieces] == [*[False] * (count - 1), True]


def test_the_raw_value_of_a_header_wins() -> None:
    given = CASES["raw-value-wins"]["in"][0]["rqh-raw"]["x-gateway-inference-fairness-id"]
    made = rqh()
    made.request_headers.headers.headers.add(
        key="x-gateway-inference-fairness-id",
        raw_value=given["raw_value"].encode(),
        value=given["value"],
    )

    headers = headers_of(made.request_headers.headers)

    assert headers == [(b"x-gateway-inference-fairness-id", b"binary-id")]


def test_a_request_that_may_be_refused_is_told_so_and_why() -> None:
    expected = CASES["sheddable-saturated"]["out"][0]

    made = answers.refusal(SaturatedError("engines are full"))
    reply = ProcessingResponse.FromString(made).immediate_response

    assert reply.status.code == expected["IMM"]
    assert reply.body.decode() == expected["body"]
    reasons = dict(headers_of_options(reply.headers.set_headers))
    assert reasons["x-llm-d-request-dropped-reason"] == "rejected-saturated"


@pytest.mark.parametrize("trusts", [False, True])
async def test_clients_say_where_blocks_are_fetched_only_where_they_may(trusts: bool) -> None:
    stream = Stream({"10.0.0.1:8000": {}})
    stream.picker.trust = Trust(transfers=trusts)
    body = b'{"model":"m","prompt":"p","kv_transfer_params":{"remote_host":"evil"}}'

    answered = await stream.send(rqh((":path", "/v1/completions")), rqb(body, eos=True))

    kinds = [kind(answer) for answer in answered]
    assert kinds == (["RQH", "RQB"] if trusts else ["IMM"])


class Unkept(Untouched):
    """A journey whose answer does not keep what was asked."""

    def on_head(self, status: int) -> Headers:  # noqa: ARG002
        decided = ((b"x-inferway-engine", b"e"), (b"x-inferway-reason", b"unread"))
        return (*decided, (UNENFORCED_HEADER, b"json_schema"), (b"x-s", b"1"))


@pytest.mark.parametrize("explain", [False, True])
async def test_what_an_answer_does_not_keep_is_told_also_where_decisions_are_not(
    explain: bool,
) -> None:
    pods = Pods({"10.0.0.1:8000": {}})
    exchange = ProcessingStream(Rules(pods.find, explain=explain))
    exchange.receive(rqh((":path", "/v1/models"), eos=True))
    exchange.decided(Pick(Unkept(b""), [Target(pods.endpoints[0], 0.0, 0, 0)]))

    [head] = exchange.receive(rsh((":status", "200"), eos=True))

    mutation = ProcessingResponse.FromString(head).response_headers.response.header_mutation
    told = [name for name, _ in headers_of_options(mutation.set_headers)]
    assert told == [
        "x-went-into-resp-headers",
        *(["x-inferway-engine"] if explain else []),
        *("x-inferway-reason", "x-inferway-unenforced", "x-s"),
    ]
