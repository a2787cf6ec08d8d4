"""`inferway bench peers`: ours and others in front of one fleet, with the same chats.

Only the router that is measured runs, so that nobody pays for another's scraping or events. Each
seed starts every router anew, warms it up with chats of another seed, and then measures all loads;
the caches are emptied before each. Who comes first changes from seed to seed. Every router gets the
same requests of a seed, so seeds are pairs: what is said of a difference is the mean over them,
with a bootstrap interval over them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec

from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.peers.fleets import Cell, RouterTrials, real_engines, started
from inferway_bench.peers.plan import REAL, SIMULATED, Scenario
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import OnStep
from inferway_bench.routers import (
    NOT_MEASURED,
    OnlyFlag,
    PeersFlag,
    Router,
    all_routers,
    chosen,
    versions,
)
from inferway_bench.rows import Column, Findings, Key, Row, Run, Table, Value, table_lines
from inferway_bench.spread import Interval, mean_interval

OURS, PLAIN = "inferway serve", "inferway serve --no-scoring"
_GLANCE_LOAD = 0.75
_COMPARED = ("ttft_ms", "p90_ms", "cached", "cpu_ms")


class PeersPlan(msgspec.Struct, frozen=True):
    """Loads are shares of the rate at which round-robin's mean TTFT doubles."""

    # fmt: off
    real: Annotated[bool, flag(
        "Run real vLLM on the CPU behind the routers, that of the virtual environment"
        " $INFERWAY_VLLM_VENV, instead of simulated engines.",
    )] = False
    layers: Annotated[int | None, flag(
        "Give real engines N layers of SmolLM2's shape and weights that mean nothing, where the CPU"
        " is slow; by default the model has all 30.", metavar="N", ge=1, le=30,
    )] = None
    only: OnlyFlag = ()
    peers: PeersFlag = True
    seeds: Annotated[int, flag("Measure each load with this number of seeds.", ge=1)] = 5
    loads: Annotated[tuple[float, ...], flag(
        "Send requests at this share of the rate at which round-robin's mean TTFT doubles.",
        name="--load", metavar="SHARE", gt=0,
    )] = (0.5, 0.75, 0.9)
    rate: Annotated[float | None, flag(
        "Take this number of requests a second as the rate at which round-robin's mean TTFT"
        " doubles; it was found to be 25, and 3.44 with --real --layers 2.", gt=0,
    )] = None
    # fmt: on

    @property
    def scenario(self) -> Scenario:
        """The engines and chats that the plan asks for."""
        if not self.real:
            return SIMULATED
        return msgspec.structs.replace(REAL, engines=real_engines(self.layers))


def measure(plan: PeersPlan, on_step: OnStep) -> Findings:
    """Measure the routers that the plan wants. Raises BenchError when something cannot be started,
    or a load is not answered at all."""
    policies = ("round_robin", "cache_aware", "consistent_hash", "kv_aware")
    peers = [*(f"vllm-router {policy}" for policy in policies), "smg cache_aware", "ai-dynamo kv"]
    routers = all_routers(peers, plan.peers, on_step)
    return measure_routers(plan.scenario, plan, chosen(routers, plan.only), on_step)


def measure_routers(
    scenario: Scenario, plan: PeersPlan, routers: Sequence[Router], on_step: OnStep
) -> Findings:
    """Measure `routers` in front of the scenario's engines. Raises BenchError as `measure` does."""
    rate = plan.rate or scenario.rate
    with (
        TemporaryDirectory(prefix="inferway-peers-") as name,
        started(scenario.engines, Path(name), on_step) as fleet,
    ):
        trials = RouterTrials(scenario, fleet, Path(name), on_step)
        trials.measure(routers, plan.seeds, plan.loads, rate)
    return Findings(
        rows=rows_of(trials.cells, rate),
        about=[
            scenario.about,
            f"Loads are shares of {rate:.3g} requests/s, at which round-robin's mean TTFT is twice "
            f"that of an idle fleet. Routers: {versions(routers)}. TTFT counts from the time at "
            "which a request was due; intervals are 95 % bootstrap intervals over seeds. Load "
            f"average after the run {os.getloadavg()[0]:.2f}.",
        ],
        facts={"rate": rate, "requests": scenario.chats.requests},
        notes={
            "load": [*(f"{name}: {did}" for name, did in trials.evidence.items()), *NOT_MEASURED]
        },
        seeds=list(range(plan.seeds)),
    )


def rows_of(cells: Iterable[Cell], rate: float) -> list[Row]:
    """Return a row for each load and router, ours first, with a value for each seed, and one for
    each difference of ours to another router, seed by seed."""
    groups: dict[tuple[float, str], dict[int, Cell]] = {}
    for cell in sorted(cells, key=lambda c: (c.load, c.router != OURS, not c.is_ours, c.router)):
        groups.setdefault((cell.load, cell.router), {})[cell.seed] = cell
    loads, differences = [], []
    for (load, router), theirs in groups.items():
        keys: dict[str, Key] = {"load": load, "rate": round(load * rate, 3), "router": router}
        group = [theirs[seed] for seed in sorted(theirs)]
        values: dict[str, Value] = {
            name: [cell.figures[name] for cell in group] for name in group[0].figures
        }
        values["seed"] = [float(cell.seed) for cell in group]
        loads.append(Row("load", keys, values, group[0].is_ours))
        ours = groups.get((load, OURS), {})
        pairs = [(ours[seed].figures, theirs[seed].figures) for seed in theirs if seed in ours]
        if router != OURS and pairs:
            less: dict[str, Value] = {
                name: [mine[name] - other[name] for mine, other in pairs] for name in _COMPARED
            }
            differences.append(Row("less", keys, less, is_ours=False))
    return [*loads, *differences]


def _mean(row: Row, column: str) -> float:
    return fmean(row.repeats(column))


def _interval(row: Row, column: str) -> Interval:
    return mean_interval(row.repeats(column))


def _loads(run: Run) -> Iterator[tuple[float, Row, list[tuple[Row, Row]]]]:
    """Each load at which ours was measured, its row, and those of each other router: its own, and
    that of ours minus it."""
    for load in run.distinct("load", "load"):
        ours = run.find("load", load=load, router=OURS)
        less = {row.keys["router"]: row for row in run.select("less", load=load)}
        others = run.select("load", load=load)
        pairs = [(row, less[name]) for row in others if (name := row.keys["router"]) in less]
        if ours is not None:
            yield float(load), ours, pairs


def losses(run: Run) -> list[str]:
    """Name the routers that answer sooner, or cost less CPU, beyond the noise."""
    found = []
    for load, ours, pairs in _loads(run):
        cheaper = []
        for row, less in pairs:
            later, router = _interval(less, "ttft_ms"), row.keys["router"]
            if later.low > 0:
                ms = later.shown("{:,.0f}")
                found.append(f"at {load:.0%} first tokens come {ms} ms later than with {router}")
            if _interval(less, "cpu_ms").low > 0:
                cheaper.append(f"{_mean(row, 'cpu_ms'):.1f} in {router}")
        if cheaper:
            cpu = f"{_mean(ours, 'cpu_ms'):.1f} ms of CPU time in {OURS}"
            found.append(f"at {load:.0%} a request takes {cpu}, {', '.join(cheaper)}")
    return found


def glance(run: Run) -> str:
    """Return ours beside the routers of others at one load: what a reader who has a minute
    wants."""
    rows = [row for row in run.select("load", load=_GLANCE_LOAD) if row.keys["router"] != PLAIN]
    lines = [
        [
            f"**{row.keys['router']}**" if row.is_ours else str(row.keys["router"]),
            f"{_mean(row, 'ttft_ms'):,.0f} ms",
            f"{_mean(row, 'p90_ms'):,.0f} ms",
            f"{_mean(row, 'cached'):.0f}%",
        ]
        for row in sorted(rows, key=lambda row: _mean(row, "ttft_ms"))
    ]
    head = ("router", "first token, mean", "90 % within", "prompt tokens from a cache")
    about = (
        f"{len(run.seeds)} seeds, {run.facts['requests']} requests each, "
        f"{_GLANCE_LOAD * float(run.facts['rate']):.1f} requests/s; measured "
        f"{run.machine.date[:10]}, commit {run.machine.commit[:8]}."
    )
    return "\n".join([*table_lines(head, lines), "", about]) + "\n"


_MS = "{:,.0f}"
_STYLES: dict[str, dict[str, Any]] = {
    OURS: {"color": "#cc3311", "linewidth": 2.4, "zorder": 5},
    PLAIN: {"color": "#cc3311", "linestyle": "--"},
}


def _plot(column: str, label: str) -> Plot:
    return Plot(
        "load", [column], "rate", "router", x_label="requests per second", y_label=label,
        mean=True, styles=_STYLES,
    )  # fmt: skip


PEERS = Benchmark(
    "peers",
    "Compare Inferway with other routers from PyPI, in front of one fleet and with the same chats.",
    PeersPlan,
    measure,
    [
        Table(
            "load",
            "{load:.0%}, {rate:.3g} requests/s: TTFT (mean with its interval, and percentiles) and "
            "ITL in ms; the router's CPU time for each request and its memory",
            ["router"],
            [
                Column("ttft_ms", "TTFT", _MS, "mean"),
                Column("p50_ms", "p50", _MS, "mean alone"),
                Column("p90_ms", "p90", _MS, "mean alone"),
                Column("p99_ms", "p99", _MS, "mean alone"),
                Column("itl_ms", "ITL", shown="mean alone"),
                Column("cached", "cached, %", "{:.1f}", "mean"),
                Column("per_second", "answers/s", "{:.2f}", "mean alone"),
                Column("cpu_ms", "CPU, ms", "{:.2f}", "mean alone"),
                Column("mib", "MiB", _MS, "most"),
                Column("errors", form=_MS, shown="sum"),
            ],
            split=["load", "rate"],
        ),
        Table(
            "less",
            f"`{OURS}` minus each other router at {{load:.0%}}, paired by seed, TTFT in ms",
            ["router"],
            [
                Column("ttft_ms", "mean TTFT", "{:+,.0f}", "mean"),
                Column("p90_ms", "p90", "{:+,.0f}", "mean"),
                Column("cached", "cached, points", "{:+.1f}", "mean"),
            ],
            split=["load"],
        ),
    ],
    chart=Chart(
        "Routers in front of one fleet",
        [
            _plot("ttft_ms", "mean time to first token, ms"),
            _plot("p90_ms", "time to first token, p90, ms"),
            _plot("cached", "prompt tokens from a cache, %"),
        ],
    ),
    quick={"loads": (0.75,), "seeds": 1},
    losses=losses,
    glance=glance,
    question="how the choice of router changes time to first token, cached tokens and CPU time: "
    "Inferway and routers from PyPI in front of simulated engines",
    takes="an hour",
    run_name=lambda plan: "peers --real" if plan.real else "peers",
)  # fmt: skip
peers = PEERS.command()
PEERS_REAL = replace(
    PEERS,
    name="peers --real",
    glance=None,
    question="how the choice of router changes time to first token, cached tokens and CPU time in "
    "front of real vLLM engines on the CPU",
    takes="100 minutes with `--layers 2`",
)
