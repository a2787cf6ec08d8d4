"""A run of `inferway bench simulate` as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from inferway_bench.plotting import DOTS, Line, Panel, Picture
from inferway_bench.policies.catalog import ENTRIES
from inferway_bench.policies.fleet_words import engines_line, lateness_line
from inferway_bench.policies.plot import STYLES
from inferway_bench.policies.results import Row, gateways_named
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.sheets import Sheet, goal_sheet, told_by
from inferway_bench.simulate.results import SimulateRun
from inferway_bench.spread import Interval, mean_interval

_HEAD = (
    *("policy", "TTFT", "p50", "p90", "p99", "token", "cached"),
    *("simulating, s", "a request, µs"),
)


def about(run: SimulateRun) -> list[str]:
    kept = [f"Kept from an earlier run: {run.kept}.", ""] if run.kept else []
    return [*kept, *(f"- {note}" for note in notes(run))]


def notes(run: SimulateRun) -> list[str]:
    fleet = run.plan.fleets[0]
    rate = f"{run.rows[0].rate:,.2f} requests a second"
    if run.plan.load is not None:
        rate += f", {run.plan.load:.0%} of the rate at which round-robin's mean TTFT doubles"
    return [
        f"{engines_line(fleet)}; caches of {fleet.engine.cache_tokens:,} tokens",
        lateness_line(fleet),
        *(["the rate grows in proportion to the number of engines"] if run.plan.sizes else []),
        f"{run.about}; blocks of {run.block_tokens} tokens",
        f"{run.requests:,} requests, {rate}; the figures are those of the second half of the "
        f"requests; the simulation took at most {run.memory_gib} GiB of memory",
        "the last two columns are the CPU time, on one core, of simulating the run and a request",
    ]


def sheets(run: SimulateRun) -> Iterator[Sheet]:
    for fleet in run.plan.fleets:
        title = (
            f"{_title(run, fleet)}; mean TTFT, its percentiles and the time for each further token "
            "in ms"
        )
        yield Sheet(title, _HEAD, list(_rows(run, fleet)))
    goals = run.goals()
    if goals:
        yield goal_sheet(goals)


def pictures(run: SimulateRun) -> list[Picture]:
    """What deciding costs, by policy; of several fleets what becomes of it as they grow."""
    if run.plan.sizes:
        title = f"{run.rows[0].workload}: the same load for each engine"
        return [Picture("simulate_engines", title, [_growing(run)], one_legend=True)]
    names = run.policies()
    places = [float(i) for i in range(len(names))]
    p90 = [fmean(row.ttft_p90 for row in run.select(name)) * 1e3 for name in names]
    cost = [
        fmean(row.cpu_seconds for row in run.select(name)) / run.requests * 1e6 for name in names
    ]
    panels = [
        Panel(
            "policy", "p90 TTFT, ms", [Line("p90 TTFT", places, p90, DOTS)], log_y=True, ticks=names
        ),
        Panel("policy", "simulating a request, µs", [Line("CPU", places, cost, DOTS)], ticks=names),
    ]
    return [Picture("simulate", _title(run, run.plan.fleet), [panels])]


def _growing(run: SimulateRun) -> list[Panel]:
    sizes = run.plan.sizes

    def lines(of: Callable[[Row], float]) -> list[Line]:
        return [
            Line(
                name,
                sizes,
                [mean_interval([of(row) for row in run.select(name, n)]) for n in sizes],
                STYLES.get(name, {}),
            )
            for name in run.policies()
        ]

    cached = lines(lambda row: row.cached_share * 100)
    p90 = lines(lambda row: row.ttft_p90 * 1e3)
    return [
        Panel("engines", "prompt tokens from a cache, %", cached, log_x=True),
        Panel("engines", "p90 TTFT, ms", p90, log_x=True, log_y=True),
    ]


def _title(run: SimulateRun, fleet: FleetSpec) -> str:
    slow = f", {fleet.num_slow} of them {fleet.slow_factor:g} × slower" if fleet.num_slow else ""
    gateways = gateways_named(fleet.num_gateways)
    return f"{run.rows[0].workload}, {fleet.num_engines:,} engines{slow}, {gateways}"


def _rows(run: SimulateRun, fleet: FleetSpec) -> Iterator[list[str]]:
    models = {entry.name for entry in ENTRIES if entry.is_model}
    for name in run.policies():
        rows = run.select(name, fleet.num_engines if run.plan.sizes else 0)
        seconds = fmean(row.cpu_seconds for row in rows)
        yield [
            f"{name} (model)" if name in models else name,
            _ms(mean_interval([row.ttft for row in rows]), len(rows)),
            *(_mean_ms(rows, field) for field in ("ttft_p50", "ttft_p90", "ttft_p99")),
            f"{fmean(row.token_seconds for row in rows) * 1e3:,.1f}",
            f"{fmean(row.cached_share for row in rows):.1%}",
            f"{seconds:,.1f}",
            f"{seconds / run.requests * 1e6:,.0f}",
        ]


def _mean_ms(rows: Sequence[Row], field: str) -> str:
    return f"{fmean(getattr(row, field) for row in rows) * 1e3:,.0f}"


def _ms(found: Interval, seeds: int) -> str:
    if seeds == 1:
        return f"{found.value * 1e3:,.0f}"
    return found.times(1e3).shown("{:,.0f}")


SIMULATE = told_by(
    "simulate", SimulateRun, about, sheets, notes=notes, pictures=pictures,
    question="how policies perform on a trace and a fleet that you choose, in virtual time",
    takes="2 to 6 minutes a policy for a million requests to 1,000 engines",
    arguments="--trace mooncake --engines 1000 --requests 1000000",
)  # fmt: skip
SIMULATE_ENGINES = replace(
    SIMULATE,
    name="simulate --engines",
    question="how the cached share grows with the number of engines, in virtual time",
    takes="a minute",
    arguments="4 --engines 16 … --trace mooncake",
)
