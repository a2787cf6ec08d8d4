"""`inferway bench sessions`: what it wins to let fewer sessions in at a time, where caches do not
hold all that are alive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean
from typing import Annotated, Literal

import msgspec

from inferway_bench.chats import default_data_dir
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.simulate import FleetSpec, MakePolicy
from inferway_bench.policies.traces import read_trace, stored
from inferway_bench.processes import BenchError
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Row, Run, goal
from inferway_bench.sessions.agents import agents, mean_need, sessions_of
from inferway_bench.sessions.figures import (
    GOOD_SECONDS,
    GOOD_TIMES,
    SessionFigures,
    figures,
)
from inferway_bench.sessions.oracles import fitting
from inferway_bench.sessions.ours import admission, with_sessions
from inferway_bench.sessions.programs import programs
from inferway_bench.sessions.run import AgentsRun, Everyone, MakeAdmission
from inferway_bench.simulate.processes import Processes

ADMISSION = "session-admission"
PROGRAMS = "vllm-router"
EDGE = 1.0
FIRST_SEED = 11  # those before it were used to find the defaults of session-admission
BEYOND = 1.5  # times the edge

_TTFT, _HASH = policy_named(OURS), policy_named("consistent-hash")
# name -> (who chooses engines, who lets turns in)
SYSTEMS: Mapping[str, tuple[MakePolicy, MakeAdmission]] = {
    OURS: (_TTFT, lambda *_: Everyone()),
    "consistent-hash": (_HASH, lambda *_: Everyone()),
    PROGRAMS: (_HASH, programs()),
    f"{PROGRAMS}, 60 s": (_HASH, programs(most_ttl=60.0)),
    ADMISSION: (with_sessions, admission),
    "oracle, now": (_TTFT, fitting(0.75, peak=False)),
    "oracle, peak": (_TTFT, fitting(1.15)),
    "oracle, free": (_TTFT, fitting(0.75, pins=False, peak=False)),
    "oracle, gaps": (_TTFT, fitting(0.75, most_gap=30.0)),
}
_ORACLES = tuple(name for name in SYSTEMS if name.startswith("oracle"))


class SessionsPlan(msgspec.Struct, frozen=True):
    """How many sessions are alive, on what fleet, and who lets them in."""

    system: Annotated[
        tuple[str, ...],
        flag("Simulate this system: " + ", ".join(SYSTEMS) + ".", metavar="NAME"),
    ] = (OURS, PROGRAMS, ADMISSION, "oracle, now", "oracle, peak")
    load: Annotated[
        tuple[float, ...],
        flag(
            "Have sessions alive that need this many times what caches hold.", metavar="TIMES", gt=0
        ),
    ] = (0.5, 0.8, 1.0, 1.5, 2.0)
    tools: Annotated[
        tuple[float, ...],
        flag("Have tools take this many times what they take in the trace.", metavar="TIMES", gt=0),
    ] = (1.0, 0.1)
    engines: Annotated[int, flag("Simulate this number of engines.", ge=1)] = 4
    cache: Annotated[int, flag("Give each a cache of this many tokens.", ge=262_144)] = 1_048_576
    attention: Annotated[
        int,
        flag("Have a token that attends to this many others take twice its time; 0: none.", ge=0),
    ] = 0
    minutes: Annotated[float, flag("Simulate this number of minutes.", gt=0)] = 40.0
    warm_up: Annotated[float, flag("Do not count so many minutes first.", ge=0)] = 15.0
    seeds: Annotated[int, flag("Simulate this number of seeds.", ge=1)] = 1
    processes: Annotated[int, flag("Simulate in this number of processes at a time.", ge=1)] = 1

    @property
    def all_seeds(self) -> Sequence[int]:
        return range(FIRST_SEED, FIRST_SEED + self.seeds)

    @property
    def fleet(self) -> FleetSpec:
        engine = EngineSpec(cache_tokens=self.cache, attention_tokens=self.attention)
        return FleetSpec(self.engines, 0, engine=engine)


class SessionsTask(msgspec.Struct, frozen=True):
    """One simulation."""

    plan: SessionsPlan
    system: str
    load: float
    tools: float
    seed: int


def measure(plan: SessionsPlan, on_step: OnStep) -> Findings:
    """Simulate the plan. Raises BenchError for a system that is not known."""
    for name in plan.system:
        if name not in SYSTEMS:
            raise BenchError(f"--system {name!r}: expected one of {', '.join(SYSTEMS)}")
    cases = list(product(plan.tools, plan.load, plan.system))
    tasks = [
        SessionsTask(plan, system, load, tools, seed)
        for seed in plan.all_seeds
        for tools, load, system in cases
    ]
    done = Processes(plan.processes, on_step).map(perform, tasks, "simulating")
    found = dict(zip(tasks, done, strict=True))
    need = _need(1)
    about = [
        f"- {plan.fleet.about}",
        f"- An engine's cache holds {plan.cache:,} tokens, those of "
        f"{plan.cache / need:.1f} sessions: a session that is alive holds {need:,.0f} tokens, its "
        "prompt and its answer, the mean over all turns of the trace. The *edge*, a load of 1, is "
        "where all that are alive together need what all caches hold.",
        "- As many sessions are alive as the load says, all the time: when one ends, the next "
        "begins. One that waits to be let in is alive, too.",
        f"- Goodput is turns a second whose first token comes within {GOOD_TIMES:g} times what it "
        "takes on an idle engine that holds what the session has said before, and "
        f"{GOOD_SECONDS:g} s. What a turn waits at the gateway counts.",
        f"- {plan.minutes:g} minutes are simulated, of which the first {plan.warm_up:g} do not "
        "count.",
    ]
    return Findings(rows=list(_rows(plan, found)), about=about, seeds=list(plan.all_seeds))


def perform(task: SessionsTask) -> SessionFigures:
    """Simulate a task in a process of the pool."""
    plan, fleet = task.plan, task.plan.fleet
    trace = read_trace(stored(default_data_dir() / "traces", "agentic"), task.seed)
    number = round(task.load * plan.engines * plan.cache / _need(task.seed))
    seconds, ramp = plan.minutes * 60, min(600.0, plan.warm_up * 30)
    asked = agents(trace, number, seconds, ramp, fleet.engine, task.seed, task.tools)
    policy, make = SYSTEMS[task.system]
    run = AgentsRun(asked, fleet, policy, make, seconds, task.seed)
    return figures(asked, fleet.engine, run.run(), plan.warm_up * 60, seconds)


def _need(seed: int) -> float:
    return mean_need(
        sessions_of(read_trace(stored(default_data_dir() / "traces", "agentic"), seed))
    )


def _rows(plan: SessionsPlan, found: Mapping[SessionsTask, SessionFigures]) -> Iterator[Row]:
    for tools, load, system in product(plan.tools, plan.load, plan.system):
        mine = [
            each
            for task, each in found.items()
            if (task.tools, task.load, task.system) == (tools, load, system)
        ]
        values = {
            name: [float(getattr(each, name)) for each in mine]
            for name in SessionFigures.__struct_fields__
        }
        keys = {"tools": f"{tools:g}", "load": f"{load:g}", "system": system}
        yield Row("sessions", keys, {**values, "at": load}, system in (OURS, ADMISSION))


Means = Mapping[tuple[str, float], Mapping[str, float]]  # (tools, load) -> by system


def means(run: Run, figure: str) -> Means:
    """Return the mean of that figure for each system in each case."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    for row in run.rows:
        case = (str(row.keys["tools"]), float(row.keys["load"]))
        found.setdefault(case, {})[str(row.keys["system"])] = fmean(row.repeats(figure))
    return found


def goals(run: Run) -> list[Goal]:
    """Judge `session-admission` at 1.5 times the edge and below it, where the turns that are not
    good count, too."""
    return [
        each
        for figure in ("goodput", "turns")
        for case, by in means(run, figure).items()
        for each in _judged(figure, case, by)
    ]


def _judged(figure: str, case: tuple[str, float], by: Mapping[str, float]) -> Iterator[Goal]:
    (tools, load), ours = case, by.get(ADMISSION)
    if ours is None:
        return
    for other in (OURS, PROGRAMS):
        if load == BEYOND and other in by and figure == "goodput":
            said = f"{ADMISSION}: {figure} / that of {other}, {BEYOND:g} times the edge"
            ratio = min(ours / max(by[other], 1e-3), 99.0)
            yield goal(f"{said}, tools × {tools}", ratio, least=1.3)
    if load < EDGE and OURS in by:
        said = f"{ADMISSION}: {figure} / that of {OURS}, {load:g} times the edge"
        yield goal(f"{said}, tools × {tools}", ours / by[OURS], least=0.99)


def losses(run: Run) -> list[str]:
    """Return where another system that knows no future has more goodput than ours, by 2 %."""
    return [
        f"tools × {tools}, load {load:g}: the goodput of {other} is {theirs / by[ADMISSION]:.2f} "
        f"times that of {ADMISSION}"
        for (tools, load), by in means(run, "goodput").items()
        if by.get(ADMISSION)
        for other, theirs in by.items()
        if other not in (ADMISSION, *_ORACLES) and theirs > 1.02 * by[ADMISSION]
    ]


_TITLES = {
    "goodput": "Goodput, good turns a second",
    "turns": "Turns a second, good or not",
    "sessions": "Sessions that end, an hour",
    "session_p50": "Minutes of the median session, from its first turn until it ends, waiting "
    "included",
    "first_p50": "Seconds to the first token of the median new session, waiting included",
    "ttft_p50": "Seconds to the first token of the median turn that is no session's first",
    "cached": "Share of prompt tokens that came from a cache",
}
_FORMS = {
    "goodput": "{:.2f}", "turns": "{:.2f}", "sessions": "{:,.0f}", "session_p50": "{:,.1f}",
    "first_p50": "{:,.1f}", "ttft_p50": "{:,.2f}", "cached": "{:.0f}%",
}  # fmt: skip
_BETTER: Mapping[str, Literal["higher"]] = dict.fromkeys(("goodput", "sessions"), "higher")
_PLOT = Plot(
    "sessions", ("goodput",), x="at", by="system", x_label="what live sessions need / caches hold",
    y_label="goodput, turns a second", title="tools × {tools}", mean=True,
    styles={ADMISSION: {"color": "#cc3311", "linewidth": 2.4, "zorder": 5}},
    where=lambda row: row.keys["system"] not in _ORACLES[1:],
)  # fmt: skip

SESSIONS = Benchmark(
    "sessions",
    "Simulate agents whose sessions do not fit the caches, in virtual time: who is let in, and "
    "what comes of it.",
    SessionsPlan,
    measure,
    [
        Table(
            "sessions",
            f"{said}; tools take {{tools}} times what they take in the trace",
            ["system"],
            [Column(name, name, _FORMS[name], "mean alone", _BETTER.get(name), "")],
            across="load",
            split=("tools",),
        )
        for name, said in _TITLES.items()
    ],
    chart=Chart(
        "{engines} engines in virtual time",
        (_PLOT, replace(_PLOT, y=("sessions",), y_label="sessions that end, an hour")),
        split=("tools",),
    ),
    quick={
        "load": (0.5, 1.5), "tools": (1.0,), "engines": 2, "minutes": 12.0, "warm_up": 6.0,
        "seeds": 1,
    },
    goals=goals,
    losses=losses,
    question="agents whose sessions do not fit the caches: what it wins to let fewer in at a time",
    takes="30 minutes",
    times="virtual",
)  # fmt: skip
sessions = SESSIONS.command()
