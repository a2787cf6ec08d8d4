"""A miniature of `inferway bench peers`: two simulated engines, ours, and a peer that knows
nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from inferway_bench.loading.samples import Sample
from inferway_bench.peers.plan import REAL, Plan, SimulatedEngines
from inferway_bench.peers.report import PEERS
from inferway_bench.peers.results import OURS, PeersRun
from inferway_bench.peers.run import Kept, run_peers
from inferway_bench.peers.workload import ChatSpec
from inferway_bench.processes import BenchError, answers
from inferway_bench.routers import Counters, Inferway, Place

MINIATURE = Plan(
    SimulatedEngines(engines=2, prefill_us_per_token=50.0, inter_token_ms=1.0),
    ChatSpec(sessions=6, turns=3, systems=1, answer_tokens=3, apart=2),
    loads=(1.0,),
    seeds=1,
    warm_up_requests=4,
    rate=20.0,
)


@dataclass(frozen=True)
class RoundRobin:
    """The double of a peer."""

    label: str = "double round_robin"
    version: str = "1"
    engines_render: bool = False
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
def kept() -> list[Kept]:
    return []


@pytest.fixture(scope="module")
def run(kept: list[Kept]) -> PeersRun:
    double = RoundRobin()
    return run_peers(
        MINIATURE, [Inferway(scoring=True), double], double, None, lambda *_: None, kept.append
    )


def by_turn(kept: Kept) -> list[tuple[int, int, int | None]]:
    return sorted((s.session, s.turn, s.prompt_tokens) for s in kept.samples)


@pytest.mark.slow
def test_every_router_answers_all_that_is_asked(run: PeersRun) -> None:
    assert run.routers == [OURS, "double round_robin"]
    assert [(cell.requests, cell.errors) for cell in run.cells] == [(18, 0), (18, 0)]


@pytest.mark.slow
def test_who_knows_the_caches_finds_more_in_them(run: PeersRun) -> None:
    ours, theirs = (run.select(router, 1.0)[0].cached_share for router in run.routers)

    assert ours > theirs > 0


@pytest.mark.slow
def test_the_engines_answers_agree_with_what_the_gateway_matched(run: PeersRun) -> None:
    note = next(note.text for note in run.notes if note.router == OURS)
    matched = float(note.partition("process; ")[2].partition("%")[0])

    # what the gateway matches it is not told to reuse: the last token is always computed
    assert matched / 100 == pytest.approx(run.select(OURS, 1.0)[0].cached_share, abs=0.05)


@pytest.mark.slow
def test_all_routers_get_the_same_prompts(run: PeersRun, kept: list[Kept]) -> None:
    assert run.cells
    assert by_turn(kept[0]) == by_turn(kept[1])
    assert all(isinstance(sample, Sample) for sample in kept[0].samples)


@pytest.mark.slow
def test_what_a_router_costs_is_counted(run: PeersRun) -> None:
    ours = run.select(OURS, 1.0)[0]

    assert ours.cpu > 0
    assert ours.resident_mib > 10
    assert sum(ours.per_engine.values()) == 18


@pytest.mark.slow
def test_the_rate_is_looked_for_from_where_requests_hardly_meet() -> None:
    plan = msgspec.structs.replace(MINIATURE, rate=None, bisections=1, warm_up_requests=6)
    double = RoundRobin()

    run = run_peers(plan, [double], double, None, lambda *_: None, lambda _: None)

    seldom, *others = [searched.rate for searched in run.searched]
    alone = run.idle_ttft + 2 * run.select(double.label, 1.0)[0].itl  # an answer has three tokens
    assert seldom < 1 / alone
    assert run.doubling_rate > seldom
    assert others[0] == pytest.approx(2 * seldom, abs=0.002)
    text = PEERS.markdown(run)
    assert f"ms that it is at {seldom:.3g} requests/s" in text


def test_real_engines_without_a_command_name_the_cure(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(REAL, rate=1.0)

    with pytest.raises(BenchError, match="--vllm PATH"):
        run_peers(plan, [RoundRobin()], RoundRobin(), None, lambda *_: None, lambda _: None)
    with pytest.raises(BenchError, match="install_vllm"):
        run_peers(
            plan, [RoundRobin()], RoundRobin(), tmp_path / "no", lambda *_: None, lambda _: None
        )
