"""An engine is killed in the middle of an answer, and comes back.

These tests leave an engine dead behind them, so conftest.py puts them last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION, Request, completion, user
from tests.engines.client import Answer
from tests.engines.conftest import Say
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.gateway import ask_directly, engine_of, scores, send, wait_until_believed
from tests.engines.waiting import wait_until

HELD_BEFORE = completion("held by both before", list(range(20_000, 20_000 + 3 * BLOCK_SIZE)))
NUM_TOKENS = 240
STORY = {
    "model": MODEL,
    "messages": [user("Tell me a long story about a lighthouse.")],
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
# Another engine would not give the tokens of the start their penalty.
STAYS = {**STORY, "frequency_penalty": 0.1}
ALONE = {**STORY, "stream": False, "stream_options": None}


@dataclass(frozen=True)
class Killing:
    victim: RealEngine
    survivor: RealEngine
    lines: list[str]  # of the stream that lost its engine, without empty ones
    stays: list[str]  # of one that no other engine goes on with
    next_answer: Answer


def lines_of(stream: Iterable[bytes]) -> list[str]:
    return [line.decode().strip() for line in stream if line.strip()]


def text_of(lines: Sequence[str]) -> str:
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def check_that_the_other_one_went_on(killing: Killing) -> None:
    """The rest is what the other engine says after the prompt and the tokens of the start."""
    (comment,) = [line for line in killing.lines if line.startswith(": x-inferway-continued")]
    assert f"engine={killing.survivor.name}" in comment
    kept = int(comment.rpartition("=")[2])
    before = text_of(killing.lines[: killing.lines.index(comment)])

    with client.open_stream(killing.survivor.url + CHAT, {**STORY, "return_token_ids": True}) as s:
        alone = [json.loads(line[6:]) for line in lines_of(s) if line.startswith("data: {")]
    ids = [
        id for event in alone for choice in event["choices"] for id in choice.get("token_ids", ())
    ]
    prompt = alone[0]["prompt_token_ids"] + ids[:kept]
    left = NUM_TOKENS - kept
    body = {"model": MODEL, "prompt": prompt, "max_tokens": left, "temperature": 0}
    rest = client.post(killing.survivor.url + COMPLETION, {**body, "ignore_eos": True}).json

    assert text_of(killing.lines) == before + rest["choices"][0]["text"]
    usage, right = json.loads(killing.lines[-2][6:])["usage"], alone[-1]["usage"]
    assert usage["completion_tokens"] == right["completion_tokens"] == NUM_TOKENS
    assert usage["prompt_tokens"] == right["prompt_tokens"]
    assert killing.lines[-1] == "data: [DONE]"


@pytest.fixture(scope="module")
def killing(gateway: str, engines: Sequence[RealEngine]) -> Killing:
    for engine in engines:
        ask_directly(gateway, engine, HELD_BEFORE)
    with two_streams(gateway) as (stream, stays):
        victim, survivor = victim_first(engines, stream)
        lines = [stream.readline() for _ in range(8)]
        victim.kill()
        next_answer = send(gateway, Request("next", CHAT, ALONE))
        return Killing(victim, survivor, lines_of([*lines, *stream]), lines_of(stays), next_answer)


@contextmanager
def two_streams(gateway: str) -> Iterator[tuple[HTTPResponse, HTTPResponse]]:
    """Of the same engine: one that another can go on with, and one that ends with it."""
    with client.open_stream(gateway + CHAT, STORY) as stream:
        name = stream.headers["x-inferway-engine"]
        while True:
            with client.open_stream(gateway + CHAT, STAYS) as stays:
                if stays.headers["x-inferway-engine"] == name:
                    yield stream, stays
                    return


def victim_first(
    engines: Sequence[RealEngine], stream: HTTPResponse
) -> tuple[RealEngine, RealEngine]:
    name = stream.headers["x-inferway-engine"]
    victim, survivor = sorted(engines, key=lambda engine: engine.name != name)
    return victim, survivor


@pytest.fixture(scope="module")
def restarted(killing: Killing, gateway: str, say: Say) -> RealEngine:
    """The victim, under its old name, and the gateway has noticed."""
    killing.victim.start()
    wait_until_ready([killing.victim], say)
    wait_until(
        lambda: killing.victim.name in scores(gateway, HELD_BEFORE),
        "the gateway routes to the engine again",
    )
    return killing.victim


def test_the_client_had_got_a_part_of_the_answer(killing: Killing) -> None:
    first = json.loads(killing.lines[1].removeprefix("data: "))

    assert first["choices"][0]["delta"]["content"]


def test_the_other_engine_goes_on_with_the_answer(killing: Killing) -> None:
    check_that_the_other_one_went_on(killing)


def test_where_it_cannot_the_client_gets_an_error_event_and_then_nothing(killing: Killing) -> None:
    error = json.loads(killing.stays[-1].removeprefix("data: "))["error"]

    assert error["type"] == "server_error"
    assert killing.victim.name in error["message"]
    assert "data: [DONE]" not in killing.stays


def test_the_next_request_goes_to_the_other_engine(killing: Killing) -> None:
    assert engine_of(killing.next_answer) == killing.survivor.name


def test_all_requests_go_to_the_other_engine(killing: Killing, gateway: str) -> None:
    answers = [send(gateway, Request("more", CHAT, ALONE)) for _ in range(4)]

    assert {engine_of(answer) for answer in answers} == {killing.survivor.name}


def test_the_gateway_tells_which_engine_is_gone(killing: Killing, gateway: str) -> None:
    report = client.get(f"{gateway}/ready")
    healthy = {engine["engine"]: engine["healthy"] for engine in report.json["engines"]}

    assert report.status == 200
    assert healthy == {killing.victim.name: False, killing.survivor.name: True}


def test_an_engine_that_comes_back_is_believed_to_hold_nothing(
    restarted: RealEngine, killing: Killing, gateway: str
) -> None:
    wait_until_believed(gateway, HELD_BEFORE, restarted.name, 0)

    assert scores(gateway, HELD_BEFORE)[killing.survivor.name] == 3


def test_an_engine_that_comes_back_is_listened_to_again(
    restarted: RealEngine, gateway: str
) -> None:
    told = ask_directly(gateway, restarted, HELD_BEFORE)

    assert told.cached_tokens == 0
    assert scores(gateway, HELD_BEFORE)[restarted.name] == 3


@pytest.fixture(scope="module")
def core_killed(restarted: RealEngine, killing: Killing, gateway: str) -> Killing:
    """Only the process that computes dies, of either engine."""
    for engine in (restarted, killing.survivor):
        ask_directly(gateway, engine, HELD_BEFORE)
    with two_streams(gateway) as (stream, stays):
        victim, survivor = victim_first((restarted, killing.survivor), stream)
        lines = [stream.readline() for _ in range(8)]
        victim.kill_core()
        lost = lines_of(stays)
        went_on = lines_of([*lines, *stream])
    next_answer = wait_until(lambda: answered(gateway), "a request is answered")
    return Killing(victim, survivor, went_on, lost, next_answer)


def answered(gateway: str) -> Answer | None:
    """vLLM's server says 500 for the third of a second that it outlives its core, and the
    gateway hands that on: the request may be to blame."""
    answer = client.post(gateway + CHAT, {**ALONE, "max_tokens": 1})
    return answer if answer.status == 200 else None


def test_the_other_engine_goes_on_where_only_a_core_was_killed(core_killed: Killing) -> None:
    check_that_the_other_one_went_on(core_killed)


def test_where_it_cannot_the_client_gets_the_error_event_of_the_engine(
    core_killed: Killing,
) -> None:
    errors = [line for line in core_killed.stays if line.startswith('data: {"error"')]

    assert len(errors) == 1
    assert json.loads(errors[0].removeprefix("data: "))["error"]["code"] == 500


def test_soon_requests_are_answered_though_a_core_was_killed(core_killed: Killing) -> None:
    assert engine_of(core_killed.next_answer) == core_killed.survivor.name
