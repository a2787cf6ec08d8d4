"""A run of `inferway bench simulate` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from inferway.bench.plotting import Line, Panel, Picture
from inferway.bench.policies.catalog import ENTRIES
from inferway.bench.policies.results import Row
from inferway.bench.sheets import Sheet, goal_sheet, told_by
from inferway.bench.simulate.results import SimulateRun
from inferway.bench.spread import Interval, mean_interval

_HEAD = (
    "policy", "TTFT, ms: mean", "p50", "p90", "p99", "token, ms", "cached", "simulating, s",
    "µs a request",
)  # fmt: skip


def about(run: SimulateRun) -> list[str]:
    return [f"- {note}" for note in notes(run)]


def notes(run: SimulateRun) -> list[str]:
    return [
        f"{run.about}; blocks of {run.block_tokens} tokens",
        f"{run.requests:,} requests, {run.rows[0].rate:,.2f} a second; those of the second half "
        f"are judged; at most {run.memory_gib} GiB of memory",
        "what simulating took is CPU time of one core, and real",
    ]


def sheets(run: SimulateRun) -> Iterator[Sheet]:
    yield Sheet(_title(run), _HEAD, list(_rows(run)))
    goals = run.goals()
    if goals:
        yield goal_sheet(goals)


def pictures(run: SimulateRun) -> list[Picture]:
    """What deciding costs, by policy."""
    names = list(dict.fromkeys(row.policy for row in run.rows))
    places = [float(i) for i in range(len(names))]
    p90 = [fmean(row.ttft_p90 for row in _of(run, name)) * 1e3 for name in names]
    cost = [fmean(row.cpu_seconds for row in _of(run, name)) / run.requests * 1e6 for name in names]
    panels = [
        Panel("policy", "p90 TTFT, ms", [Line("p90 TTFT", places, p90)], log_y=True, ticks=names),
        Panel("policy", "simulating a request, µs", [Line("CPU", places, cost)], ticks=names),
    ]
    return [Picture("simulate", _title(run), [panels])]


def _of(run: SimulateRun, policy: str) -> list[Row]:
    return [row for row in run.rows if row.policy == policy]


def _title(run: SimulateRun) -> str:
    fleet = run.plan.fleet
    slow = f", {fleet.num_slow} of them {fleet.slow_factor:g} × slower" if fleet.num_slow else ""
    gateways = "one gateway" if fleet.num_gateways == 1 else f"{fleet.num_gateways} gateways"
    return f"{run.rows[0].workload}, {fleet.num_engines:,} engines{slow}, {gateways}"


def _rows(run: SimulateRun) -> Iterator[list[str]]:
    models = {entry.name for entry in ENTRIES if entry.is_model}
    for name in dict.fromkeys(row.policy for row in run.rows):
        rows = _of(run, name)
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
    return f"{found.value * 1e3:,.0f} ({found.low * 1e3:,.0f}-{found.high * 1e3:,.0f})"


SIMULATE = told_by(
    "simulate", SimulateRun, about, sheets, notes=notes, pictures=pictures,
    question="how policies do on a trace and a fleet of one's own, in virtual time",
    takes="5 minutes a policy for a million requests to 1,000 engines",
    arguments="--trace mooncake --engines 1000 --requests 1000000",
)  # fmt: skip
