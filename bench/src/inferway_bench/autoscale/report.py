"""`inferway bench autoscale`: what is measured, required and shown."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from inferway_bench.autoscale.plan import AutoscalePlan
from inferway_bench.autoscale.run import FIXED, IN_FLIGHT, ORACLE, SLO, of_trace
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Run, goal
from inferway_bench.simulate.processes import Processes

MOST_RATIO = 1.1


def measure(plan: AutoscalePlan, on_step: OnStep) -> Findings:
    """Simulate each trace. Raises BenchError."""
    setups = [plan.setup(trace) for trace in plan.trace]  # an error is told before all starts
    processes = Processes(plan.processes or len(plan.trace), on_step)
    found = processes.map(partial(of_trace, plan), plan.trace, "scaling")
    about = [
        f"- A day takes {plan.minutes:g} minutes, of which the first {plan.warm_up:g} do not "
        f"count. The rate of requests goes from {1 - plan.depth:g} to {1 + plan.depth:g} times its "
        "mean and back, and the trace's own ups and downs are on that.",
        f"- The SLO is held if {plan.share:.0%} of the requests get their first token within the "
        "trace's goal.",
        f"- {setups[0].elastic.about}",
        _of_oracle(plan),
    ]
    if plan.beside:
        about.append(
            f"- {IN_FLIGHT} and {FIXED} have the figure that holds the SLO on this very day, found "
            "by bisection."
        )
    return Findings(rows=[row for rows in found for row in rows], about=about)


def _of_oracle(plan: AutoscalePlan) -> str:
    said = (
        f"- The oracle knows what will come: it has a number of engines for each "
        f"{plan.window_seconds / 60:g} minutes, by the work that comes in them, so that they are "
        "busy for the same share of their time all day, the greatest that holds the SLO. It starts "
        "engines early enough, and pays for starts and drains as all others do."
    )
    if plan.refine:
        said += (
            f" Then it does without one in each of {plan.refine} windows if the SLO is held all "
            "the same."
        )
    return said


def goals(run: Run) -> list[Goal]:
    """Judge the product's signal on each trace."""
    judged = []
    for row in run.select("days", scaling=SLO):
        trace, share = row.keys["trace"], float(run.plan["share"]) * 100
        judged.append(
            goal(f"{trace}: requests in time", row.median("in_time"), least=share, unit=" %")
        )
        said = f"{trace}: engine-hours / those of the oracle"
        judged.append(goal(said, row.median("ratio"), most=MOST_RATIO))
    return judged


def losses(run: Run) -> list[str]:
    """Return where a usual way to scale takes fewer engine-hours and holds the SLO."""
    share = float(run.plan["share"]) * 100
    found = []
    for row in run.select("days", scaling=SLO):
        other = run.find("days", trace=row.keys["trace"], scaling=IN_FLIGHT)
        if other is None or other.median("in_time") < share:
            continue
        times = row.median("engine_hours") / other.median("engine_hours")
        if times > 1:
            found.append(
                f"{row.keys['trace']}: {times:.2f} times the engine-hours of {IN_FLIGHT} with the "
                "number that was found for this very day"
            )
    return found


_DAYS = Table(
    "days",
    "**{trace}**: requests in time, engine-hours, those divided by the oracle's, engines started; "
    "prompt tokens that came from a cache; TTFT in ms",
    ("scaling",),
    (
        Column("in_time", "in time", "{:.1f}%", better="higher", unit="%"),
        Column("engine_hours", "engine-hours", "{:.2f}", better="lower", unit="h"),
        Column("ratio", "/ oracle", "{:.2f}"),
        Column("started", "started", "{:,.0f}"),
        Column("cached", "cached", "{:.1f}%"),
        Column("ttft_p50", "p50", "{:,.0f}"),
        Column("ttft_p90", "p90", "{:,.0f}"),
    ),
    split=("trace",),
)
_TRACES = Table(
    "traces",
    "Traces: the goal in seconds; the busiest window's work divided by the mean",
    ("trace",),
    (
        Column("goal", "goal, s", "{:g}"),
        Column("requests", form="{:,.0f}"),
        Column("busiest", "busiest / mean", "{:.1f}"),
        Column("about"),
    ),
)
_PLOT = Plot(
    "minutes", ("engines",), x="minute", by="scaling", x_label="minutes", y_label="engines",
    title="{trace}",
    styles={
        SLO: {"color": "#cc3311", "linewidth": 2.2, "zorder": 5},
        ORACLE: {"color": "black", "linestyle": "--"},
    },
    where=lambda row: row.keys["scaling"] in (ORACLE, SLO, IN_FLIGHT),
)  # fmt: skip

AUTOSCALE = Benchmark(
    "autoscale",
    "Let simulated engines come and go with the load in virtual time, by what the gateway says "
    "that the SLO needs, and by an oracle that knows the load.",
    AutoscalePlan,
    measure,
    (_DAYS, _TRACES),
    Chart(
        "Engines over a day",
        (_PLOT, replace(_PLOT, y=("late",), y_label="requests that are late, %")),
        split=("trace",),
    ),
    quick={"trace": ("agentic@1048576",), "requests": 0.3, "most": 8, "refine": 0},
    goals=goals,
    losses=losses,
    question="how many engine-hours it takes to hold an SLO with engines that come and go, beside "
    "an oracle that knows the load",
    takes="20 minutes",
    times="virtual",
)
autoscale = AUTOSCALE.command()
