"""Samples -> cells -> what is said of routers."""

from __future__ import annotations

import msgspec
import pytest
from bench.tests.test_report import MACHINE

from inferway_bench.loading.samples import Sample
from inferway_bench.peers.plan import REAL
from inferway_bench.peers.report import PEERS_REAL, pictures
from inferway_bench.peers.results import (
    OURS,
    Cell,
    Note,
    PeersRun,
    Searched,
    Sitting,
    cell_of,
    joined,
)
from inferway_bench.peers.workload import ChatSpec
from inferway_bench.processes import BenchError
from inferway_bench.results import read_run, write_run

PLAN = msgspec.structs.replace(REAL, loads=(0.75,), seeds=3)


def sample(at: float, ttft: float, *, cached: int = 50, error: str | None = None) -> Sample:
    return Sample(
        session=0,
        turn=0,
        intended=at,
        sent=at + 0.1,
        first=at + ttft,
        last=at + ttft + 0.3,
        ended=at + ttft + 0.3,
        num_deltas=4,
        prompt_tokens=100,
        completion_tokens=4,
        cached_tokens=cached,
        error=error,
        headers={"x-inferway-engine": "a"},
    )


def cell(router: str, seed: int, ttft: float, share: float) -> Cell:
    samples = [sample(0.0, ttft, cached=round(100 * share))]
    return cell_of(router, 0.75, seed, 1, samples, 0.002, 100.0)


def run_of(ours: list[float], theirs: list[float], shares: tuple[float, float]) -> PeersRun:
    cells = [cell(OURS, seed, ttft, shares[0]) for seed, ttft in enumerate(ours)]
    cells += [cell("peer x", seed, ttft, shares[1]) for seed, ttft in enumerate(theirs)]
    notes = [Note(OURS, "looked at tokens")]
    sittings = [Sitting("2026-11-21 22:00", "abc", 0.1, 2.0, [0, 1, 2], [0.75])]
    searched = [Searched(1.0, 0.2), Searched(4.0, 0.4)]
    return PeersRun(MACHINE, "c", PLAN, {"peer": "1"}, 0.2, 4.0, searched, cells, notes, sittings)


def test_a_cell_counts_from_the_intended_time_and_leaves_failures_out() -> None:
    samples = [sample(0.0, 1.0), sample(1.0, 3.0, cached=100), sample(2.0, 9.0, error="cut")]

    found = cell_of("r", 0.5, 0, 5, samples, cpu_seconds=0.01, resident_mib=80.0)

    assert (found.ttft, found.ttft_p50) == (2.0, 2.0)
    assert found.itl == pytest.approx(0.1)
    assert found.cached_share == 0.75
    assert found.errors == 3
    assert found.cpu == pytest.approx(0.005)
    assert found.throughput == pytest.approx(2 / 4.3, abs=0.001)
    assert found.per_engine == {"a": 2}


def test_a_load_without_an_answer_is_no_cell() -> None:
    with pytest.raises(ValueError, match="no request was answered"):
        cell_of("r", 0.5, 0, 1, [sample(0.0, 1.0, error="connect")], 0.0, 0.0)


def test_seeds_are_pairs() -> None:
    run = run_of([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], (0.5, 0.5))

    less = run.difference(OURS, "peer x", 0.75, lambda one: one.ttft)

    assert (less.value, less.low, less.high) == pytest.approx((-0.5, -0.5, -0.5))


@pytest.mark.parametrize(
    ("ours", "share", "met"),
    [([1.0, 2.0, 3.0], 0.5, [True, True]), ([2.0, 2.5, 3.0], 0.3, [False, False])],
)
def test_goals_ask_for_the_best_cached_share_and_for_less_ttft_than_each(
    ours: list[float], share: float, met: list[bool]
) -> None:
    run = run_of(ours, [1.5, 2.5, 3.5], (share, 0.5))

    assert [goal.is_met for goal in run.goals()] == met


def test_a_run_is_read_as_it_was_written() -> None:
    run = run_of([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], (0.5, 0.5))

    assert read_run(write_run("peers --real", run), PeersRun) == run


def test_more_seeds_join_what_was_measured_before() -> None:
    before = run_of([1.0, 2.0], [1.5, 2.5], (0.5, 0.5))
    more = run_of([1.0, 2.0, 3.0], [1.5, 2.5, 5.0], (0.5, 0.5))

    whole = joined(before, more)

    assert whole.seeds == [0, 1, 2]
    assert len(whole.cells) == 6
    assert len(whole.sittings) == 2


def test_what_is_no_more_of_the_same_does_not_join() -> None:
    before = run_of([1.0], [1.5], (0.5, 0.5))
    plan = msgspec.structs.replace(PLAN, chats=ChatSpec(turns=9))

    with pytest.raises(BenchError, match="leave out --rate"):
        joined(before, msgspec.structs.replace(before, doubling_rate=5.0))
    with pytest.raises(BenchError, match="other chats"):
        joined(before, msgspec.structs.replace(before, plan=plan))


def test_the_report_names_each_router_load_and_goal() -> None:
    run = run_of([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], (0.5, 0.5))
    text, details = PEERS_REAL.markdown(run), PEERS_REAL.details

    assert "| peer x | 2,500 (1,500 to 3,500) |" in text
    assert "75%, 3 requests/s" in text
    assert "the 200 ms that it is at 1 requests/s" in text
    assert "| peer x | -500 (-500 to -500) |" in text
    assert details is not None
    goal = "mean TTFT at 75% minus that of peer x"
    assert f"| {goal} | < 0 | -500 (-500 to -500) ms | yes |" in details(run)
    assert PEERS_REAL.notes(run) == ["inferway serve: looked at tokens"]


def test_who_answers_sooner_beyond_the_noise_is_a_loss() -> None:
    assert run_of([1.0, 2.0], [1.5, 2.5], (0.5, 0.5)).losses() == []
    assert run_of([1.5, 2.5], [1.0, 2.0], (0.5, 0.5)).losses() == [
        "at 75% first tokens come 500 (500 to 500) ms later than with peer x"
    ]


def test_who_costs_less_cpu_is_named_in_one_line_a_load() -> None:
    run = run_of([1.0, 2.0], [1.5, 2.5], (0.5, 0.5))
    cells = [msgspec.structs.replace(c, cpu=0.003) if c.router == OURS else c for c in run.cells]
    cells += [msgspec.structs.replace(c, router="peer y") for c in run.cells if c.router != OURS]

    assert msgspec.structs.replace(run, cells=cells).losses() == [
        "at 75% a request takes 3.0 ms of CPU time in inferway serve, 2.0 in peer x, 2.0 in peer y"
    ]


def test_real_engines_have_results_and_pictures_of_their_own() -> None:
    run = run_of([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], (0.5, 0.5))

    assert PEERS_REAL.file == "peers_real"
    assert [picture.name for picture in pictures(run)] == ["peers_real"]
