"""What simulations say of one policy beside others: ratios of the same seeds. Pure.

Each row of the table "simulations" gets its figures divided by those of ours in the same case: the
same trace on the same fleet at the same load. Rows of several gateways are also divided by what one
gateway does, and by the oracle. Requirements and losses are read from these columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from inferway_bench.policies.catalog import (
    APPROXIMATE,
    EVENT_DRIVEN,
    LEARNED,
    LLM_D,
    ORACLE,
    OURS,
    alone,
)
from inferway_bench.rows import Goal, Key, Row, Run, Value, goal
from inferway_bench.spread import Interval, mean_interval

COMPARED = ("ttft", "ttft_p50", "ttft_p90", "itl_p99", "cached", "computed")
SAID = {"ttft": "mean TTFT", "ttft_p50": "p50 TTFT", "ttft_p90": "p90 TTFT"}
SAID_OF_LEGS = {"ttft_p90": "p90 TTFT", "itl_p99": "inter-token p99"}
_WORKERS, _PEERS = f"{OURS}+workers", f"{OURS}+peers"
_LONG_PROMPTS = "mooncake"  # the trace whose prompts are of 12,000 tokens, whatever the caches


class Requirement(NamedTuple):
    """A bound of a column, for the worst of the rows that `where` keeps."""

    what: str
    column: str
    where: Callable[[Row], bool]
    least: float | None = None
    most: float | None = None


def _of(*policies: str) -> Callable[[Row], bool]:
    return lambda row: row.keys["policy"] in policies


def _is_hard(row: Row) -> bool:
    """Return whether blocks are named and evicted, and no gateway has sent all that the engines
    hold."""
    is_evicting = row.keys["trace"] in ("mooncake", "agentic@1048576")
    return is_evicting and row.keys["gateways"] != 1


OF_POLICIES = (
    Requirement(
        f"mean TTFT of {LLM_D} / that of {OURS}", "ttft_ratio",
        lambda row: row.keys["policy"] == LLM_D and row.keys["load"] != "50%", least=1.33,
    ),
    Requirement(
        f"cached tokens of the {ORACLE} / those of {OURS}", "cached_ratio", _of(ORACLE), most=1.05
    ),
)  # fmt: skip
OF_FLEETS = tuple(
    Requirement(
        f"p90 TTFT of the best {kind} policy / that of {OURS}", "ttft_p90_ratio",
        lambda row, names=names: row.keys["policy"] in names and _is_hard(row), least=least,  # type: ignore[misc]
    )
    for kind, names, least in (
        ("approximate", APPROXIMATE, 1.5), ("event-driven", EVENT_DRIVEN, 1.1),
    )
)  # fmt: skip
OF_GATEWAYS = (
    Requirement("p90 TTFT of workers / that of one process", "one_ratio", _of(_WORKERS), most=1.01),
    Requirement(
        f"mean TTFT of gateways that share all, with prompts of 12,000 tokens, / the {ORACLE}'s",
        "oracle_ratio",
        lambda row: (
            str(row.keys["policy"]).startswith(_PEERS)
            and str(row.keys["trace"]).startswith(_LONG_PROMPTS)
        ),
        most=1.05,
    ),
)
OF_LEGS = tuple(
    Requirement(
        f"{said} of another policy / that of {LEARNED}", f"{name}_ratio",
        lambda row: row.keys["policy"] != LEARNED, least=1.0,
    )
    for name, said in SAID_OF_LEGS.items()
)  # fmt: skip

_Case = frozenset[tuple[str, Key]]


def with_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of a run, with the ratios."""
    found = {_case(row.keys): row for row in rows if row.table == "simulations"}
    for row in rows:
        values: dict[str, Value] = {}  # a ratio, or None
        if row.table == "simulations":
            ours = found.get(
                _case(row.keys, policy=OURS), found.get(_case(row.keys, policy=LEARNED))
            )
            values = {f"{name}_ratio": ratio(row, ours, name) for name in COMPARED}
            if row.keys["gateways"] != 1:
                one = _case(row.keys, gateways=1, policy=alone(str(row.keys["policy"])))
                oracle = found.get(_case(row.keys, policy=ORACLE))
                values["one_ratio"] = ratio(row, found.get(one), "ttft_p90")
                values["oracle_ratio"] = ratio(row, oracle, "ttft")
        known = {name: value for name, value in values.items() if value is not None}
        yield msgspec.structs.replace(row, values={**row.values, **known})


def _case(keys: Mapping[str, Key], **others: Key) -> _Case:
    return frozenset({**keys, **others}.items())


def ratio(above: Row, below: Row | None, column: str) -> Interval | None:
    """Return the mean of the seeds' ratios; None without one of the rows, or below zero's."""
    if below is None or not below.values.get(column) or not above.values.get(column):
        return None
    pairs = list(zip(above.repeats(column), below.repeats(column), strict=True))
    return mean_interval([a / b for a, b in pairs]) if all(b for _, b in pairs) else None


def goals(requirements: Sequence[Requirement], run: Run) -> list[Goal]:
    """Judge each requirement by its worst row."""
    found = []
    for asked in requirements:
        rows = [row for row in run.select("simulations") if asked.where(row)]
        ratios = [row.median(asked.column) for row in rows if row.values.get(asked.column)]
        if ratios:
            worst = max(ratios) if asked.least is None else min(ratios)
            what = f"{asked.what}, the worst of {len(ratios)}"
            found.append(goal(what, worst, most=asked.most, least=asked.least, form="{:,.3f}"))
    return found


def losses(said: Mapping[str, str], run: Run) -> list[str]:
    """Return where a figure of another policy is less than that of ours, beyond chance."""
    return [
        f"{_words(row)}: the {words} of {row.keys['policy']} is {times.shown('{:.3f}')} times ours"
        for row in run.select("simulations")
        for column, words in said.items()
        if isinstance(times := row.values.get(f"{column}_ratio"), Interval) and times.high < 1
    ]


def _words(row: Row) -> str:
    others = {key: value for key, value in row.keys.items() if key not in ("policy", "engines")}
    trace = others.pop("trace")
    return ", ".join([str(trace), *(f"{key}: {value}" for key, value in others.items())])
