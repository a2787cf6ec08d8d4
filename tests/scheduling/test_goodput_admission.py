"""Which endpoints can begin another prompt soon, and how long requests can wait."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.model import Candidates, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS
from inferway.scheduling.expected_ttft.learning import OWN, PAIRS, TERMS_MS
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.goodput_admission import (
    GoodputAdmission,
    GoodputAdmissionParameters,
)
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.plugin import RequestListener


class World:
    """Two endpoints, and what is sent to them."""

    def __init__(self, **parameters: float) -> None:
        self.expected = ExpectedTtft()
        self.admission = GoodputAdmission(GoodputAdmissionParameters(**parameters), self.expected)
        self.table = candidates(2)

    def at(self, now: float) -> Candidates:
        self.table.added = {}
        self.table.now = now
        return self.table

    def send(
        self, asked: LLMRequest, row: int = 0, now: float = 0.0, tpot: float | None = None
    ) -> list[RequestListener]:
        """Send a request to an endpoint; return those that follow it."""
        table = self.at(now)
        self.expected.produce(asked, table)
        if tpot is not None:
            table.add(EXPECTED_TPOT_MS, np.full(2, tpot))
        target = Target(table.endpoints[row], 1.0, 0, 0)
        choice = SchedulingResult((target,))
        followers = [each.follow(asked, table, choice) for each in (self.expected, self.admission)]
        found = [each for each in followers if each is not None]
        for each in found:
            each.on_attempt(target, now)
        return found

    def is_open(self, now: float) -> list[bool]:
        found: list[bool] = self.admission.is_open(self.at(now)).tolist()
        return found


STREAM = CompletionRequest(model="m", prompt="", stream=True)
LONG = request(tokens=10_000, body=STREAM)  # 1,000 ms at the usual costs, and what its pairs take


def test_an_endpoint_is_closed_until_the_rest_of_its_prompts_is_short() -> None:
    world = World(engine_wait_ms=300.0)
    assert world.is_open(0.0) == [True, True]

    followers = world.send(LONG)

    assert world.is_open(0.0) == [False, True]
    assert world.is_open(0.9) == [True, True]
    for each in followers:
        each.on_first_chunk(0.5)
    assert world.is_open(0.5) == [True, True]


@pytest.mark.parametrize(
    ("asked", "limit"), [(LONG, 2_000.0), (request(tokens=10_000, ttft_ms=5_000.0), 5_000.0)]
)
def test_a_request_can_wait_for_its_limit_less_what_its_prompt_takes(
    asked: LLMRequest, limit: float
) -> None:
    world = World()
    table = world.at(0.0)
    table.weighted_matched_blocks[1] = table.matched_blocks[1] = 600  # of 16 tokens
    world.expected.produce(asked, table)

    terms = table.get(TERMS_MS)
    assert terms is not None
    own = terms[1].sum()  # nothing waits there

    assert world.admission.spare_seconds(asked, table) == pytest.approx((limit - own) / 1_000)
    assert own < 100.0


def test_a_request_whose_cost_nobody_has_worked_out_can_wait_for_its_limit() -> None:
    assert World().admission.spare_seconds(LONG, candidates(2)) == 2.0


def test_an_endpoint_that_writes_slowly_stays_closed_until_its_answers_have_caught_up() -> None:
    world = World(itl_ms=100.0, engine_wait_ms=1.0)
    world.table.in_flight[:] = 4

    followers = world.send(LONG, tpot=60.0)
    table = world.at(0.0)
    world.expected.produce(LONG, table)
    terms = table.get(TERMS_MS)
    assert terms is not None
    prompt = (terms[1, OWN] + terms[1, PAIRS]) / 1_000
    for each in followers:
        each.on_first_chunk(prompt)

    closed = prompt / (1 - 60 / 80)  # they are to take 80 ms, and take 60 with nothing between
    assert world.is_open(closed - 0.01) == [False, True]
    assert world.is_open(closed + 0.01) == [True, True]


def test_prompts_that_were_computed_of_late_are_why_answers_are_slow() -> None:
    closed = []
    for sent_before in (0, 1):
        world = World(itl_ms=100.0, engine_wait_ms=1.0)
        world.table.in_flight[:] = 4
        for number in range(sent_before + 1):
            followers = world.send(LONG, now=20.0 * number, tpot=60.0)
            for each in followers:
                each.on_first_chunk(20.0 * number)
        steps = range(10_000)
        last = 20.0 * sent_before
        closed.append(next(n for n in steps if world.is_open(last + n / 1_000)[0]))

    assert closed[1] < closed[0]


@pytest.mark.parametrize(
    ("parameters", "in_flight", "tpot"),
    [
        ({}, 4, 90.0),  # no limit between tokens
        ({"itl_ms": 100.0}, 0, 90.0),  # no answer is written
        ({"itl_ms": 100.0}, 4, 49.0),  # answers are fast
    ],
)
def test_an_endpoint_is_open_behind_a_prompt_that_holds_up_no_answer_for_long(
    parameters: dict[str, float], in_flight: int, tpot: float
) -> None:
    world = World(engine_wait_ms=1.0, **parameters)
    world.table.in_flight[:] = in_flight

    followers = world.send(LONG, tpot=tpot)
    for each in followers:
        each.on_first_chunk(0.8)

    assert world.is_open(1.3) == [True, True]  # the prompt takes less than that


def test_answers_that_are_slow_by_themselves_do_not_close_an_endpoint_for_ever() -> None:
    world = World(itl_ms=50.0, engine_wait_ms=1.0)
    world.table.in_flight[:] = 4

    for each in world.send(LONG, tpot=500.0):
        each.on_first_chunk(1.0)

    assert world.is_open(9.0) == [False, True]
    assert world.is_open(15.0) == [True, True]


def test_the_plugin_asks_for_expected_ttft_by_itself() -> None:
    scheduling = load_scheduling({"plugins": [{"type": "goodput-admission"}]})

    assert isinstance(scheduling.in_time, GoodputAdmission)
    assert any(isinstance(each, ExpectedTtft) for each in scheduling.producers)


def test_two_that_expect_are_one_too_many() -> None:
    plugins = [
        {"type": "expected-ttft", "name": "a"},
        {"type": "expected-ttft", "name": "b"},
        {"type": "goodput-admission"},
    ]

    with pytest.raises(ConfigError, match=r"goodput-admission: .*one plugin of type expected-ttft"):
        load_scheduling({"plugins": plugins})
