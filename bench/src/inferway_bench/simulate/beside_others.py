"""What simulations say of ours beside the other policies: differences and ratios of seeds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from inferway_bench.policies.catalog import (
    APPROXIMATE,
    BLIND,
    DEAF,
    EVENT_DRIVEN,
    LLM_D,
    ORACLE,
    OURS,
)
from inferway_bench.rows import Goal, Row, Run, Value, goal
from inferway_bench.spread import Interval, mean_interval

FEW_SEEDS = 5  # which are measured on real engines
MANY_SEEDS = 10  # from so many on they say how many it takes
_SIGMAS = 1.96  # of a mean, on either side: 95 %
KINDS = {
    "load or session only": BLIND,
    "approximate": APPROXIMATE,
    "event-driven": EVENT_DRIVEN,
    DEAF: (DEAF,),
}

Case = Mapping[str, Row]  # policy -> its row: a trace on a fleet at one load


class Requirement(NamedTuple):
    """A ratio of two policies' figures that is asked for: that of the best of `over` (the one with
    the least mean) divided by that of the best of `under`."""

    what: str
    column: str
    over: tuple[str, ...]
    under: tuple[str, ...]
    least: float | None = None
    most: float | None = None
    where: Callable[[Row], bool] = lambda row: True  # noqa: ARG005


def _is_hard(row: Row) -> bool:
    """Whether blocks are named and evicted, and no gateway has sent all that the engines hold."""
    is_evicting = row.keys["trace"] in ("mooncake", "agentic@1048576")
    return is_evicting and row.keys["gateways"] != 1


BESIDE_LLM_D = (
    Requirement(
        f"mean TTFT / that of {LLM_D}", "ttft", (OURS,), (LLM_D,), most=0.75,
        where=lambda row: row.keys["load"] != "50%",
    ),
    Requirement(
        f"cached tokens / those of the {ORACLE}", "cached", (OURS,), (ORACLE,), least=0.95
    ),
)  # fmt: skip
BESIDE_PEERS = (
    Requirement(
        f"p90 TTFT of the best approximate policy / that of {OURS}", "ttft_p90", APPROXIMATE,
        (OURS,), least=1.5, where=_is_hard,
    ),
    Requirement(
        f"p90 TTFT of the best event-driven policy / that of {OURS}", "ttft_p90", EVENT_DRIVEN,
        (OURS,), least=1.1, where=_is_hard,
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


def best(case: Case, column: str, names: Sequence[str]) -> str:
    """Return the policy of `names` with the least mean; an empty text if none was simulated."""
    there = [name for name in names if name in case]
    return min(there, key=lambda name: fmean(case[name].repeats(column)), default="")


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
    is_seen = not mean.low <= 0 <= mean.high
    return {
        "difference": mean,
        "few": f"{mean.value - half:+,.0f} to {mean.value + half:+,.0f}",
        "needed": f"{max(2, ceil((_SIGMAS * deviation / mean.value) ** 2)):,}"
        if is_seen
        else "none",
    }


def gains(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield by how much the best policy of each kind is behind ours in p90 TTFT, as the table
    "gains"."""
    for case in cases(rows):
        full = case.get(ORACLE) or case.get(OURS)
        if full is None:
            continue
        values: dict[str, Value] = {"reusable": fmean(full.repeats("cached"))}
        for kind, names in KINDS.items():
            name = best(case, "ttft_p90", names)
            found = ratio(case, "ttft_p90", name, OURS)
            values[kind] = found and f"{found.shown()} {name}"
        yield Row("gains", full.keys, values)


def ratios(rows: Sequence[Row], requirements: Sequence[Requirement]) -> Iterator[Row]:
    """Yield every ratio that is asked for, also with the oracle in the place of ours, as the table
    "ratios"."""
    for case in cases(rows):
        for asked in requirements:
            over, under = (best(case, asked.column, names) for names in (asked.over, asked.under))
            measured = ratio(case, asked.column, over, under)
            if measured is None or not asked.where(case[over]):
                continue
            with_oracle = [ORACLE if name == OURS else name for name in (over, under)]
            keys = {**case[over].keys, "ratio": asked.what, "best": over}
            oracle = ratio(case, asked.column, *with_oracle)
            yield Row("ratios", keys, {"measured": measured, "oracle": oracle and oracle.value})


def ratio_goals(run: Run) -> list[Goal]:
    """Return a requirement for each kind of ratio, which the worst of all has to meet."""
    goals = []
    for asked in (*BESIDE_LLM_D, *BESIDE_PEERS):
        found = [row.median("measured") for row in run.select("ratios", ratio=asked.what)]
        if found:
            worst = max(found) if asked.least is None else min(found)
            what = f"{OURS}: {asked.what}, the worst of {len(found)}"
            goals.append(goal(what, worst, most=asked.most, least=asked.least))
    return goals


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
