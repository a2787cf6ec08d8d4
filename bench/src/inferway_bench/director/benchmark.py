"""`inferway bench director`: what a decision costs while chats grow turn by turn, and what a choice
among many endpoints costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

import numpy as np
import uvloop

from inferway.prompts.files.prepare import prepare_smollm2
from inferway_bench import chats
from inferway_bench.chats import Turns, default_data_dir
from inferway_bench.director.choices import choices
from inferway_bench.director.decisions import (
    STEPS,
    Decision,
    DirectorPlan,
    chat_of_length,
    grown_chats,
    probed_chats,
)
from inferway_bench.harness import Benchmark
from inferway_bench.plotting import Chart, Plot
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Row, Run, Value, goal
from inferway_bench.spread import Interval, median_interval, quartiles

_BORDERS = (0, 1, 1_000, 2_000, 4_000, 8_000, 16_000, 1_000_000)  # tokens of history
_DRAWS = 2000  # of the bootstrap


def measure(plan: DirectorPlan, on_step: OnStep) -> Findings:
    """Measure with the chats of the plan. Raises BenchError, with the cure, without them."""
    data = plan.data or default_data_dir()
    conversations = chats.load_conversations(data / "chat")
    root = prepare_smollm2()
    turns = Turns(conversations, plan.seed)
    on_step("growing chats")
    grown = uvloop.run(grown_chats(root, plan, turns))
    probes = [chat_of_length(turns, plan.probe_tokens, plan) for _ in range(plan.probes)]
    others = [chat_of_length(turns, plan.other_tokens, plan) for _ in range(plan.others)]
    on_step(f"beside {plan.few_others} and {plan.others} chats seen before")
    few, many = uvloop.run(probed_chats(root, plan, probes, others))
    on_step(f"among {plan.many_endpoints} endpoints")
    a_message = sum(d.new for d in grown) / sum(2 if d.history else 1 for d in grown)
    return Findings(
        rows=[*length_rows(grown), *growth_rows(grown, few, many), *choices(plan)],
        about=[
            f"{len(grown):,} decisions, {a_message:.0f} tokens a message, {plan.engines} engines, "
            f"blocks of {plan.block_size}, SmolLM2's tokenizer and template; "
            f"{len(conversations):,} real conversations of {data.name}/chat, in an order drawn "
            f"once, joined; turns of {plan.turn_chars:,} characters at most."
        ],
        facts={"few_others": plan.few_others},
        notes={"growth": [_wall_note(grown)]},
    )


def length_rows(grown: Sequence[Decision]) -> Iterator[Row]:
    """Yield the decisions by tokens of history: medians with their 95 % intervals."""
    for low, high in pairwise(_BORDERS):
        some = [d for d in grown if low <= d.history < high]
        if some:
            whole = quartiles(_times(some, "whole"))
            values: dict[str, Value] = {
                "turns": len(some),
                "prompt": median(d.history + d.new for d in some),
                **{step: median_interval(_times(some, step)) for step in STEPS},
                "quartiles": f"{whole.low:,.0f} to {whole.high:,.0f}",
            }
            yield Row("lengths", {"tokens of history": _range(low, high)}, values)


def _range(low: int, high: int) -> str:
    if high == 1:
        return "none"
    return f"{low:,} and more" if high == _BORDERS[-1] else f"{low:,} to {high - 1:,}"


def growth_rows(
    grown: Sequence[Decision], few: Sequence[Decision], many: Sequence[Decision]
) -> Iterator[Row]:
    """Yield how each step grows with the history and with the chats that were seen. `few` and
    `many` are the same turns, decided after few and after many other chats."""
    for step in STEPS:
        before, after = _times(few, step), _times(many, step)
        ratios = [b / a for a, b in zip(before, after, strict=True)]  # each turn with itself
        values: dict[str, Value] = {
            "growth": slope([d for d in grown if d.history], step),
            "few": before,
            "many": after,
            "ratio": median_interval(ratios),
        }
        yield Row("growth", {"step": step}, values)


def _wall_note(grown: Sequence[Decision]) -> str:
    long = [d.wall / 1e3 for d in grown if d.history >= 4_000]
    found = quartiles(long or [d.wall / 1e3 for d in grown])
    return (
        "a decision for a chat with 4,000 tokens of history or more takes "
        f"{found.value:.2f} ms of wall time (quartiles {found.low:.2f} to {found.high:.2f}); seed "
        "001 measured about 10 ms more end to end for a chat than for a completion"
    )


def slope(decisions: Sequence[Decision], step: str) -> Interval:
    """Return the nanoseconds for each token of history, by least squares with the new tokens beside
    it; the interval is a bootstrap over the decisions."""
    rows = np.array([[1.0, d.history, d.new] for d in decisions])
    scale = np.abs(rows).max(axis=0)  # for the sums' sake: columns of one size
    rows /= scale
    times = 1e3 * np.array(_times(decisions, step))
    num = len(decisions)
    drawn = np.random.default_rng(0).integers(num, size=(_DRAWS, num))
    weights = np.array([np.ones(num), *(np.bincount(some, minlength=num) for some in drawn)])
    squares = weights @ (rows[:, :, None] * rows[:, None, :]).reshape(num, -1)
    products = weights @ (rows * times[:, None])
    inverse = np.linalg.pinv(squares.reshape(-1, 3, 3), rcond=1e-10, hermitian=True)
    fits = inverse @ products[:, :, None]
    value, *slopes = fits[:, 1, 0] / scale[1]
    low, high = np.percentile(slopes, (2.5, 97.5))
    return Interval(float(value), float(low), float(high))


def _times(decisions: Sequence[Decision], step: str) -> list[float]:
    return [getattr(decision, step) for decision in decisions]


def goals(run: Run) -> list[Goal]:
    """Return what is required of a decision, judged."""
    found = []
    for row in run.select("growth"):
        step = row.keys["step"]
        if step == "whole":
            what = "a decision, ns for each token of history"
            found.append(goal(what, row.interval("growth"), most=25))
        if step in ("encode", "match"):
            others, few = run.plan["others"], run.facts["few_others"]
            what = f"{step}, time after {others:,} chats / after {few:,}"
            found.append(goal(what, row.interval("ratio"), most=1.1))
    triples = run.select("choices", kind="three scorers")
    what = (
        f"a choice among {run.plan['many_endpoints']:,} endpoints by three scorers, the slowest of "
        f"{len(triples)} sets"
    )
    slowest = max(row.median("choice") for row in triples)
    return [*found, goal(what, slowest, most=60, form="{:.1f}", unit=" µs")]


TABLES = [
    Table(
        "lengths",
        "CPU time of a decision in µs: median over the turns, with quartiles for the whole",
        ["tokens of history"],
        [
            Column("turns", form="{:,.0f}"),
            *(Column(step, shown="value", better="lower", unit="µs") for step in STEPS),
            Column("quartiles", "quartiles of the whole"),
        ],
    ),
    Table(
        "growth",
        "CPU time by the chat's own history, and by the number of other chats that were served "
        "before (the same turns)",
        ["step"],
        [
            Column("growth", "ns for each token of history (95 %)", "{:.2f}"),
            Column("few", "µs, after {few_others:,} chats"),
            Column("many", "µs, after {others:,} chats"), Column("ratio", "ratio (95 %)", "{:.2f}"),
        ],
    ),
    Table(
        "choices", "Wall time of a choice among {many_endpoints:,} endpoints, µs, by {kind}",
        ["scorers"],
        [
            Column("choice", shown="value", better="lower", unit="µs"),
            Column("producers", "their producers, before it", shown="value"),
        ],
        split=["kind"], in_details=True,
    ),
]  # fmt: skip
DIRECTOR = Benchmark(
    "director",
    "Measure what a decision costs while chats grow turn by turn: the CPU time of each step, and a "
    "choice among 1,000 endpoints.",
    DirectorPlan, measure, TABLES,
    Chart(
        "A decision for a chat that grows turn by turn",
        [Plot(
            "lengths", STEPS, "prompt",
            x_label="tokens of the prompt", y_label="CPU of a decision, µs, median",
            styles={"whole": {"color": "black", "linewidth": 2.0}},
        )],
    ),
    quick={"chats": 2, "longest": 8_000, "probes": 8, "others": 50, "repeats": 50}, goals=goals,
    question="how much CPU time a routing decision takes, by length of the chat and number of "
    "engines",
    takes="half a minute",
)  # fmt: skip
director = DIRECTOR.command()
