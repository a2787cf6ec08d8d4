"""What simulations say of several gateways that tell each other what they do: beside one gateway
that does it all, and beside the oracle. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from inferway_bench.policies.catalog import ORACLE, OURS, alone
from inferway_bench.rows import Goal, Key, Row, Run, goal
from inferway_bench.spread import Interval, mean_interval

WORKERS = f"{OURS}+workers"
LONG_PROMPTS = "mooncake"  # the trace whose prompts are of 12,000 tokens, whatever the caches
_CASE = ("trace", "engines", "gateways", "load", "policy")
_FORM = "{:,.3f}"


def with_one(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows, those of several gateways with two more figures: their p90 TTFT divided by
    that of the same policy with one gateway, and their mean TTFT divided by the oracle's."""
    found = {_case(row.keys): row for row in rows if row.table == "simulations"}
    for row in rows:
        values = dict(row.values)
        if row.table == "simulations" and row.keys["gateways"] != 1:
            policy = alone(str(row.keys["policy"]))
            one = found.get(_case({**row.keys, "gateways": 1, "policy": policy}))
            oracle = found.get(_case({**row.keys, "policy": ORACLE}))
            values["one_ratio"] = _ratio(row, one, "ttft_p90")
            values["oracle_ratio"] = _ratio(row, oracle, "ttft")
        yield msgspec.structs.replace(row, values=values)


def goals(run: Run) -> list[Goal]:
    """Judge workers beside one process, and gateways that share all beside the oracle, by the worst
    of each."""
    rows = [row for row in run.rows if row.table == "simulations" and row.keys["gateways"] != 1]
    workers = [row for row in rows if row.keys["policy"] == WORKERS]
    peers = [
        row
        for row in rows
        if str(row.keys["policy"]).startswith(f"{OURS}+peers")
        and str(row.keys["trace"]).startswith(LONG_PROMPTS)
    ]
    found = []
    if ratios := _found(workers, "one_ratio"):
        what = f"{OURS}: p90 TTFT of workers / that of one process, the worst of {len(ratios)}"
        found.append(goal(what, max(ratios), most=1.01, form=_FORM))
    if ratios := _found(peers, "oracle_ratio"):
        what = (
            f"{OURS}: mean TTFT of gateways that share all, with prompts of 12,000 tokens, / the "
            f"{ORACLE}'s, the worst of {len(ratios)}"
        )
        found.append(goal(what, max(ratios), most=1.05, form=_FORM))
    return found


def _case(keys: Mapping[str, Key]) -> tuple[Key, ...]:
    return tuple(keys[name] for name in _CASE)


def _ratio(row: Row, other: Row | None, column: str) -> Interval | None:
    if other is None:
        return None
    pairs = zip(row.repeats(column), other.repeats(column), strict=True)
    return mean_interval([a / b for a, b in pairs])


def _found(rows: Sequence[Row], column: str) -> list[float]:
    return [row.median(column) for row in rows if row.values.get(column) is not None]
