"""A miniature of `inferway bench route`: the real gateway, the real load, one second each."""

from __future__ import annotations

import pytest

from inferway.prompts.prepare import prepare_smollm2
from inferway_bench.route import Plan, run_route
from inferway_bench.route_results import Measurement, RouteRun
from inferway_bench.routers import Inferway

pytestmark = pytest.mark.tools

MINIATURE = Plan(repeats=1, seconds=1, warm_up_seconds=0, connections=2, part_repeats=5)


@pytest.fixture(scope="module")
def run() -> RouteRun:
    return run_route([Inferway(scoring=True)], prepare_smollm2(), MINIATURE, print)


@pytest.fixture(scope="module")
def long(run: RouteRun) -> Measurement:
    [measurement] = [m for m in run.measurements if m.case == "8k-token chat"]
    return measurement


def test_each_load_is_measured(run: RouteRun) -> None:
    assert [m.case for m in run.measurements] == list(run.bodies)
    assert all(cpu > 0 for m in run.measurements for cpu in m.cpu_us)


def test_long_chats_match_what_the_engines_published(long: Measurement) -> None:
    share = float(long.note.partition("process; ")[2].partition("%")[0])

    assert share > 95


def test_the_steps_are_timed_on_prompts_of_8000_tokens(run: RouteRun) -> None:
    parts = {part.name: part for part in run.parts}

    assert set(parts) >= {"parse", "render", "tokenize", "keys", "match"}
    assert parts["tokenize"].note.startswith(("7,9", "8,0"))
