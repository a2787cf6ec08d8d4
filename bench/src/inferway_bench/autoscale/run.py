"""One trace: the fewest engines that hold the SLO, by who knows what will come, and by who does
not.

oracle      a number for each window of time, from the work that will come in it: engines are as
            busy as can be with the SLO held (found by bisection), all day alike; then it does
            without one more engine in each of some windows, where the SLO is held all the same
slo         what inferway_engines_wanted says, by a HorizontalPodAutoscaler
slo, newest the same; the newest engine goes, and hands over nothing
in flight   requests in flight for each engine, by a HorizontalPodAutoscaler; how many is found by
            bisection, as who could try this very day would
fixed       the same number all day: the least that holds the SLO

All hold it if the share of requests, of those that count, is reached in the whole day.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from inferway.model import Column
from inferway.scheduling.expected_ttft.engines_wanted import Slo
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway_bench.autoscale.plan import AutoscalePlan, Setup
from inferway_bench.policies.catalog import OURS, policy_named
from inferway_bench.policies.elastic import ElasticSimulation, Size
from inferway_bench.policies.gateway import Gateway
from inferway_bench.policies.scaling import (
    Elastic,
    Foreseen,
    Forever,
    ForSlo,
    HorizontalAutoscaler,
    InFlight,
    Signal,
)
from inferway_bench.processes import BenchError
from inferway_bench.rows import Key, Row, Value

ORACLE, SLO, NEWEST, IN_FLIGHT, FIXED = "oracle", "slo", "slo, newest", "in flight", "fixed"
_STEP = 60.0  # seconds of a point in the picture
# How busy the oracle's engines are; less where caches, and not work, make how many are needed.
_MOST_BUSY, _LEAST_BUSY, _IDLE = 1.1, 0.4, 0.02
_MOST_IN_FLIGHT = 256.0  # for each engine

MakeSignal = Callable[[Gateway], Signal]


class Day(msgspec.Struct, frozen=True):
    """What became of one run."""

    in_time: float  # share of requests
    engine_hours: float
    started: int
    handed_over: int  # tokens
    cached: float  # share of prompt tokens
    ttft_p50: float
    ttft_p90: float
    engines: list[float]  # by minute
    late: list[float]


@dataclass(frozen=True)
class Trial:
    """Runs one trace with one signal after another."""

    plan: AutoscalePlan
    setup: Setup
    first: int

    def day(self, make: MakeSignal, elastic: Elastic | None = None, first: int = 0) -> Day:
        setup, plan = self.setup, self.plan
        run = ElasticSimulation(
            *(setup.workload, setup.rate, setup.fleet, policy_named(OURS), plan.seed),
            elastic or setup.elastic,
            first or self.first,
            make,
        )
        outcome = run.run()
        since, end = plan.warm_up * 60, setup.seconds
        counts = (outcome.arrived >= since) & (outcome.arrived <= end)
        ttft = outcome.ttft[counts]
        prompts = setup.workload.columns.prompt_tokens[counts].sum()
        paid = [size.paid for size in run.sizes if since <= size.at < end]
        sync = setup.elastic.sync_seconds
        p50, p90 = np.percentile(ttft, (50, 90)).tolist()
        late = (outcome.ttft > setup.goal_seconds).astype(np.float64)
        return Day(
            in_time=float((ttft <= setup.goal_seconds).mean()),
            engine_hours=sum(paid) * sync / 3600,
            started=run.num_started,
            handed_over=run.handed_over,
            cached=float(outcome.cached_tokens[counts].sum() / prompts),
            ttft_p50=p50,
            ttft_p90=p90,
            engines=_by_minute(*_sizes(run.sizes), end),
            late=_by_minute(outcome.arrived, late, end),
        )

    def is_held(self, day: Day) -> bool:
        return day.in_time >= self.plan.share

    def work(self) -> list[float]:
        """The engines that are kept busy by what comes in each window, on a fleet that is large."""
        setup, spec = self.setup, self.setup.fleet.engine
        most = self.plan.most
        run = ElasticSimulation(
            *(setup.workload, setup.rate, setup.fleet, policy_named(OURS), self.plan.seed),
            msgspec.structs.replace(setup.elastic, hand_over=False),
            most,
            lambda _: Forever(most),
        )
        outcome = run.run()
        columns = setup.workload.columns
        uncached = (columns.prompt_tokens - outcome.cached_tokens).astype(np.float64)
        outputs = columns.output_tokens.astype(np.float64)
        seconds = uncached * spec.prefill_seconds + outputs * spec.decode_seconds
        return _in_windows(outcome.arrived, seconds, self.plan.window_seconds, setup.seconds)

    def oracle(self, work: Sequence[float]) -> tuple[Day, list[int]]:
        """Return the oracle's day, and its numbers."""
        found: dict[tuple[int, ...], Day] = {}

        def try_out(numbers: Sequence[int]) -> Day:
            key = tuple(numbers)
            if key not in found:
                foreseen = Foreseen(numbers, self.plan.window_seconds, self._ahead)
                found[key] = self.day(lambda _: foreseen, first=numbers[0])
            return found[key]

        def holds(busy: float) -> bool:
            return self.is_held(try_out(self.numbers(work, busy)))

        low, high = (_LEAST_BUSY, _MOST_BUSY) if holds(_LEAST_BUSY) else (_IDLE, _LEAST_BUSY)
        busy = _greatest(holds, low, high, self.plan.bisections)
        numbers = self.numbers(work, busy)
        if not self.is_held(try_out(numbers)):
            raise BenchError(
                f"{self.setup.trace}: {self.plan.most} engines do not hold the SLO; fix: "
                "--most, or fewer --requests"
            )
        for window in self._slackest(work, numbers, busy)[: self.plan.refine]:
            fewer = [*numbers]
            fewer[window] -= 1
            if self.is_held(try_out(fewer)):
                numbers = fewer
        return try_out(numbers), numbers

    @property
    def _ahead(self) -> float:
        return self.setup.elastic.start_seconds + self.setup.elastic.sync_seconds

    def numbers(self, work: Sequence[float], busy: float) -> list[int]:
        most = self.plan.most
        return [min(max(1, math.ceil(each / busy)), most) for each in work]

    def _slackest(self, work: Sequence[float], numbers: Sequence[int], busy: float) -> list[int]:
        """The windows with the most that is not needed first; those that do not count are left
        out."""
        first = int(self.plan.warm_up * 60 / self.plan.window_seconds)
        windows = [w for w in range(first, len(numbers)) if numbers[w] > 1]
        return sorted(windows, key=lambda w: work[w] / busy / numbers[w])

    def for_slo(self, elastic: Elastic) -> Day:
        """Return the day of the product's own signal."""
        plan, goal = self.plan, self.setup.goal_seconds
        slo = Slo(goal * 1000, None, plan.share, elastic.start_seconds)

        def make(gateway: Gateway) -> Signal:
            plugins = [p for p in gateway.policy.producers if isinstance(p, ExpectedTtft)]
            return ForSlo(plugins[0], slo, HorizontalAutoscaler(elastic))

        return self.day(make, elastic)

    def in_flight(self) -> Day:
        """Return the day with as many requests in flight for each engine as hold the SLO."""
        elastic = self.setup.elastic

        def day(each: float) -> Day:
            return self.day(lambda _: InFlight(each, HorizontalAutoscaler(elastic)))

        steps = self.plan.bisections
        most = _greatest(
            lambda x: self.is_held(day(math.exp(x))), 0.0, math.log(_MOST_IN_FLIGHT), steps
        )
        return day(math.exp(most))

    def fixed(self) -> Day:
        """Return the day with the least number of engines, always the same, that holds the SLO."""
        low, high = 1, self.plan.most
        while low < high:
            middle = (low + high) // 2
            if self.is_held(self._always(middle)):
                high = middle
            else:
                low = middle + 1
        return self._always(low)

    def _always(self, number: int) -> Day:
        return self.day(lambda _: Forever(number), first=number)


def of_trace(plan: AutoscalePlan, trace: str) -> list[Row]:
    """Return a row for each way to scale, and their engines by the minute, in a process of the
    pool."""
    setup = plan.setup(trace)
    trial = Trial(plan, setup, plan.most)
    work = trial.work()
    trial = Trial(plan, setup, trial.numbers(work, 0.5)[0])
    oracle, _ = trial.oracle(work)
    newest = msgspec.structs.replace(setup.elastic, least_worth=False, hand_over=False)
    days = {
        ORACLE: oracle,
        SLO: trial.for_slo(setup.elastic),
        NEWEST: trial.for_slo(newest),
    }
    if plan.beside:
        days |= {IN_FLIGHT: trial.in_flight(), FIXED: trial.fixed()}
    about: dict[str, Value] = {
        "goal": setup.goal_seconds,
        "requests": float(len(setup.workload.requests)),
        "busiest": max(work) / (sum(work) / len(work)),
        "about": f"{setup.workload.about}; {setup.fleet.engine.step_about}",
    }
    rows = [Row("traces", {"trace": trace}, about)]
    for name, day in days.items():
        rows += _rows(trace, name, day, oracle)
    return rows


def _rows(trace: str, name: str, day: Day, oracle: Day) -> list[Row]:
    keys: dict[str, Key] = {"trace": trace, "scaling": name}
    values: dict[str, Value] = {
        "in_time": day.in_time * 100,
        "engine_hours": day.engine_hours,
        "ratio": day.engine_hours / oracle.engine_hours,
        "started": float(day.started),
        "cached": day.cached * 100,
        "ttft_p50": day.ttft_p50 * 1e3,
        "ttft_p90": day.ttft_p90 * 1e3,
        "handed_over": float(day.handed_over),
    }
    is_ours = name in (SLO, NEWEST)
    minutes = [
        Row(
            "minutes", {**keys, "minute": minute}, {"engines": engines, "late": late * 100}, is_ours
        )
        for minute, (engines, late) in enumerate(zip(day.engines, day.late, strict=True))
    ]
    return [Row("days", keys, values, is_ours), *minutes]


def _greatest(holds: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """Return the greatest value, as near as so many steps come to it, that holds; the first is
    taken to."""
    for _ in range(steps):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _sizes(sizes: Sequence[Size]) -> tuple[Column, Column]:
    at, serving = np.array([(size.at, size.serving) for size in sizes], float).T
    return at, serving


def _in_windows(arrived: Column, seconds: Column, window: float, end: float) -> list[float]:
    """Return the sum of `seconds` by the window that each request arrived in, a second of it."""
    number = math.ceil(end / window)
    there = arrived < end
    places = (arrived[there] / window).astype(np.intp)
    sums = np.bincount(places, weights=seconds[there], minlength=number)
    return [float(each) / window for each in sums]


def _by_minute(at: Column, values: Column, end: float) -> list[float]:
    """Return the mean of the values in each minute; 0 where there is none."""
    number = math.ceil(end / _STEP)
    there = at < end
    places = (at[there] / _STEP).astype(np.intp)
    counts = np.bincount(places, minlength=number)
    sums = np.bincount(places, weights=values[there], minlength=number)
    return [float(each) for each in sums / np.maximum(counts, 1)]
