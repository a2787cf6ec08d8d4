"""An engine is killed in the middle of an answer, and comes back.

These tests leave an engine dead behind them, so conftest.py puts them last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.engines import client
from tests.engines.chats import CHAT, Request, completion, user
from tests.engines.client import Answer
from tests.engines.conftest import Say
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.gateway import ask_directly, engine_of, scores, send, wait_until_believed
from tests.engines.waiting import wait_until

HELD_BEFORE = completion("held by both before", list(range(20_000, 20_000 + 3 * BLOCK_SIZE)))
STORY = {
    "model": MODEL,
    "messages": [user("Tell me a long story about a lighthouse.")],
    "max_tokens": 2000,
    "ignore_eos": True,
    "stream": True,
}


@dataclass(frozen=True)
class Killing:
    victim: RealEngine
    survivor: RealEngine
    lines: list[str]  # of the broken stream, all that came, without empty ones
    next_answer: Answer


@pytest.fixture(scope="module")
def killing(gateway: str, engines: Sequence[RealEngine]) -> Killing:
    for engine in engines:
        ask_directly(gateway, engine, HELD_BEFORE)
    with client.open_stream(gateway + CHAT, STORY) as stream:
        name = stream.headers["x-inferway-engine"]
        victim, survivor = sorted(engines, key=lambda engine: engine.name != name)
        lines = [stream.readline().decode() for _ in range(8)]
        victim.kill()
        next_answer = send(gateway, Request("next", CHAT, {**STORY, "stream": False}))
        lines += [line.decode() for line in stream]
    return Killing(victim, survivor, [line.strip() for line in lines if line.strip()], next_answer)


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


def test_the_client_gets_an_error_event_and_then_nothing(killing: Killing) -> None:
    error = json.loads(killing.lines[-1].removeprefix("data: "))["error"]

    assert error["type"] == "server_error"
    assert killing.victim.name in error["message"]
    assert "data: [DONE]" not in killing.lines


def test_the_next_request_goes_to_the_other_engine(killing: Killing) -> None:
    assert engine_of(killing.next_answer) == killing.survivor.name


def test_all_requests_go_to_the_other_engine(killing: Killing, gateway: str) -> None:
    answers = [send(gateway, Request("more", CHAT, {**STORY, "stream": False})) for _ in range(4)]

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
    with client.open_stream(gateway + CHAT, STORY) as stream:
        name = stream.headers["x-inferway-engine"]
        victim, survivor = sorted((restarted, killing.survivor), key=lambda e: e.name != name)
        lines = [stream.readline().decode() for _ in range(8)]
        victim.kill_core()
        lines += [line.decode() for line in stream]
    next_answer = wait_until(lambda: answered(gateway), "a request is answered")
    return Killing(victim, survivor, [line.strip() for line in lines if line.strip()], next_answer)


def answered(gateway: str) -> Answer | None:
    """vLLM's server says 500 for the third of a second that it outlives its core, and the
    gateway hands that on: the request may be to blame."""
    answer = client.post(gateway + CHAT, {**STORY, "stream": False, "max_tokens": 1})
    return answer if answer.status == 200 else None


def test_the_client_gets_the_error_event_of_an_engine_whose_core_is_killed(
    core_killed: Killing,
) -> None:
    errors = [line for line in core_killed.lines if line.startswith('data: {"error"')]

    assert len(errors) == 1
    assert json.loads(errors[0].removeprefix("data: "))["error"]["code"] == 500


def test_soon_requests_are_answered_though_a_core_was_killed(core_killed: Killing) -> None:
    assert engine_of(core_killed.next_answer) == core_killed.survivor.name
