"""A miniature of `inferway bench peers`: two simulated engines, ours, and a peer that knows
nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.peers.benchmark import OURS, PeersPlan, measure_routers
from inferway_bench.peers.plan import REAL, ChatSpec, Scenario, SimulatedEngines
from inferway_bench.processes import BenchError, answers
from inferway_bench.routers import Counters, Inferway, Place, Router
from inferway_bench.rows import Row, Run

MINIATURE = Scenario(
    SimulatedEngines(engines=2, prefill_us_per_token=50.0, inter_token_ms=1.0),
    ChatSpec(sessions=12, turns=3, systems=1, answer_tokens=3, apart=2),
    warm_up_requests=4,
    rate=20.0,
)
PLAN = PeersPlan(loads=(1.0,), seeds=1)


@dataclass(frozen=True)
class RoundRobin:
    """The double of a peer."""

    label: str = "double round_robin"
    version: str = "1"
    is_ours: bool = False
    matches_events: bool = False

    def command(self, place: Place) -> list[str]:
        script = Path(__file__).with_name("round_robin.py")
        return [sys.executable, str(script), str(place.port), *(e.url for e in place.engines)]

    def is_ready(self, place: Place) -> bool:
        return answers(f"{place.url}/health")

    def matched_share(self, place: Place, body: bytes) -> float:  # noqa: ARG002
        return 0.0

    def counters(self, place: Place) -> Counters:  # noqa: ARG002
        return {}

    def evidence(self, counted: Counters) -> str:
        return f"{len(counted)} counters"


@pytest.fixture(scope="module")
def run() -> Run:
    routers: list[Router] = [Inferway(scoring=True), RoundRobin()]
    return a_run("peers", measure_routers(MINIATURE, PLAN, routers, unseen))


def row(run: Run, router: str) -> Row:
    found = run.find("load", router=router)
    assert found is not None
    return found


@pytest.mark.slow
def test_every_router_answers_all_that_is_asked(run: Run) -> None:
    assert run.distinct("load", "router") == [OURS, "double round_robin"]
    assert [row.repeats("errors") for row in run.select("load")] == [[0], [0]]


@pytest.mark.slow
def test_who_knows_the_caches_finds_more_in_them(run: Run) -> None:
    ours, theirs = (row.median("cached") for row in run.select("load"))

    assert ours > theirs > 0


@pytest.mark.slow
def test_the_engines_answers_agree_with_what_the_gateway_matched(run: Run) -> None:
    note = next(note for note in run.notes["load"] if note.startswith(OURS))
    matched = float(note.partition("process; ")[2].partition("%")[0])

    # what the gateway matches it is not told to reuse: the last token is always computed
    assert matched == pytest.approx(row(run, OURS).median("cached"), abs=5)


@pytest.mark.slow
def test_what_a_router_costs_is_counted(run: Run) -> None:
    assert row(run, OURS).median("cpu_ms") > 0
    assert row(run, OURS).median("mib") > 10


def test_real_engines_without_their_environment_name_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("INFERWAY_VLLM_VENV", raising=False)

    with pytest.raises(BenchError, match="INFERWAY_VLLM_VENV=/its/venv"):
        measure_routers(REAL, PLAN, [RoundRobin()], unseen)
