"""What simulations say of ours beside the other policies: differences and ratios of seeds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from inferway_bench.policies.catalog import (
    APPROXIMATE,
    BEST_WEIGHTED,
    BLIND,
    DEAF,
    EVENT_DRIVEN,
    LLM_D,
    ORACLE,
    OURS,
)
from inferway_bench.rows import Goal, Key, Row, Run, Value
from inferway_bench.spread import Interval, mean_interval

FEW_SEEDS = 5  # which are measured on real engines
MANY_SEEDS = 10  # from so many on they say how many it takes
NO_PRESSURE = 8_388_608  # tokens of a cache: more than a run's prompts have
_SIGMAS = 1.96  # of a mean, on either side: 95 %


class Requirement(NamedTuple):
    """A ratio of two policies' figures that is asked for: that of the best of `over` (the one with
    the least mean) over the best of `under`."""

    what: str
    column: str
    over: tuple[str, ...]
    under: tuple[str, ...]
    least: float | None = None
    most: float | None = None
    where: Callable[[Row], bool] = lambda row: True  # noqa: ARG005

    @property
    def asked(self) -> str:
        return f"≤ {self.most:g}" if self.least is None else f"≥ {self.least:g}"

    def is_met(self, ratio: float) -> bool:
        """Return whether the ratio is as asked."""
        return (self.least is None or ratio >= self.least) and (
            self.most is None or ratio <= self.most
        )


def _is_hard(row: Row) -> bool:
    """Whether blocks are named and evicted, and no gateway has sent all that the engines hold."""
    is_named = row.keys["workload"] in ("mooncake", "agentic")
    return is_named and int(row.keys["cache"]) < NO_PRESSURE and int(row.keys["gateways"]) > 1


BESIDE_WEIGHTED = (
    Requirement(
        f"mean TTFT / that of {BEST_WEIGHTED}", "ttft", (OURS,), (BEST_WEIGHTED,), most=1.02
    ),
    Requirement(
        f"mean TTFT / that of {LLM_D}",
        "ttft",
        (OURS,),
        (LLM_D,),
        most=0.75,
        where=lambda row: float(str(row.keys["load"]).rstrip("%")) >= 75,
    ),
    Requirement(f"cached tokens / those of the {ORACLE}", "cached", (OURS,), (ORACLE,), least=0.95),
)
BESIDE_PEERS = (
    Requirement(
        f"p90 TTFT of the best approximate policy / that of {OURS}",
        "ttft_p90", APPROXIMATE, (OURS,), least=1.5, where=_is_hard,
    ),
    Requirement(
        f"p90 TTFT of the best event-driven policy / that of {OURS}",
        "ttft_p90", EVENT_DRIVEN, (OURS,), least=1.1, where=_is_hard,
    ),
)  # fmt: skip
KINDS = {
    "load or session only": BLIND,
    "approximate": APPROXIMATE,
    "event-driven": EVENT_DRIVEN,
    DEAF: (DEAF,),
}


class CaseRows(NamedTuple):
    """A workload on a fleet at one load: the rows of its policies."""

    setting: str
    load: str
    rows: dict[str, Row]  # policy -> its row

    def ratio(self, column: str, over: str, under: str) -> Interval | None:
        """Return the mean of the seeds' ratios; None if one of the policies was not simulated."""
        if over not in self.rows or under not in self.rows:
            return None
        pairs = zip(self.rows[over].repeats(column), self.rows[under].repeats(column), strict=True)
        return mean_interval([a / b for a, b in pairs])

    def best(self, column: str, names: Sequence[str]) -> str:
        """Return the policy of `names` with the least mean; an empty text if there is none."""
        there = [name for name in names if name in self.rows]
        return min(there, key=lambda name: fmean(self.rows[name].repeats(column)), default="")


def cases(rows: Sequence[Row]) -> list[CaseRows]:
    """Return the rows of the table "simulations" by setting and load."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row.table == "simulations":
            of_case = found.setdefault((str(row.keys["setting"]), str(row.keys["load"])), {})
            of_case[str(row.keys["policy"])] = row
    return [CaseRows(*key, of_case) for key, of_case in found.items()]


def with_differences(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, those of many seeds with what lies between ours and theirs: in ms of mean
    TTFT by all seeds, where 95 of 100 runs of a few seeds find it, and the number of seeds that
    show that it is not zero."""
    ours = {(case.setting, case.load): case.rows.get(OURS) for case in cases(rows)}
    return [
        _compared(row, ours.get((str(row.keys["setting"]), str(row.keys["load"])))) for row in rows
    ]


def _compared(row: Row, ours: Row | None) -> Row:
    theirs = row.repeats("ttft")
    if ours is None or row.table != "simulations" or row is ours or len(theirs) < MANY_SEEDS:
        return row
    less = [a - b for a, b in zip(ours.repeats("ttft"), theirs, strict=True)]
    mean, deviation = mean_interval(less), stdev(less)
    half = _SIGMAS * deviation / sqrt(FEW_SEEDS)
    values = {
        "difference": mean,
        "few": f"{mean.value - half:+,.0f} to {mean.value + half:+,.0f}",
        "needed": _needed(mean, deviation),
    }
    return msgspec.structs.replace(row, values={**row.values, **values})


def _needed(mean: Interval, deviation: float) -> str:
    """How many seeds it takes until their 95 % interval is off zero, as a rule."""
    if mean.low <= 0 <= mean.high:
        return "none"
    return f"{max(2, ceil((_SIGMAS * deviation / mean.value) ** 2)):,}"


def highest(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield each setting at its highest load, which is its last one, as the table "highest"."""
    caches: dict[Key, Key] = {}  # workload -> that of its first setting
    for case in {case.setting: case for case in cases(rows)}.values():
        for name, row in case.rows.items():
            cache = row.keys["cache"]
            is_first = caches.setdefault(row.keys["workload"], cache) == cache
            values = {
                "ttft": row.values["ttft"],
                "cached": row.values["cached"],
                "p90_ratio": case.ratio("ttft_p90", name, OURS),
            }
            keys = {
                **row.keys,
                "trace": f"{row.keys['workload']}\n{cache:,}",
                "caches": "" if is_first else f", with caches of {cache:,} tokens",
            }
            yield Row("highest", keys, values, is_ours=row.is_ours)


def gains(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield by how much the best policy of each kind is behind ours, in p90 TTFT at the highest
    load, as the table "gains"."""
    for case in {case.setting: case for case in cases(rows)}.values():
        if OURS not in case.rows:
            continue
        values: dict[str, Value] = {
            "reusable": fmean(case.rows[case.best("ttft", (ORACLE,)) or OURS].repeats("cached"))
        }
        for kind, names in KINDS.items():
            best = case.best("ttft_p90", names)
            ratio = case.ratio("ttft_p90", best, OURS)
            if ratio is not None:
                values[kind] = ratio.shown() + f" {best}" * (best != DEAF)
        keys = {key: case.rows[OURS].keys[key] for key in ("workload", "cache", "gateways")}
        yield Row("gains", keys, values)


def ratios(rows: Sequence[Row], requirements: Sequence[Requirement]) -> Iterator[Row]:
    """Yield every ratio that is asked for, also with the oracle in the place of ours, as the table
    "ratios"."""
    for case in cases(rows):
        for asked in requirements:
            if not all(map(asked.where, case.rows.values())):
                continue
            over, under = (case.best(asked.column, names) for names in (asked.over, asked.under))
            ratio = case.ratio(asked.column, over, under)
            if ratio is None:
                continue
            with_oracle = [ORACLE if name == OURS else name for name in (over, under)]
            best = over if len(asked.over) > 1 else ""
            keys = {
                "setting": case.setting, "load": case.load, "ratio": asked.what, "best": best,
                "required": asked.asked,
            }  # fmt: skip
            oracle = case.ratio(asked.column, *with_oracle)
            values = {"measured": ratio, "oracle": None if oracle is None else oracle.value}
            yield Row("ratios", keys, values)


def ratio_goals(run: Run) -> list[Goal]:
    """Return a requirement for each kind of ratio: how many hold, and the range of what was
    found."""
    goals = []
    for asked in (*BESIDE_WEIGHTED, *BESIDE_PEERS):
        found = [row.repeats("measured")[0] for row in run.select("ratios", ratio=asked.what)]
        if found:
            met = sum(asked.is_met(ratio) for ratio in found)
            shown = f"{min(found):.2f} to {max(found):.2f}; {met} of {len(found)} met"
            goals.append(Goal(f"{OURS}: {asked.what}", asked.asked, shown, met == len(found)))
    return goals


def losses(run: Run) -> list[str]:
    """Return where the mean TTFT of another policy is shorter than that of ours, beyond chance."""
    found = []
    for case in cases(run.rows):
        for other in case.rows:
            times = case.ratio("ttft", OURS, other) if other != OURS else None
            if times is not None and times.low > 1:
                found.append(
                    f"{case.setting}, {case.load}: the mean TTFT of {OURS} is "
                    f"{times.shown('{:.3f}')} times that of {'the ' * (other == ORACLE)}{other}"
                )
    return found
