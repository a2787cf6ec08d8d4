"""The command `inferway what-if`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan

import msgspec

from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import OnStep
from inferway_bench.rows import Column, Findings, Row, Run, Table, Value
from inferway_bench.simulate.run import Processes
from inferway_bench.whatif.figures import (
    FIGURES,
    SHARES,
    Limit,
    ReplayFigures,
    Sized,
    duration,
    error,
    holds,
    mean,
    measured_figures,
    parse_slo,
    sentence,
    sized,
)
from inferway_bench.whatif.replay import Replay
from inferway_bench.whatif.run import (
    RecordedCase,
    RecordedFleet,
    Variant,
    WhatIfPlan,
    base_case,
    changed_cases,
    load,
    of_seeds,
    recorded_fleet,
)

MEASURED = "measured"
_BARS = 48  # characters


@dataclass(frozen=True)
class _Answer:
    """All that was simulated."""

    replay: Replay
    fleet: RecordedFleet
    base: RecordedCase
    measured: ReplayFigures
    replayed: Sequence[ReplayFigures]
    cases: Sequence[Variant]
    runs: Sequence[Sequence[ReplayFigures]]
    limits: Sequence[Limit]
    size: Sized | None


def measure(plan: WhatIfPlan, on_step: OnStep) -> Findings:
    """Answer what is asked of a recording: simulate the recorded case and all others. Raises
    BenchError."""
    limits = parse_slo(plan.size) if plan.size is not None else []
    on_step("reading what was recorded")
    replay = load(plan.source)
    on_step("looking for the constants of the engines")
    fleet = recorded_fleet(replay)
    base = base_case(plan.recorded_policy or replay.part.policy, fleet.spec)
    cases = changed_cases(plan, base, replay.part.block_size)
    processes = Processes(plan.num_processes, on_step)
    run = partial(of_seeds, processes, plan.source, seeds=plan.seeds)
    replayed, *runs = run([base.case, *cases], what="simulating")
    case = cases[0] if cases else base.case

    def ask(numbers: Sequence[int]) -> dict[int, Sequence[ReplayFigures]]:
        asked = [_with_engines(case, number) for number in numbers]
        said = f"{', '.join(map(str, numbers))} engines"
        return dict(zip(numbers, run(asked, what=said), strict=True))

    size = sized(limits, case.fleet.num_engines, ask) if limits else None
    measured = measured_figures(replay)
    answer = _Answer(replay, fleet, base, measured, replayed, cases, runs, limits, size)
    return findings(answer, plan.seeds)


def _with_engines(case: Variant, number: int) -> Variant:
    fleet = msgspec.structs.replace(case.fleet, num_engines=number)
    return msgspec.structs.replace(case, fleet=fleet)


def findings(answer: _Answer, seeds: int) -> Findings:
    """Return the tables' rows and the sentences of an answer."""
    return Findings(
        rows=[*_case_rows(answer), *_size_rows(answer)],
        about=[f"- {line}" for line in _about(answer)],
        facts={
            **msgspec.structs.asdict(answer.fleet.spec.engine),
            "requests": int(answer.replay.measured.judged.sum()),
            "replayed_model": answer.replay.part.model,
            **({"slo_ms": answer.limits[0].most} if answer.limits else {}),
            **({"slo": answer.limits[0].column} if answer.limits else {}),
        },
        seeds=list(range(1, seeds + 1)),
    )


def _case_rows(answer: _Answer) -> Iterator[Row]:
    engines, hours = answer.fleet.spec.num_engines, answer.replay.seconds / 3600
    cost: dict[str, Value] = {"engines": engines, "cost": engines * hours}
    yield Row("cases", {"case": MEASURED}, {**_values([answer.measured]), **cost}, is_ours=False)
    yield Row("cases", {"case": answer.base.case.name}, {**_values(answer.replayed), **cost})
    off: dict[str, Value] = {
        name: _shown_error(mean(answer.replayed, name), getattr(answer.measured, name), name)
        for name in FIGURES
    }
    yield Row("cases", {"case": "the model is off by"}, off)
    for case, runs in zip(answer.cases, answer.runs, strict=True):
        number = case.fleet.num_engines
        values: dict[str, Value] = {"engines": number, "cost": number * hours}
        yield Row("cases", {"case": case.name}, {**_values(runs), **values})


def _size_rows(answer: _Answer) -> Iterator[Row]:
    if answer.size is None:
        return
    hours = answer.replay.seconds / 3600
    for number in answer.size.numbers:
        runs = answer.size.runs[number]
        held: dict[str, Value] = {
            "holds": "yes" if holds(runs, answer.limits) else "no",
            "cost": number * hours,
        }
        yield Row("sizes", {"engines": number}, {**_values(runs), **held})


def _values(runs: Sequence[ReplayFigures]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name in FIGURES:
        values = [getattr(run, name) for run in runs]
        found[name] = None if any(map(isnan, values)) else values
    return found


def _shown_error(simulated: float, measured: float, name: str) -> str | None:
    off = error(simulated, measured, name)
    if isnan(off):
        return None
    return f"{off:+.1f}" if name in SHARES else f"{off:+.1f}%"


def _about(answer: _Answer) -> Iterator[str]:
    part, replay, fleet = answer.replay.part, answer.replay, answer.fleet
    yield (
        f"{int(replay.measured.judged.sum()):,} requests of {part.model} in "
        f"{replay.seconds / 60:,.1f} minutes, on {len(replay.names)} engines"
    )
    yield f"constants of the engines, {fleet.how}: {fleet.spec.about}"
    yield from (*part.notes, *replay.notes[len(part.notes) :], *fleet.notes)
    if not answer.base.is_known:
        yield (
            f"the recorded policy, {answer.base.case.name.partition('(')[2][:-1]}, has no "
            "simulation: each request is replayed on the engine that it went to; the cure, if it "
            "behaves as another: inferway what-if --recorded-policy"
        )
    for case, runs in zip(answer.cases, answer.runs, strict=True):
        yield sentence(case.name, answer.replayed, runs, answer.measured)
    if answer.size is not None:
        yield _size_sentence(answer, answer.size)


def _size_sentence(answer: _Answer, size: Sized) -> str:
    asked = " and ".join(map(str, answer.limits))
    if size.fewest is None:
        tried = max(size.numbers)
        return f"{asked} is not held by {tried} engines, nor by more: it is not a matter of engines"
    margin = {
        limit.column: 1 + abs(error(mean(answer.replayed, limit.column),
                                    getattr(answer.measured, limit.column), limit.column)) / 100
        for limit in answer.limits
    }  # fmt: skip
    runs = size.runs[size.fewest]
    figures = ", ".join(f"{one.name} {duration(mean(runs, one.column))}" for one in answer.limits)
    many = f"{size.fewest} engine{'s' * (size.fewest > 1)}"
    said = f"{many} hold {asked} ({figures}), of {answer.fleet.spec.num_engines} that there were"
    if holds(runs, answer.limits, margin):
        return f"{said}, whatever the model is off by"
    safe = next((n for n in size.numbers if holds(size.runs[n], answer.limits, margin)), None)
    more = f"{safe} do" if safe is not None else "more are needed"
    return f"{said}; that is within what the model is off by: to be safe, {more}"


def bars(run: Run) -> list[str]:
    """Return a chart for a terminal: p90 by number of engines, or by case."""
    table, key = ("sizes", "engines") if run.select("sizes") else ("cases", "case")
    column = str(run.facts.get("slo", "ttft_p90"))
    rows = [row for row in run.select(table) if isinstance(row.values.get(column), list)]
    if not rows:
        return []
    values = {
        str(row.keys[key]): sum(row.repeats(column)) / len(row.repeats(column)) for row in rows
    }
    limit = float(run.facts.get("slo_ms", 0.0))
    return list(_bars(values, limit, column.replace("ttft_", "").replace("ttft", "mean")))


def _bars(values: Mapping[str, float], limit: float, name: str) -> Iterator[str]:
    # what is far above the limit would leave no room for the rest
    most = min(max([*values.values(), limit]), 3 * limit if limit else float("inf"))
    wide = max(map(len, values))
    mark = round(limit / most * _BARS) if limit else -1
    yield f"{name} of the time to the first token" + (f"; | is {duration(limit)}" if limit else "")
    for label, value in values.items():
        length = min(round(value / most * _BARS), _BARS)
        bar = list("█" * length + " " * (_BARS + 1 - length))
        if mark >= 0:
            bar[mark] = "|"
        yield f"{label:>{wide}} {''.join(bar)} {duration(value)}{' …' * (value > most)}"


_FIGURES = (
    Column("ttft_p50", "p50", "{:,.0f}", "mean"),
    Column("ttft_p90", "p90", "{:,.0f}", "mean"),
    Column("ttft_p99", "p99", "{:,.0f}", "mean alone"),
    Column("ttft", "mean", "{:,.0f}", "mean alone"),
    Column("cached", "cached", "{:.1f}%", "mean alone"),
    Column("busy", "utilization", "{:.0f}%", "mean alone"),
)
_COST = Column("cost", "engine-hours", "{:,.2f}")
_CASES = Table(
    "cases",
    "{requests:,} requests of {replayed_model}: time to the first token in ms (95 %), share of "
    "prompt tokens that came from a cache, of the engines' time in which they had a request",
    ("case",),
    (*_FIGURES, Column("engines", form="{:,.0f}"), _COST),
)
_SIZES = Table(
    "sizes", "Engines that hold it", ("engines",),
    (Column("holds"), *_FIGURES, _COST),
)  # fmt: skip
_LIMIT: Mapping[str, float | str] = {"asked": "slo_ms"}
_OVER_CASES = Plot(
    "cases", ("ttft_p50", "ttft_p90"), x="case", y_label="time to first token, ms", mean=True
)
_OVER_ENGINES = Plot(
    "sizes", ("ttft_p50", "ttft_p90", "ttft_p99"), x="engines", y_label="time to first token, ms",
    mean=True, log_y=True, levels=_LIMIT,
)  # fmt: skip

WHAT_IF: Benchmark[WhatIfPlan] = Benchmark(
    "what-if recorded",
    "Replay what inferway serve --record DIR has recorded, in virtual time, on another fleet or by "
    "another policy.\n\nThe engines have the constants that were learned of them. First the "
    "recorded policy is replayed, which shows how far the model is off; then it is said which "
    "differences exceed that. Without a change, the policies of inferway serve are compared.",
    WhatIfPlan,
    measure,
    (_CASES, _SIZES),
    Chart("{requests:,} recorded requests of {replayed_model}", (_OVER_CASES, _OVER_ENGINES)),
    arguments="DIR --engines 6 --size 'p90<1s'",
    audience="user",
    times="virtual",
    program="inferway",
    typed="what-if",
    terminal=bars,
)
what_if = WHAT_IF.command()
