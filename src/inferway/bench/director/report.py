"""A run of `inferway bench director` as tables: in the terminal, and as markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from rich.table import Table

from inferway.bench.director.many_endpoints import MOST_US, Cost, ManyEndpoints
from inferway.bench.director.results import (
    MOST_NS_A_TOKEN,
    MOST_TIMES,
    STEPS,
    DirectorRun,
    slope,
    times_longer,
)
from inferway.bench.director.world import Point
from inferway.bench.document import machine_line, table_lines, versions_line
from inferway.bench.spread import Interval, quartiles

_BORDERS = (0, 1, 1_000, 2_000, 4_000, 8_000, 16_000, 1_000_000)
_GROWING = ["step", "ns a token of history (95 %)", "asked", "met"]
_SEEN = ["times as long (95 %)", "asked", "met"]
_SEED = ["what", "ours, wall time", "seed 001"]
_CHOICE = ["who rates them", "choice", "produced before it", "asked", "met"]
_JUDGED = ("encode", "match")


def terminal_tables(run: DirectorRun) -> Iterator[Table]:
    for title, head, rows in _tables(run):
        shown = Table(title=title, title_justify="left")
        for i, name in enumerate(head):
            shown.add_column(name, justify="left" if i == 0 else "right")
        for row in rows:
            shown.add_row(*row)
        yield shown


def markdown(run: DirectorRun) -> str:
    lines = [
        f"Measured {run.machine.date} UTC by `{run.command}` at commit {run.machine.commit}, "
        f"seed {run.seed}:",
        f"{len(run.grown):,} decisions, {_tokens_a_message(run.grown):.0f} tokens a message.",
        machine_line(run.machine),
        versions_line(run.machine),
        f"Text: {run.text}. {run.engines} engines, blocks of {run.block_size}, SmolLM2's tokenizer "
        "and template.",
    ]
    for title, head, rows in _tables(run):
        lines += ["", f"{title}:", "", *table_lines(head, rows)]
    return "\n".join(lines) + "\n"


def missed(run: DirectorRun) -> list[str]:
    """The names of the rows that are not as asked."""
    rows = [*_growth_rows(run.grown), *_seen_rows(run)]
    if run.many_endpoints is not None:
        rows += _choice_rows(run.many_endpoints)
    return [row[0] for row in rows if row[-1] == "**no**"]


def _tables(run: DirectorRun) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    head = ["tokens of history", "turns", *STEPS]
    yield "CPU time of a decision, µs, median of the turns", head, list(_length_rows(run.grown))
    yield "How it grows with the chat's own history", _GROWING, _growth_rows(run.grown)
    title = "The same turns beside few and many other chats that were seen before"
    head = ["step", *(f"µs, {n:,} chats" for n in (run.few_others, run.others)), *_SEEN]
    yield title, head, _seen_rows(run)
    yield "Beside the seed", _SEED, [_seed_row(run.grown)]
    if run.many_endpoints is not None:
        title = f"A choice among {run.many_endpoints.endpoints:,} endpoints, µs, median"
        yield title, _CHOICE, _choice_rows(run.many_endpoints)


def _length_rows(points: Sequence[Point]) -> Iterator[list[str]]:
    for low, high in pairwise(_BORDERS):
        some = [p for p in points if low <= p.history < high]
        if some:
            cells = [f"{median([getattr(p, step) for p in some]):,.1f}" for step in STEPS]
            yield [_range(low, high), f"{len(some)}", *cells]


def _range(low: int, high: int) -> str:
    if high == 1:
        return "none"
    return f"{low:,} and more" if high == _BORDERS[-1] else f"{low:,} to {high - 1:,}"


def _growth_rows(points: Sequence[Point]) -> list[list[str]]:
    later = [p for p in points if p.history]
    rows = []
    for step in STEPS:
        found = slope(later, step)
        asked = f"≤ {MOST_NS_A_TOKEN:g}" if step == "whole" else ""
        rows.append([step, _interval(found), asked, _met(asked, found, MOST_NS_A_TOKEN)])
    return rows


def _seen_rows(run: DirectorRun) -> list[list[str]]:
    rows = []
    for step in STEPS:
        found = times_longer(run, step)
        few, many = (median([getattr(p, step) for p in some]) for some in (run.few, run.many))
        asked = f"≤ {MOST_TIMES:g}" if step in _JUDGED else ""
        met = _met(asked, found, MOST_TIMES)
        rows.append([step, f"{few:,.1f}", f"{many:,.1f}", _interval(found), asked, met])
    return rows


def _tokens_a_message(points: Sequence[Point]) -> float:
    return sum(p.new for p in points) / sum(2 if p.history else 1 for p in points)


def _seed_row(points: Sequence[Point]) -> list[str]:
    long = [p.wall for p in points if p.history >= 4_000]
    q = quartiles(long or [p.wall for p in points])
    return [
        "a chat of 4,000 tokens and more: parse, template, tokenize, match, score",
        f"{q.median / 1e3:.2f} ms ({q.low / 1e3:.2f}-{q.high / 1e3:.2f})",
        "about +10 ms end to end, chats beside completions",
    ]


def _choice_rows(run: ManyEndpoints) -> list[list[str]]:
    rows = [_choice_row(cost, f"three scorers: {cost.name}") for cost in run.triples]
    for row, cost in zip(rows, run.triples, strict=True):
        row[3:] = [f"≤ {MOST_US:g}", _yes_or_no(cost.choose <= MOST_US)]
    return rows + [_choice_row(cost, f"`{cost.name}` alone") for cost in run.scorers]


def _choice_row(cost: Cost, name: str) -> list[str]:
    return [name, f"{cost.choose:.1f}", f"{cost.produce:.1f}" if cost.produce else "", "", ""]


def _met(asked: str, found: Interval, most: float) -> str:
    return _yes_or_no(found.value <= most) if asked else ""


def _yes_or_no(met: bool) -> str:
    return "yes" if met else "**no**"


def _interval(found: Interval) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
