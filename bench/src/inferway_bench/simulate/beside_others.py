"""What simulations say of ours beside the other policies: differences and ratios of seeds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from inferway_bench.policies.catalog import APPROXIMATE, EVENT_DRIVEN, LLM_D, ORACLE, OURS
from inferway_bench.rows import Goal, Row, Run, Value, goal
from inferway_bench.spread import Interval, mean_interval

FEW_SEEDS = 5  # which are measured on real engines
MANY_SEEDS = 10  # from so many on they say how many it takes
_SIGMAS = 1.96  # of a mean, on either side: 95 %

Case = Mapping[str, Row]  # policy -> its row: a trace on a fleet at one load


class Requirement(NamedTuple):
    """A ratio of two policies' figures that is asked for: that of the best of `over` (the one with
    the least mean) divided by that of `under`."""

    what: str
    column: str
    over: tuple[str, ...]
    under: str
    least: float | None = None
    most: float | None = None
    where: Callable[[Row], bool] = lambda row: True  # noqa: ARG005


def _is_hard(row: Row) -> bool:
    """Return whether blocks are named and evicted, and no gateway has sent all that the engines
    hold."""
    is_evicting = row.keys["trace"] in ("mooncake", "agentic@1048576")
    return is_evicting and row.keys["gateways"] != 1


OF_POLICIES = (
    Requirement(
        f"mean TTFT / that of {LLM_D}", "ttft", (OURS,), LLM_D, most=0.75,
        where=lambda row: row.keys["load"] != "50%",
    ),
    Requirement(f"cached tokens / those of the {ORACLE}", "cached", (OURS,), ORACLE, least=0.95),
)  # fmt: skip
OF_FLEETS = (
    Requirement(
        f"p90 TTFT of the best approximate policy / that of {OURS}", "ttft_p90", APPROXIMATE, OURS,
        least=1.5, where=_is_hard,
    ),
    Requirement(
        f"p90 TTFT of the best event-driven policy / that of {OURS}", "ttft_p90", EVENT_DRIVEN,
        OURS, least=1.1, where=_is_hard,
    ),
)  # fmt: skip


def cases(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Return the rows of the table "simulations" by trace, fleet and load."""
    found: dict[object, dict[str, Row]] = {}
    for row in rows:
        if row.table == "simulations":
            key = tuple(row.keys[name] for name in ("trace", "engines", "gateways", "load"))
            found.setdefault(key, {})[str(row.keys["policy"])] = row
    return list(found.values())


def ratio(case: Case, column: str, over: str, under: str) -> Interval | None:
    """Return the mean of the seeds' ratios; None if one of the policies was not simulated."""
    if over not in case or under not in case:
        return None
    pairs = zip(case[over].repeats(column), case[under].repeats(column), strict=True)
    return mean_interval([a / b for a, b in pairs])


def with_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows with the ratio of their p90 to that of ours; of many seeds, also with what
    lies between ours and theirs, in ms of mean TTFT: by all seeds, the range in which 95 of 100
    runs of a few seeds find it, and the number of seeds that show that it is not zero."""
    for case in cases(rows):
        for name, row in case.items():
            values: dict[str, Value] = {"p90_ratio": ratio(case, "ttft_p90", name, OURS)}
            if OURS in case and name != OURS:
                values |= _difference(case[OURS].repeats("ttft"), row.repeats("ttft"))
            yield msgspec.structs.replace(row, values={**row.values, **values})


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Value]:
    if len(ours) < MANY_SEEDS:
        return {}
    less = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, deviation = mean_interval(less), stdev(less)
    half = _SIGMAS * deviation / sqrt(FEW_SEEDS)
    needed = "none"
    if not mean.low <= 0 <= mean.high:
        needed = f"{max(2, ceil((_SIGMAS * deviation / mean.value) ** 2)):,}"
    few = f"{mean.value - half:+,.0f} to {mean.value + half:+,.0f}"
    return {"difference": mean, "few": few, "needed": needed}


def goals(requirements: Sequence[Requirement], run: Run) -> list[Goal]:
    """Judge each ratio that is asked for by its worst case."""
    found = []
    for asked in requirements:
        ratios = [one.value for case in cases(run.rows) if (one := _asked(asked, case)) is not None]
        if ratios:
            worst = max(ratios) if asked.least is None else min(ratios)
            what = f"{OURS}: {asked.what}, the worst of {len(ratios)}"
            found.append(goal(what, worst, most=asked.most, least=asked.least))
    return found


def _asked(asked: Requirement, case: Case) -> Interval | None:
    there = [name for name in asked.over if name in case]
    best = min(there, key=lambda name: fmean(case[name].repeats(asked.column)), default="")
    if not best or not asked.where(case[best]):
        return None
    return ratio(case, asked.column, best, asked.under)


def losses(run: Run) -> list[str]:
    """Return where the mean TTFT of another policy is shorter than that of ours, beyond chance."""
    found = []
    for case in cases(run.rows):
        for other, row in case.items():
            times = ratio(case, "ttft", OURS, other) if other != OURS else None
            if times is not None and times.low > 1:
                found.append(
                    "{trace}, gateways: {gateways}, load: {load}".format_map(row.keys)
                    + f": the mean TTFT of {OURS} is {times.shown('{:.3f}')} times that of "
                    f"{'the ' * (other == ORACLE)}{other}"
                )
    return found
