"""The number of engines that hold the SLO, from what was asked of late (`demand`) and what it costs
(`costs`).

Requests come at r a millisecond, as they are expected to in a while: the line through the last
ten minutes, of which newer ones count more, with as much of its slope as is beyond chance. Each
keeps an engine busy for w ms by its prompt (what is not in its cache, as requests find it now, at
what a token costs those who wait for it), and for a ms by each of the m tokens of its answer, with
which a step takes a ms longer. So the engines are busy for the share

    b = r (w + m a) / engines

of their time. A request whose first token would take t ms on an engine with nothing else to do is
late if it waits longer than goal - t. If each goes where it waits least, n engines are as one queue
with n servers, in which the wait is longer than x with the probability

    P(x) = b^(sqrt(2 (n + 1)) - 1) exp(-x n (1 - b) / s)
    s = mean of w^2 / (2 mean of w) + a step

which is M/G/n in heavy traffic by Sakasegawa's approximation. The share that may be late is
1 - share, and b is what has as many late, times a factor that is learned (`Correction`): prompts
draw requests to where others are, nobody foresees all bursts, an autoscaler lags, and costs are
estimates. All of these show in how many are late, so this is what is held: integral control, with
the theory for where to begin and for how it depends on the number of engines.

    engines = (r (w + m a) + what waits beyond the goal / the time to start an engine) / b

That is a number for each limit: of the first token; of the tokens behind it, if there is a goal for
them: an engine writes (goal - fixed) / each answers at a time, as learned; and of KV blocks, of
which FULL may be in use. The greatest counts. None is rounded: those of several gateways add up.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column
from inferway.scheduling.expected_ttft.demand import (
    ALONE,
    BUCKET_SECONDS,
    KEPT,
    LATE,
    PARTS,
    REQUESTS,
    SEEN,
    SQUARES,
    WORK,
)
from inferway.scheduling.expected_ttft.learning import AHEAD, BATCH, FIXED, RUNNING, Learning
from inferway.scheduling.expected_ttft.learning import REQUESTS as WAITING

TREND_HALF_LIFE = 9.0  # buckets
LEAST_BUCKETS = 6  # before that nothing is said
TREND_BUCKETS = 6  # before that no trend is seen
MOST_TREND = 2.0  # times the mean, or a part of it
SMOOTH = 3  # buckets that tell together how busy engines are
LEAST_BUSY, MOST_BUSY = 0.05, 0.98  # by theory
ROUNDED_UP = 0.5  # engines, on average, by an autoscaler
MOST_ROUNDED = 2.0  # times what was said: more engines tell nothing of it
# Of log b, for a bucket like the mean one. A minute of late requests alone takes 5 % (at a share of
# 0.9), ten minutes without any give 5 %.
GAIN = 0.01
AIM = 0.9  # of those that may be late: control is a little to either side of its aim
MOST_WEIGHT = 4.0  # mean buckets that one with many requests may count as
LEAST_FACTOR, MOST_FACTOR = 0.2, 1.5
MEAN_BUCKETS = 8640  # a day: what a bucket's requests are compared with
SETTLED_SECONDS = 300.0  # what an autoscaler waits before it takes engines away
TOLERANCE = 0.1  # and what it lets pass
LEAST_LATE = 0.25  # of 1 - share, that may be late by waiting, however many are late in any case
# A running answer makes steps longer for a first token: half of the one that runs, its own, and
# some more where prompts wait, or take several.
FIRST_TOKEN_STEPS = 2.0
FULL = 0.9  # of the KV blocks
BUCKET_MS = BUCKET_SECONDS * 1000
FEW_OTHERS = 0.1  # requests of others that are none: an engine's figures are older than ours
_STEPS = 40  # of a bisection


class Slo(NamedTuple):
    """The latencies that are to be held, in milliseconds."""

    ttft_ms: float | None
    itl_ms: float | None
    share: float  # of requests
    ahead_seconds: float


class Serving(NamedTuple):
    """The engines that serve a model now, and how busy they are."""

    slots: NDArray[np.intp]
    engines: int
    in_flight: float  # requests of this gateway
    others: float  # and of others
    kv_usage: float  # on average


class EnginesWanted(NamedTuple):
    """The engines that this gateway's requests need, not rounded, and why."""

    engines: float
    by_limit: dict[str, float]  # ttft, itl, kv: those that are known
    busy: float  # share of their time that the engines are busy, with all gateways' requests
    busy_at_slo: float  # at which the SLO is held
    out_of_reach: float  # share of requests that are late on an engine with nothing else to do


class _Costs(NamedTuple):
    """The mean costs of all endpoints, in ms."""

    tpot_fixed: float
    tpot_running: float
    answer_token: float  # a of the module
    answer_tokens: float


@dataclass(slots=True)
class Correction:
    """The factor by which engines may be busier than theory says, so that AIM of those that may be
    late are: integral control of its logarithm."""

    factor: float = 1.0
    _seen: float = 0.0  # requests of a bucket that has any, on average
    _buckets: int = 0

    def learn(self, seen: Column, late: Column, may_be_late: float, follows: Follows) -> None:
        """Learn from as many buckets of requests, those that were late among them."""
        for requests, too_late in zip(seen.tolist(), late.tolist(), strict=True):
            if not requests:
                continue
            self._buckets = min(self._buckets + 1, MEAN_BUCKETS)
            self._seen += (requests - self._seen) / self._buckets
            left = requests * may_be_late * AIM - too_late
            if follows.down if left > 0 else follows.up:
                mean = max(self._seen, requests / MOST_WEIGHT)
                self.factor *= math.exp(GAIN * left / mean)
        self.factor = min(max(self.factor, LEAST_FACTOR), MOST_FACTOR)


class Follows(NamedTuple):
    """The directions in which the fleet is as large as was said of late. Where it is not, how
    requests fare does not come from what was said: the factor would wind up."""

    up: bool  # it is not smaller
    down: bool  # nor larger, by more than comes of rounding


@dataclass(frozen=True, slots=True)
class LateCurve:
    """The share of requests that are late, by how busy engines are. `alone`: the shares of
    requests by what part of the goal they need for themselves; the last one's need more."""

    alone: Column
    service_ms: float  # s of the module
    goal_ms: float

    @property
    def out_of_reach(self) -> float:
        return float(self.alone[-1])

    def late(self, busy: float, engines: float) -> float:
        left = self.goal_ms * (1.0 - (np.arange(PARTS) + 0.5) / PARTS)
        rate = engines * (1.0 - busy) / max(self.service_ms, 1e-6)
        waits = busy ** (math.sqrt(2 * (engines + 1)) - 1) * np.exp(-rate * left)
        return self.out_of_reach + float(waits.dot(self.alone[:-1]))

    def may_be_late(self, share: float) -> float:
        """Return the share that may be late if this one is to be in time; what is out of reach
        leaves LEAST_LATE of the rest in any case."""
        rest = 1.0 - share
        return max(rest, self.out_of_reach + LEAST_LATE * rest)

    def busiest(self, may_be_late: float, work: float) -> float:
        """Return how busy as many engines would be as are to be wanted so that this share is late
        at most: there will be ROUNDED_UP more. `work`: how many would be busy all the time."""
        low, high = LEAST_BUSY, MOST_BUSY
        for _ in range(_STEPS):
            middle = (low + high) / 2
            engines = max(work / middle, 1.0 - ROUNDED_UP) + ROUNDED_UP
            if self.late(work / engines, engines) <= may_be_late:
                low = middle
            else:
                high = middle
        return low


@dataclass(slots=True)
class WantedEstimator:
    """Estimates how many engines a model wants. Each `look` learns from what has been since."""

    slo: Slo
    correction: Correction = field(default_factory=Correction)
    _slots: dict[int, int] = field(default_factory=dict)  # -> the last bucket that it served in
    _looked: int | None = None  # the last bucket that was looked at
    # (when, engines): that the first token needs with all gateways' requests, as said of late
    _said: deque[tuple[float, float]] = field(default_factory=deque)
    _last: EnginesWanted | None = None  # that was wanted

    def look(self, learning: Learning, serving: Serving, now: float) -> EnginesWanted | None:
        """Return what is wanted; None while too little is known."""
        demand = learning.demand
        last = None if demand is None else demand.last(now)
        if demand is None or last is None or not len(serving.slots):
            return None
        rows = demand.buckets(self._recent(serving.slots, last), last)
        if not rows[:, REQUESTS].any():
            return self._nothing()
        if len(rows) < LEAST_BUCKETS:
            return None
        costs = _costs(learning, serving.slots)
        work = rows[:, WORK] + rows[:, REQUESTS] * costs.answer_tokens * costs.answer_token
        curve = self._curve(rows, costs)
        may_be_late = curve.may_be_late(self.slo.share)
        self._learn(rows, may_be_late, serving, now, last)
        steps = (now + self.slo.ahead_seconds) / BUCKET_SECONDS - last - 0.5
        coming = forecast(work, steps) / BUCKET_MS
        own = _own_share(serving)
        busiest = curve.busiest(may_be_late, coming / own) * self.correction.factor
        late = self._late_work(learning, serving.slots)
        limits = self._limits(rows, steps, (coming + late) / busiest, costs, serving)
        self._said.append((now, limits.get("ttft", 0.0) / own))
        engines = max(limits.values(), default=0.0)
        busy = float(work[-SMOOTH:].mean()) / BUCKET_MS / own / len(serving.slots)
        self._last = EnginesWanted(engines, limits, busy, min(busiest, 1.0), curve.out_of_reach)
        return self._last

    def _nothing(self) -> EnginesWanted | None:
        """Return what is wanted when no request has come for ten minutes; None if none ever has."""
        return (
            None if self._last is None else self._last._replace(engines=0.0, by_limit={}, busy=0.0)
        )

    def _recent(self, slots: NDArray[np.intp], last: int) -> NDArray[np.intp]:
        """Return the slots that serve, and those that did in a bucket that is still looked at."""
        for slot in slots.tolist():
            self._slots[slot] = last
        self._slots = {slot: at for slot, at in self._slots.items() if last - at < KEPT}
        return np.array(list(self._slots), np.intp)

    def _learn(
        self,
        rows: NDArray[np.float64],
        may_be_late: float,
        serving: Serving,
        now: float,
        last: int,
    ) -> None:
        """Learn from the buckets since the last look."""
        new = 0 if self._looked is None else min(last - self._looked, len(rows))
        self._looked = last
        said = self._said
        while said and said[0][0] < now - self.slo.ahead_seconds - SETTLED_SECONDS:
            said.popleft()
        follows = Follows(up=True, down=True)
        if said:
            least, most = min(number for _, number in said), max(number for _, number in said)
            follows = Follows(
                up=serving.engines >= least / (1 + TOLERANCE),
                down=serving.engines <= min(most / (1 - TOLERANCE) + 1, most * MOST_ROUNDED),
            )
        if new > 0:
            self.correction.learn(rows[-new:, SEEN], rows[-new:, LATE], may_be_late, follows)

    def _late_work(self, learning: Learning, slots: NDArray[np.intp]) -> float:
        """The ms of work that wait beyond the goal, for each ms in which they are to be done."""
        goal, backlog, costs = self.slo.ttft_ms, learning.backlog, learning.ttft.table
        if goal is None:
            return 0.0
        waiting = backlog.tokens[slots] * costs[AHEAD, slots]
        waiting += backlog.requests[slots] * costs[WAITING, slots]
        late = np.maximum(waiting - goal, 0.0).sum()
        return float(late) / max(self.slo.ahead_seconds * 1000, BUCKET_MS)

    def _curve(self, rows: NDArray[np.float64], costs: _Costs) -> LateCurve:
        weights = 0.5 ** (np.arange(len(rows))[::-1] / TREND_HALF_LIFE)
        sums = weights.dot(rows)  # what costs were before they were known is soon forgotten
        residual = sums[SQUARES] / (2 * max(sums[WORK], 1e-9))
        alone = sums[ALONE:] / max(sums[REQUESTS], 1e-9)
        goal = self.slo.ttft_ms or np.inf
        return LateCurve(alone, float(residual) + costs.tpot_fixed, goal)

    def _limits(
        self,
        rows: NDArray[np.float64],
        steps: float,
        for_first_token: float,
        costs: _Costs,
        serving: Serving,
    ) -> dict[str, float]:
        """Return engines wanted by limit. `steps`: from the middle of the last bucket to then."""
        slo, endpoints = self.slo, len(serving.slots)
        limits = {}
        if slo.ttft_ms is not None:
            limits["ttft"] = for_first_token
        if slo.itl_ms is not None and costs.tpot_fixed < slo.itl_ms:
            most = (slo.itl_ms - costs.tpot_fixed) / costs.tpot_running
            running = forecast(rows[:, REQUESTS], steps) / BUCKET_MS * costs.answer_tokens
            limits["itl"] = running * slo.itl_ms / max(most, 1.0)
        total = serving.in_flight + serving.others
        own = serving.in_flight / total if total else 0.0
        limits["kv"] = endpoints * serving.kv_usage * own / FULL
        return {limit: number * serving.engines / endpoints for limit, number in limits.items()}


def forecast(values: Column, steps: float) -> float:
    """Return what is expected so many steps behind the last of the values, which follow each other
    in steps: on the line through them, of which newer ones count more, with as much of its slope as
    is beyond chance. A fall is not foreseen, as engines that are missed cost more than a minute of
    one too many. Never less than nothing, nor more than MOST_TREND times their mean."""
    number = len(values)
    if number < TREND_BUCKETS:
        return float(values.mean()) if number else 0.0
    x = np.arange(1.0 - number, 1.0)
    weights = 0.5 ** (-x / TREND_HALF_LIFE)
    weights /= weights.sum()
    middle, mean = float(weights.dot(x)), float(weights.dot(values))
    x -= middle
    spread = float(weights.dot(x * x))
    slope = float(weights.dot(x * values)) / spread
    off = values - mean - slope * x
    chance = float((weights * weights).dot(off * off * x * x)) / spread**2
    slope *= max(0.0, 1.0 - chance / max(slope * slope, 1e-300))
    expected = mean + slope * ((steps if slope > 0 else 0.0) - middle)
    return min(max(expected, mean / MOST_TREND), mean * MOST_TREND)


def _own_share(serving: Serving) -> float:
    """The share of all requests that are this gateway's; never next to none, so that few of them
    do not stand for many."""
    total = serving.in_flight + serving.others
    share = serving.in_flight / total if serving.others > FEW_OTHERS * total else 1.0
    return max(share, FEW_OTHERS)


def _costs(learning: Learning, slots: NDArray[np.intp]) -> _Costs:
    tpot = learning.tpot.table[:, slots].mean(axis=1)
    return _Costs(
        float(tpot[FIXED]),
        float(tpot[RUNNING]),
        float(learning.ttft.table[BATCH, slots].mean()) / FIRST_TOKEN_STEPS,
        learning.marginal_cost.answer_tokens,
    )
