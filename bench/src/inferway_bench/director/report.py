"""A run of `inferway bench director` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from inferway_bench.director.many_endpoints import Cost
from inferway_bench.director.results import STEPS, DirectorRun, times_longer
from inferway_bench.director.world import Point
from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import median_interval, quartiles


def about(run: DirectorRun) -> list[str]:
    return [
        f"{len(run.grown):,} decisions, {_tokens_a_message(run.grown):.0f} tokens a message, "
        f"{run.engines} engines, blocks of {run.block_size}, SmolLM2's tokenizer and template; "
        f"{run.text}."
    ]


def sheets(run: DirectorRun) -> Iterator[Sheet]:
    yield Sheet(
        "CPU time of a decision in µs: median over the turns, with quartiles for the whole",
        ["tokens of history", "turns", *STEPS],
        list(_length_rows(run)),
    )
    yield Sheet(
        "CPU time by the chat's own history, and by the number of other chats that were served "
        "before (the same turns)",
        ["step", "ns for each token of history (95 %)",
         *(f"µs, after {n:,} chats" for n in (run.few_others, run.others)), "ratio (95 %)"],
        _growth_rows(run),
        notes=[_seed_line(run.grown)],
    )  # fmt: skip
    many = run.many_endpoints
    if many is not None:
        head = ["scorers", "choice", "their producers, before it"]
        of = f"Wall time of a choice among {many.endpoints:,} endpoints, µs, median (quartiles)"
        for num, costs in (("three scorers", many.triples), ("one scorer", many.scorers)):
            yield Sheet(f"{of}, by {num}", head, _choice_rows(costs), in_details=True)


def pictures(run: DirectorRun) -> list[Picture]:
    """CPU of a decision against the prompt's length, step by step, medians."""
    lines = []
    for step in STEPS:
        xs, ys = [], []
        for _, points in run.by_length():
            xs.append(median([p.history + p.new for p in points]))
            ys.append(median_interval([getattr(p, step) for p in points]))
        style = {"color": "black", "linewidth": 2.0} if step == "whole" else {}
        lines.append(Line(step, xs, ys, style))
    panel = Panel("tokens of the prompt", "CPU of a decision, µs, median", lines)
    return [Picture("director", "A decision for a chat that grows turn by turn", [[panel]])]


def _length_rows(run: DirectorRun) -> Iterator[list[str]]:
    for length, some in run.by_length():
        cells = [f"{median([getattr(p, step) for p in some]):,.1f}" for step in STEPS]
        whole = quartiles([p.whole for p in some])
        cells[-1] += f" ({whole.low:,.0f} to {whole.high:,.0f})"
        yield [length, f"{len(some)}", *cells]


def _growth_rows(run: DirectorRun) -> list[list[str]]:
    rows = []
    for step in STEPS:
        few, many = (median([getattr(p, step) for p in some]) for some in (run.few, run.many))
        found = (run.growth(step), times_longer(run, step))
        growth, times = (one.shown() for one in found)
        rows.append([step, growth, f"{few:,.1f}", f"{many:,.1f}", times])
    return rows


def _tokens_a_message(points: Sequence[Point]) -> float:
    return sum(p.new for p in points) / sum(2 if p.history else 1 for p in points)


def _seed_line(points: Sequence[Point]) -> str:
    long = [p.wall for p in points if p.history >= 4_000]
    q = quartiles(long or [p.wall for p in points])
    return (
        "a decision for a chat with 4,000 tokens of history or more takes "
        f"{q.median / 1e3:.2f} ms of wall time (quartiles {q.low / 1e3:.2f} to "
        f"{q.high / 1e3:.2f}); seed 001 measured about 10 ms more end to end for a chat than for a "
        "completion"
    )


def _choice_rows(costs: Sequence[Cost]) -> list[list[str]]:
    return [
        [cost.name, cost.shown, f"{cost.produce:.1f}" if cost.produce else ""] for cost in costs
    ]


DIRECTOR = told_by(
    "director", DirectorRun, about, sheets, pictures=pictures,
    question="how much CPU time a routing decision takes, by length of the chat and number of "
    "engines",
    takes="half a minute",
)  # fmt: skip
