"""Samples -> rows -> what is said of routers."""

from __future__ import annotations

import pytest
from bench.tests.runs import a_run

from inferway_bench.loading.answers import Sample
from inferway_bench.peers.benchmark import (
    OURS,
    PEERS,
    PeersPlan,
    losses,
    rows_of,
)
from inferway_bench.peers.fleets import Cell, figures
from inferway_bench.rows import Findings, Run


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
    )


def cell(router: str, seed: int, ttft: float, share: float, cpu_ms: float = 2.0) -> Cell:
    found = figures(1, [sample(0.0, ttft, cached=round(100 * share))])
    costs = {"cpu_ms": cpu_ms, "mib": 100.0}
    return Cell(router, 0.75, seed, router == OURS, {**found, **costs})


def cells(ours: list[float], theirs: list[float], shares: tuple[float, float]) -> list[Cell]:
    mine = [cell(OURS, seed, ttft, shares[0]) for seed, ttft in enumerate(ours)]
    return mine + [cell("peer x", seed, ttft, shares[1]) for seed, ttft in enumerate(theirs)]


def found_of(cells: list[Cell], rate: float = 4.0) -> Findings:
    return Findings(
        rows=rows_of(cells, rate),
        about=[PeersPlan().scenario.about, "Loads are shares of 4.", "seeds and when"],
        facts={"rate": rate},
        notes={"load": [f"{OURS}: looked at tokens"]},
        seeds=sorted({cell.seed for cell in cells}),
    )


def run_of(ours: list[float], theirs: list[float], shares: tuple[float, float]) -> Run:
    return a_run("peers", found_of(cells(ours, theirs, shares)))


def test_figures_count_from_the_intended_time_and_leave_failures_out() -> None:
    samples = [sample(0.0, 1.0), sample(1.0, 3.0, cached=100), sample(2.0, 9.0, error="cut")]

    found = figures(5, samples)

    assert (found["ttft_ms"], found["p50_ms"]) == (2000.0, 2000.0)
    assert found["itl_ms"] == pytest.approx(100)
    assert found["cached"] == 75
    assert found["errors"] == 3
    assert found["per_second"] == pytest.approx(2 / 4.3, abs=0.001)


def test_seeds_are_pairs() -> None:
    row = run_of([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], (0.5, 0.5)).find("less", router="peer x")
    assert row is not None

    assert row.repeats("ttft_ms") == [-500.0, -500.0, -500.0]


def test_the_report_names_each_router_and_load() -> None:
    text = PEERS.markdown(run_of([1.0, 2.0, 3.0], [1.5, 2.5, 3.5], (0.5, 0.5)))

    assert "| peer x | 2,500 (1,500 to 3,500) |" in text
    assert "75%, 3 requests/s" in text
    assert "| peer x | -500 (-500 to -500) |" in text
    assert "- inferway serve: looked at tokens" in text


def test_who_answers_sooner_beyond_the_noise_is_a_loss() -> None:
    assert losses(run_of([1.0, 2.0], [1.5, 2.5], (0.5, 0.5))) == []
    assert losses(run_of([1.5, 2.5], [1.0, 2.0], (0.5, 0.5))) == [
        "at 75% first tokens come 500 (500 to 500) ms later than with peer x"
    ]


def test_who_costs_less_cpu_is_named_in_one_line_a_load() -> None:
    found = cells([1.0, 2.0], [1.5, 2.5], (0.5, 0.5))
    found = [one._replace(figures={**one.figures, "cpu_ms": 3.0}) if one.is_ours else one
             for one in found]  # fmt: skip
    found += [one._replace(router="peer y") for one in found if not one.is_ours]

    assert losses(a_run("peers", found_of(found))) == [
        "at 75% a request takes 3.0 ms of CPU time in inferway serve, 2.0 in peer x, 2.0 in peer y"
    ]


def test_real_engines_have_results_of_their_own() -> None:
    assert PEERS.run_name is not None
    assert PEERS.run_name(PeersPlan(real=True)) == "peers --real"
    assert PeersPlan(real=True, layers=2).scenario.about.startswith("2 engines of vLLM")
