"""A run of `inferway bench many-seeds` as tables and a picture."""

from __future__ import annotations

from collections.abc import Iterator

from inferway_bench.many_seeds.results import OURS, ManySeedsRun
from inferway_bench.plotting import Line, Panel, Picture
from inferway_bench.policies.fleet_words import engines_line
from inferway_bench.policies.plot import STYLES
from inferway_bench.sheets import Sheet, told_by

_HEAD = ("policy", "TTFT", "ITL", "cached", f"{OURS} minus it")


def about(run: ManySeedsRun) -> list[str]:
    return [f"- {note}" for note in notes(run)]


def notes(run: ManySeedsRun) -> list[str]:
    plan, chats = run.plan.chats, run.plan.chats.chats
    found = "at which round-robin's mean TTFT doubles in virtual time"
    if plan.rate:
        found = "given with --rate"
    return [
        f"{engines_line(run.plan.fleet)}; the constants are fitted by `validate --real` "
        f"({run.plan.fitted})",
        f"the chats of `peers --real`: {chats.sessions} of {chats.turns} turns with "
        f"{chats.systems} system prompts, {chats.requests} requests, {chats.answer_tokens} tokens "
        f"an answer; {plan.seeds} seeds",
        f"loads are shares of {run.rate:.3g} requests/s, {found}",
        f"{OURS} is Inferway's default policy; the oracle knows what each engine holds and has to "
        "do, and sends each request where its first token comes soonest",
    ]


def sheets(run: ManySeedsRun) -> Iterator[Sheet]:
    head = (*_HEAD, f"by {run.plan.few} seeds", "seeds needed")
    for load in run.loads:
        title = (
            f"{load:.0%}, {load * run.rate:.3g} requests/s: mean TTFT and ITL in ms; difference in "
            f"mean TTFT by {run.plan.chats.seeds} seeds (95 %), the range in which 95 of 100 runs "
            f"of {run.plan.few} seeds find it, and how many seeds show that it is not zero"
        )
        yield Sheet(title, head, [_row(run, policy, load) for policy in run.plan.policies])


def pictures(run: ManySeedsRun) -> list[Picture]:
    """Mean TTFT against the rate, and ours less the others'."""
    rates = [load * run.rate for load in run.loads]
    means = [
        Line(policy, rates, [run.ttft(policy, load).times(1e3) for load in run.loads], style)
        for policy, style in _styles(run)
    ]
    less = [
        Line(policy, rates, [run.difference(policy, ld).mean.times(1e3) for ld in run.loads], style)
        for policy, style in _styles(run)  # ours is the line at 0: colours go by place
    ]
    panels = [
        Panel("requests per second", "mean time to first token, ms", means),
        Panel("requests per second", f"{OURS} minus it, ms", less),
    ]
    title = f"{run.plan.chats.engines.about}; in virtual time, {run.plan.chats.seeds} seeds"
    return [Picture("many_seeds", title, [panels], one_legend=True)]


def _styles(run: ManySeedsRun) -> Iterator[tuple[str, dict[str, object]]]:
    return ((policy, STYLES.get(policy, {})) for policy in run.plan.policies)


def _row(run: ManySeedsRun, policy: str, load: float) -> list[str]:
    cells = run.select(policy, load)
    token = sum(cell.token_seconds for cell in cells) / len(cells)
    row = [
        policy,
        f"{run.ttft(policy, load).value * 1e3:,.0f}",
        f"{token * 1e3:.0f}",
        f"{run.cached(policy, load):.1%}",
    ]
    if policy == OURS:
        return [*row, "", "", ""]
    less = run.difference(policy, load)
    few = less.of(run.plan.few).times(1e3)
    return [
        *row,
        less.mean.times(1e3).shown("{:+,.0f}"),
        f"{few.low:+,.0f} to {few.high:+,.0f}",
        f"{less.seeds:,}" if less.seeds else "none",
    ]


MANY_SEEDS = told_by(
    "many-seeds", ManySeedsRun, about, sheets, notes=notes, pictures=pictures,
    question="which differences between policies on two real engines exceed chance, and how many "
    "seeds show them, in virtual time",
    takes="2 minutes",
)  # fmt: skip
