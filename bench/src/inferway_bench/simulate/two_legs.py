"""`inferway bench kv-transfer`: whether a prompt is computed apart from where it is answered,
decided by what it costs, never, always, or by llm-d's threshold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import fmean

import msgspec

from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.catalog import ALWAYS, LEARNED, NEVER, THRESHOLD
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Row, Run, Value, goal
from inferway_bench.simulate.beside_others import Case, cases, ratio
from inferway_bench.simulate.plan import SimulatePlan, preset
from inferway_bench.simulate.report import POLICIES, TRACES, measure
from inferway_bench.spread import Interval

FIGURES = {"ttft_p90": "p90 TTFT", "itl_p99": "inter-token p99"}
KINDS = (NEVER, ALWAYS, THRESHOLD)
BETTER = 1.2

KvTransferPlan = preset(
    "KvTransferPlan",
    trace=("mooncake", "agentic@1048576", "azure"),
    engines=(16,),
    policy=(
        *(NEVER, LEARNED, ALWAYS, f"{ALWAYS}@10", f"{ALWAYS}@12"),
        *(f"{THRESHOLD}@10", f"{THRESHOLD}@12"),
    ),
    load=(0.5, 0.9, 1.2),
    requests=3_000,
    seeds=3,
    bisections=5,
)


def measure_legs(plan: SimulatePlan, on_step: OnStep) -> Findings:
    """Simulate the plan, and divide what the policies take by what the learned decision takes."""
    found = measure(plan, on_step)
    engine = plan.fleet(plan.settings()[0]).engine
    about = (
        f"- A transfer takes {engine.transfer_seconds * 1e3:g} ms, plus "
        f"{engine.transfer_token_seconds * 1e6:g} µs for each token."
    )
    rows = [row for row in found.rows if row.table != "simulations"]
    return msgspec.structs.replace(
        found, rows=[*rows, *_with_ratios(found.rows)], about=[*found.about, about]
    )


def _with_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    for case in cases(rows):
        for name, row in case.items():
            ratios: dict[str, Value] = {
                f"{figure}_ratio": ratio(case, figure, name, LEARNED) for figure in FIGURES
            }
            yield msgspec.structs.replace(row, values={**row.values, **ratios})


def kinds(found: Sequence[Case]) -> Mapping[str, str]:
    """Return the policy of each kind: of several splits of the engines the one whose figures, over
    all loads, are the least (the least mean of their logarithms)."""
    names = {name for case in found for name in case}

    def cost(name: str) -> float:
        figures = [fmean(case[name].repeats(figure)) for case in found for figure in FIGURES]
        return fmean(map(log, figures))

    by_kind = {kind: [name for name in names if name.partition("@")[0] == kind] for kind in KINDS}
    return {kind: min(sorted(of), key=cost) for kind, of in by_kind.items() if of}


def _compared(run: Run) -> Iterator[tuple[Row, str, Mapping[str, Interval]]]:
    """(a case's row, the kind, its figures divided by those of the learned decision)."""
    by_trace: dict[object, list[Case]] = {}
    for each in cases(run.rows):
        if LEARNED in each:
            by_trace.setdefault(each[LEARNED].keys["trace"], []).append(each)
    for found in by_trace.values():
        for kind, name in kinds(found).items():
            for case in found:
                ratios = {figure: ratio(case, figure, name, LEARNED) for figure in FIGURES}
                yield case[name], kind, {f: one for f, one in ratios.items() if one is not None}


def goals(run: Run) -> list[Goal]:
    """Judge the learned decision beside each kind: nowhere worse, somewhere better."""
    compared = list(_compared(run))
    if not compared:
        return []
    judged = [
        goal(
            f"{LEARNED}: {said} of the best other / that of {LEARNED}, the worst case",
            min(ratios[figure].value for _, _, ratios in compared),
            least=1.0,
        )
        for figure, said in FIGURES.items()
    ]
    ahead = sum(all(each.high < 1 for each in ratios.values()) for _, _, ratios in compared)
    judged.append(goal(f"{LEARNED}: cases where another is ahead in both", ahead, most=0))
    for kind in KINDS:
        best = [
            max(each.value for each in found.values()) for _, one, found in compared if one == kind
        ]
        if best:
            said = f"{LEARNED}: a figure of {kind} / that of {LEARNED}, the best case"
            judged.append(goal(said, max(best), least=BETTER))
    return judged


def losses(run: Run) -> list[str]:
    """Return where another kind is ahead, beyond chance."""
    return [
        "{trace}, load: {load}".format_map(row.keys)
        + f": the {FIGURES[figure]} of {row.keys['policy']} is {each.shown('{:.2f}')} times that "
        f"of {LEARNED}"
        for row, _, ratios in _compared(run)
        for figure, each in ratios.items()
        if each.high < 1
    ]


_FIGURES_OF = Table(
    "simulations",
    "**{trace}, engines: {engines}**: p90 TTFT (95 %) and inter-token p99 (95 %) in ms; the share "
    "of requests in two legs, and of prompt tokens that came from a cache",
    ("policy",),
    (
        Column("ttft_p90", "p90", "{:,.0f}", "mean", "lower", "ms"),
        Column("itl_p99", "ITL p99", "{:,.1f}", "mean", "lower", "ms"),
        Column("two_legs", "two legs", "{:.0f}%", "mean alone"),
        Column("cached", "cached", "{:.1f}%", "mean alone"),
    ),
    across="load",
    split=("trace", "engines"),
)
_RATIOS = tuple(
    Table(
        "simulations",
        f"{said} divided by that of {LEARNED}, {{trace}}",
        ("policy",),
        (Column(f"{figure}_ratio", figure, "{:.2f}", "value"),),
        across="load",
        split=("trace",),
    )
    for figure, said in FIGURES.items()
)
_PLOT = Plot(
    "simulations", ("ttft_p90",), x="rate", by="policy", x_label="requests per second",
    y_label="p90 TTFT, ms", title="{trace}", mean=True, log_y=True,
    styles={LEARNED: {"color": "#cc3311", "linewidth": 2.4, "zorder": 5}},
)  # fmt: skip

KV_TRANSFER = replace(
    POLICIES,
    name="kv-transfer",
    help="Compare in virtual time: prompts that are computed apart from where they are answered if "
    "that costs less, never, always, and by llm-d's threshold.",
    plan=KvTransferPlan,
    measure=measure_legs,
    tables=(*_RATIOS, _FIGURES_OF, TRACES),
    chart=Chart(
        "16 engines in virtual time",
        (_PLOT, replace(_PLOT, y=("itl_p99",), y_label="inter-token p99, ms")),
        split=("trace",),
    ),
    quick={"trace": ("azure",), "requests": 1_000, "load": (0.5,), "seeds": 2, "bisections": 3},
    goals=goals,
    losses=losses,
    question="whether to move the cache: prefill and decode apart by expected milliseconds, never, "
    "always, or by a threshold",
    takes="15 minutes",
)
kv_transfer = KV_TRANSFER.command()
