"""The engine that computes prompts for another one is killed while it has requests in each phase,
and comes back. Nobody gets an error, or another answer than one engine alone gives."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from tests.engines import client
from tests.engines.chats import COMPLETION
from tests.engines.client import Answer
from tests.engines.conftest import Say
from tests.engines.engine import wait_until_ready
from tests.engines.killed_prefill import TOLERANCE, body_of
from tests.engines.legs import counted, in_flight, log_probabilities, outcomes
from tests.engines.nixl import NixlEngine
from tests.engines.waiting import wait_until

Pair = tuple[NixlEngine, NixlEngine]

STORY = {**body_of(1, "story"), "max_tokens": 300, "ignore_eos": True, "stream": True}
BETWEEN = [body_of(number, "between") for number in (2, 3)]  # whole, and streamed
IN_LEG_1 = [body_of(number, "in leg 1") for number in (4, 5)]
WHILE_IT_IS_DEAD = [body_of(number, "dead") for number in (6, 7)]

Told = list[float]


@dataclass(frozen=True)
class Killing:
    """The log-probabilities of answers."""

    story: Told  # half of it came before
    between: list[Told]
    in_leg_1: list[Told]
    while_it_was_dead: list[Told]


def ask(url: str, body: object) -> Told:
    answer = client.post(url + COMPLETION, body)
    assert answer.status == 200
    assert b'"error"' not in answer.raw
    return log_probabilities(COMPLETION, answer)


@pytest.fixture(scope="module")
def killing(nixl_engines: Pair, two_legs: str) -> Killing:
    prefill, decode = nixl_engines
    done = counted(two_legs, "prefill", "ok")
    with ThreadPoolExecutor(4) as pool, client.open_stream(two_legs + COMPLETION, STORY) as stream:

        def submit(bodies: Sequence[object]) -> list[Future[Told]]:
            return [pool.submit(ask, two_legs, body) for body in bodies]

        lines = [stream.readline() for _ in range(8)]
        with decode.core_stopped():
            between = submit(BETWEEN)
            wait_until(
                lambda: counted(two_legs, "prefill", "ok") >= done + 3,
                "legs 1 are over",
                lambda: outcomes(two_legs),
            )
            with prefill.core_stopped():
                in_leg_1 = submit(IN_LEG_1)
                wait_until(lambda: in_flight(two_legs, prefill) == 2, "legs 1 are sent")
                prefill.kill()
        lines += stream
        story = Answer(200, stream.headers, b"".join(lines))
        return Killing(
            log_probabilities(COMPLETION, story),
            [each.result() for each in between],
            [each.result() for each in in_leg_1],
            [each.result() for each in submit(WHILE_IT_IS_DEAD)],
        )


def alone(engine: NixlEngine, body: dict[str, object]) -> Told:
    return ask(engine.url, {**body, "cache_salt": "alone", "stream": False})


def test_a_stream_that_has_begun_goes_on(killing: Killing, nixl_engines: Pair) -> None:
    assert len(killing.story) == STORY["max_tokens"]
    assert killing.story == pytest.approx(alone(nixl_engines[1], STORY), abs=TOLERANCE)


@pytest.mark.parametrize("number", [0, 1])
def test_a_request_in_any_phase_is_answered_as_by_one_engine(
    killing: Killing, nixl_engines: Pair, number: int
) -> None:
    phases = (
        (killing.between, BETWEEN),
        (killing.in_leg_1, IN_LEG_1),
        (killing.while_it_was_dead, WHILE_IT_IS_DEAD),
    )
    for told, bodies in phases:
        right = alone(nixl_engines[1], bodies[number])
        assert told[number] == pytest.approx(right, abs=TOLERANCE), bodies[number]["cache_salt"]


def test_what_became_of_the_legs_is_counted(killing: Killing, two_legs: str) -> None:
    assert len(killing.between) == counted(two_legs, "decode", "recomputed")
    assert len(killing.in_leg_1) <= counted(two_legs, "prefill", "failed")


def test_legs_go_on_with_an_engine_that_comes_back(
    killing: Killing, nixl_engines: Pair, two_legs: str, say: Say
) -> None:
    del killing
    prefill, decode = nixl_engines
    prefill.start()
    wait_until_ready([prefill], say)
    prefill.use_all_cores()
    numbers = iter(range(8, 1000))

    def sent() -> tuple[dict[str, object], Answer] | None:
        body = {**body_of(next(numbers), "back"), "stream": False}
        answer = client.post(two_legs + COMPLETION, body)
        is_moved = answer.headers["x-inferway-prefill-engine"] == prefill.name
        return (body, answer) if is_moved else None

    body, answer = wait_until(sent, "the gateway has a prompt computed by the engine again")

    told = log_probabilities(COMPLETION, answer)
    assert told == pytest.approx(alone(decode, body), abs=TOLERANCE)
