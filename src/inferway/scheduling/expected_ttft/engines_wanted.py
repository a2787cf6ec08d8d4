"""How many engines hold the SLO, from what was asked of late (`demand`) and what it costs
(`costs`).

Requests come at r a millisecond, as they are expected to in a while: the line through the last
ten minutes, of which newer ones count more, with as much of its slope as is beyond chance. Each
keeps an engine busy for w ms by its prompt (what is not in its cache, as requests find it now, at
what a token costs those who wait for it), and for a ms by each of the m tokens of its answer, with
which a step takes a ms longer. So the engines are busy for the share

    b = r (w + m a) / engines

of their time. A request whose first token would take t ms on an engine with nothing else to do is
late if it waits longer than goal - t. Behind requests that take s ms of the engine the wait is
longer than x with the probability

    P(x) = b exp(-x (1 - b) / (k s)),    s = mean of w^2 / (2 mean of w) + a step

which is M/G/1 in heavy traffic (Kingman) for k = 1: what each engine would do by itself, with
requests that know nothing of each other. A fleet whose requests go where they wait least does
better, one whose prompts draw them to where others are does worse, and by how much is learned: k is
what explains how many were late, of those that came while engines were to be busy for each share of
their time by what was expected before; so bursts that nobody has foreseen count, too. ANCHOR more
requests behave as M/G/1 would. The share that may be late is 1 - share, so b is at most what has
as many late, and

    engines = (r (w + m a) + what waits beyond the goal / the time to start an engine) / b

That is a number for each limit: of the first token; of the tokens behind it, if there is a goal for
them: an engine writes (goal - fixed) / each answers at a time, as learned; and of KV blocks, of
which FULL may be in use. The greatest counts. None is rounded: those of several gateways add up.
"""

from __future__ import annotations

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

TREND_HALF_LIFE = 6.0  # buckets
LEAST_BUCKETS = 6  # before that nothing is said
TREND_BUCKETS = 6  # before that no trend is seen
MOST_TREND = 2.0  # times the mean, or a part of it
SMOOTH = 3  # buckets that tell together how busy engines are
ANCHOR = 30.0  # requests
FADE = 0.5 ** (1 / 180)  # a bucket: half of what is known is left after half an hour
BUSY_BINS = 24  # of BUSY_STEP
BUSY_STEP = 0.05
LEAST_BUSY, MOST_BUSY = 0.1, 0.97
SCALES = 16.0  # k is between this and its inverse
LEAST_LATE = 0.25  # of 1 - share, that may be late by waiting, however many are late in any case
# What an answer's token costs is learned from the time between tokens, and hard to tell there from
# what all steps cost. A first token waits for half a step and takes so many, each as much longer.
LEAST_STEPS, MOST_STEPS = 1.5, 4.0
FULL = 0.9  # of the KV blocks
BUCKET_MS = BUCKET_SECONDS * 1000
MOST_PLANS = 1000  # that are kept until it is known what has come of them
FEW_OTHERS = 0.1  # requests of others that are none: an engine's figures are older than ours
_STEPS = 40  # of a bisection


class Slo(NamedTuple):
    """What is to be held, in milliseconds."""

    ttft_ms: float | None
    itl_ms: float | None
    share: float  # of requests
    ahead_seconds: float


class Serving(NamedTuple):
    """Who serves a model now: as many engines, with so many endpoints together."""

    slots: NDArray[np.intp]
    engines: int
    in_flight: float  # requests of this gateway
    others: float  # and of others
    kv_usage: float  # on average


class EnginesWanted(NamedTuple):
    """The engines that this gateway's requests need, not rounded, and why."""

    engines: float
    by_limit: dict[str, float]  # ttft, itl, kv: those that are known
    busy: float  # share of their time that the engines are busy, with everybody's requests
    busy_at_slo: float  # at which the SLO is held
    out_of_reach: float  # share of requests that are late on an engine with nothing else to do


class _Costs(NamedTuple):
    """Of all endpoints on average, in ms."""

    tpot_fixed: float
    tpot_running: float
    answer_token: float  # a of the module
    answer_tokens: float


@dataclass(slots=True)
class LateCounts:
    """How many requests were late, by how busy the engines were."""

    seen: Column = field(default_factory=lambda: np.zeros(BUSY_BINS))
    late: Column = field(default_factory=lambda: np.zeros(BUSY_BINS))

    def add(self, busy: Column, seen: Column, late: Column) -> None:
        """Count what became of requests in as many buckets."""
        bins = np.minimum((busy / BUSY_STEP).astype(np.intp), BUSY_BINS - 1)
        fade = FADE ** len(busy)
        self.seen *= fade
        self.late *= fade
        np.add.at(self.seen, bins, seen)
        np.add.at(self.late, bins, late)

    def scale(self, curve: LateCurve, anchor: float) -> float:
        """Return k of the module. `anchor`: how busy engines are at which M/G/1 is believed."""
        bins = (np.arange(BUSY_BINS) + 0.5) * BUSY_STEP
        busy = np.append(np.minimum(bins, MOST_BUSY), anchor)
        seen = np.append(self.seen, ANCHOR)
        late = float(self.late.sum()) + ANCHOR * float(curve.late(busy[-1:], 1.0)[0])
        low, high = -np.log(SCALES), np.log(SCALES)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if float(seen.dot(curve.late(busy, float(np.exp(middle))))) < late:
                low = middle
            else:
                high = middle
        return float(np.exp(low))


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

    def late(self, busy: Column, scale: float) -> Column:
        left = self.goal_ms * (1.0 - (np.arange(PARTS) + 0.5) / PARTS)
        rate = (1.0 - busy) / max(scale * self.service_ms, 1e-6)
        waits = busy[:, None] * np.exp(-rate[:, None] * left)
        share: Column = self.out_of_reach + waits.dot(self.alone[:-1])
        return share

    def busiest(self, may_be_late: float, scale: float) -> float:
        """Return how busy engines may be so that this share is late at most; what is out of reach
        leaves LEAST_LATE of it in any case."""
        most = max(may_be_late, self.out_of_reach + LEAST_LATE * may_be_late)
        low, high = LEAST_BUSY, MOST_BUSY
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if float(self.late(np.array([middle]), scale)[0]) <= most:
                low = middle
            else:
                high = middle
        return low


@dataclass(slots=True)
class WantedEstimator:
    """Of one model. `look` whenever somebody asks; it learns from what has been since."""

    slo: Slo
    late: LateCounts = field(default_factory=LateCounts)
    _slots: dict[int, int] = field(default_factory=dict)  # -> the last bucket that it served in
    _looked: int | None = None  # the last bucket that was looked at
    _endpoints: float = 0.0  # when it was
    # (for when, ms of work a ms): what was expected
    _plans: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_PLANS))
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
        work = self._work(rows, costs, len(serving.slots))
        now_busy = self._busy(float(work[-SMOOTH:].mean()) / BUCKET_MS, serving)
        self._learn(rows, work, serving, last)
        self._endpoints = float(len(serving.slots))
        curve = self._curve(rows, costs)
        may_be_late = 1.0 - self.slo.share
        scale = self.late.scale(curve, curve.busiest(may_be_late, 1.0))
        busiest = curve.busiest(may_be_late, scale)
        steps = (now + self.slo.ahead_seconds) / BUCKET_SECONDS - last - 0.5
        coming = forecast(work, steps) / BUCKET_MS
        self._plans.append((now + self.slo.ahead_seconds, coming))
        late = self._late_work(learning, serving.slots)
        limits = self._limits(rows, steps, (coming + late) / busiest, costs, serving)
        engines = max(limits.values(), default=0.0)
        self._last = EnginesWanted(engines, limits, now_busy, busiest, curve.out_of_reach)
        return self._last

    def _nothing(self) -> EnginesWanted | None:
        """What is wanted when nobody has asked for anything for ten minutes; None if nobody ever
        has."""
        return (
            None if self._last is None else self._last._replace(engines=0.0, by_limit={}, busy=0.0)
        )

    def _recent(self, slots: NDArray[np.intp], last: int) -> NDArray[np.intp]:
        """Those that serve, and those that did in a bucket that is still looked at."""
        for slot in slots.tolist():
            self._slots[slot] = last
        self._slots = {slot: at for slot, at in self._slots.items() if last - at < KEPT}
        return np.array(list(self._slots), np.intp)

    def _work(self, rows: NDArray[np.float64], costs: _Costs, endpoints: int) -> Column:
        """The ms of engines' time that was asked for in each bucket."""
        prompts = rows[:, WORK]
        mean = float(prompts.mean()) / (endpoints * BUCKET_SECONDS * 1000)
        each = costs.answer_token * max(1.0 - mean, LEAST_BUSY)
        work: Column = prompts + rows[:, REQUESTS] * costs.answer_tokens * each
        return work

    def _busy(self, work: float, serving: Serving) -> float:
        """The share of their time that engines are busy with so much work of this gateway's, with
        everybody's requests; as many as there were at the last look."""
        total = serving.in_flight + serving.others
        share = serving.in_flight / total if serving.others > FEW_OTHERS * total else 1.0
        endpoints = self._endpoints or float(len(serving.slots))
        return work / (endpoints * max(share, FEW_OTHERS))

    def _learn(self, rows: NDArray[np.float64], work: Column, serving: Serving, last: int) -> None:
        """Of the buckets since the last look: before it there were other engines."""
        new = 0 if self._looked is None else min(last - self._looked, len(rows))
        self._looked = last
        busy = []
        for back in range(new, 0, -1):
            end = (last - back + 2) * BUCKET_SECONDS
            while len(self._plans) > 1 and self._plans[1][0] <= end:
                self._plans.popleft()
            is_planned = bool(self._plans) and self._plans[0][0] <= end
            expected = self._plans[0][1] if is_planned else work[-back] / BUCKET_MS
            busy.append(self._busy(float(expected), serving))
        if new > 0:
            self.late.add(np.array(busy), rows[-new:, SEEN], rows[-new:, LATE])

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
        """In engines. `steps`: from the middle of the last bucket to when they are wanted."""
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
    is beyond chance. Never less than nothing, nor more than MOST_TREND times their mean."""
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
    expected = mean + slope * (steps - middle)
    return min(max(expected, mean / MOST_TREND), mean * MOST_TREND)


def _costs(learning: Learning, slots: NDArray[np.intp]) -> _Costs:
    tpot = learning.tpot.table[:, slots].mean(axis=1)
    batch = float(learning.ttft.table[BATCH, slots].mean())
    return _Costs(
        float(tpot[FIXED]),
        float(tpot[RUNNING]),
        min(max(float(tpot[RUNNING]), batch / MOST_STEPS), batch / LEAST_STEPS),
        learning.marginal_cost.answer_tokens,
    )
