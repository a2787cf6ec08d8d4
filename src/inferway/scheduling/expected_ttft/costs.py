"""The costs that an engine's time consists of, learned from times observed: robust regressions, one
for all engines, and for each one how it differs from that.

A time is a sum of features, each at a cost of its own: t = x . c. The unknown is how many times
the usual cost (`prior`, the prior) each one is: c = usual * g. With z = x * usual / (x . usual),
whose elements sum to 1, and y = t / (x . usual), an observation says y = z . g.

What all engines cost is held, where observations are few, by the belief that all elements of g are
one number s, the mean of y (ridge regression towards s):

    g = solve(sum of w z zT + PULL * I,  sum of w y z + PULL * s)

An engine costs r g + d: it may be slower or faster in everything (r), and differ in what costs how
much (d). Engines that are alike seem to differ by chance, and whoever believes it sends requests
elsewhere for nothing. So each difference counts only by what it is beyond chance. With Z = sum of
w z zT of the engine's n observations, whose y scatter by e as a share, and E = CHANCE e^2:

    u = sum of w y / sum of w z . g - 1           r = 1 + u max(0, 1 - E / (n u^2))
    v = sum of w y z - r Z g                      k = (v . v - E tr Z) / tr Z Z
    d = solve(Z + max(E / k, PULL) I, v), or 0 if k < 0

(the positive part of James and Stein's estimate of a mean; for d the ridge that suits how much
costs differ, k, by the moments of v.) Half of the engines are faster than g and half slower: what
changes for most has changed for all, and an engine that has not answered yet is like them.

Sums fade by FADE with each observation of the engine, so that what was true some hundred requests
ago is forgotten; and by half in HALF_LIFE_SECONDS, so that an engine which was slow with its first
requests, and is avoided since, is as good as an unknown one some time later. Of one that is well
known the weight of KEPT observations is never lost that way: what nothing contradicts is true
still, and the next observations count for more all the same.

An observation further off than FAR typical errors counts as if it were that far off only (it is
winsorized). Errors are ratios: twice as long as expected is as far off as half. If they are to one
side, the engine is not as it was, and sums fade faster: by exp(-bias^2) more, so that one that is
slower from now on is believed within some 20 requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from operator import mul

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column, Rows
from inferway.scheduling.expected_ttft.known import KnownCosts, KnownEngine, KnownSums

FADE = 0.99  # about the last hundred observations of an engine count
FADE_ALL = 0.998  # and the last five hundred of all engines
HALF_LIFE_SECONDS = 600.0
LAST_HALF_LIFE_SECONDS = 5.0  # of what the last answer alone says of an engine
KNOWN_AFTER = 10  # observations; of an engine that has had so many
WELL_KNOWN_AFTER = 50  # of all engines: from then on no other gateway knows better
KEPT = 3.0  # the weight of as many is kept, however long ago they were
PULL = 0.08  # observations, of each feature
# Variances of an engine's mean that may be chance: two deviations, for of sums that fade a mean's
# variance is e^2 / 2n.
CHANCE = 2.0
FAR = 2.5  # typical errors; what is further off is an outlier
NEVER_FAR = log(2)  # no outlier, however small the typical error: half or twice as long
FIRST_ERROR = 0.8  # the typical one, before it is known: 7 times as long is no outlier
FIRST_SCATTER = 0.4  # of times, before it is known
ERROR_STEP = 0.08
BIAS_STEP = 0.1
CHANGED = log(1.2)  # times as long as before, of all engines
LEAST = 0.02  # times the engine's speed: no cost is less, none is negative
SOLVE_EVERY = 8  # of a known engine's observations; with each while its errors are to one side
SOLVE_ALL_EVERY = 32  # of the observations of all
BIASED = 0.1
# But costs follow no faster than this: an engine that answers a thousand times a second would have
# them solved for a thousand times.
SOLVE_SECONDS = 0.02
REFRESH_SECONDS = 10.0  # how often every engine's sums fade

_TINY = 1e-12  # nothing is divided by less


@dataclass(slots=True)
class _Sums:
    """Sums of weighted observations: of z zT, of y z."""

    zz: NDArray[np.float64]
    zy: Column

    @property
    def weight(self) -> float:
        """The weight of all: the elements of each z sum to 1."""
        return float(self.zz.sum())

    @property
    def y(self) -> float:
        return float(self.zy.sum())

    def scale(self, by: float) -> None:
        self.zz *= by
        self.zy *= by

    def add(self, zz: NDArray[np.float64], zy: Column) -> None:
        self.zz += zz
        self.zy += zy


@dataclass(slots=True)
class _Engine:
    """The observations of one engine."""

    sums: _Sums  # they lack those that are pending: (z, y, what it fades all before it by)
    faded: float  # when, in seconds
    pending: list[tuple[Sequence[float], float, float]] = field(default_factory=list)
    solved: float = 0.0  # when
    error: float = FIRST_ERROR  # the typical |log(observed / expected)|
    bias: float = 0.0  # the mean log(observed / expected) of late
    mean: float = 0.0  # the same beside what all engines take, of about as many as `sums` have
    variance: float = FIRST_SCATTER**2  # about it
    count: int = 0  # of observations

    def winsorized(self, error: float, ratio: float) -> float:
        """Return the error, or as much of it as counts; what is known of errors learns from that.
        `ratio`: how many times what all engines take was expected."""
        far = max(FAR * self.error, NEVER_FAR)
        error = min(max(error, -far), far)
        step = max(1 - FADE, 1 / (1 + self.count))
        beside = error + log(ratio)
        off = beside - self.mean
        self.mean += step * off
        if self.count:  # the first one says how fast the engine is, not how well we know it
            self.variance += step * (off * (beside - self.mean) - self.variance)
            self.error += max(ERROR_STEP, 1 / (1 + self.count)) * (abs(error) - self.error)
            self.bias += BIAS_STEP * (error - self.bias)
        return error

    def is_due(self, now: float) -> bool:
        if self.count <= KNOWN_AFTER:
            return True
        enough = len(self.pending) >= SOLVE_EVERY or abs(self.bias) >= BIASED
        return enough and now - self.solved >= SOLVE_SECONDS


@dataclass(slots=True)
class Costs:
    """Costs of one kind of time, for many engines. Column i of `table` is what slot i pays for
    each feature. One that nothing was observed of pays what all others do: were it thought to be
    slower than they turn out to be, nobody would go there and see.
    """

    prior: Column  # one for each feature, in the unit of the times
    table: NDArray[np.float64] = field(init=False)  # features x slots
    is_cold: NDArray[np.bool_] = field(init=False)  # by slot: it has hardly been observed
    error: Column = field(init=False)  # by slot: the typical |log(observed / expected)|
    num_cold: int = 0  # slots
    speed: float = 1.0  # how many times the usual cost, of all engines
    _engines: list[_Engine | None] = field(default_factory=list)  # by slot; None: nothing observed
    _all: _Sums = field(init=False)  # engines, as if all were as fast
    _count: int = 0  # of observations in it
    _solved_count: int = 0  # when the last time
    _common: Column = field(init=False)  # g of all engines
    # By slot, and features x slots:
    _ratio: Column = field(init=False)  # its speed beside all
    _last: Column = field(init=False)  # the same of its last answer; 1 after the first one
    _heard: Column = field(init=False)  # when that came
    _shape: NDArray[np.float64] = field(init=False)  # what else differs
    _y: Column = field(init=False)  # the sums of its observations; 0: none
    _z: NDArray[np.float64] = field(init=False)
    _noise: Column = field(init=False)  # CHANCE e^2 of the module
    _prior: Sequence[float] = field(init=False)  # the same as `prior`
    _eye: NDArray[np.float64] = field(init=False)
    _solved: float = 0.0  # when, of all
    _next: int = 0  # the slot to be refreshed
    _due: float = 0.0  # and when

    def __post_init__(self) -> None:
        size = len(self.prior)
        self.table = np.zeros((size, 0))
        self.is_cold = np.zeros(0, np.bool_)
        self.error = np.zeros(0)
        self._all = _nothing(size)
        self._common = np.ones(size)
        self._ratio, self._last, self._heard, self._y, self._noise = np.zeros((5, 0))
        self._shape = self._z = np.zeros((size, 0))
        self._prior = self.prior.tolist()
        self._eye = np.eye(size)

    @property
    def is_known(self) -> bool:
        """True if anything has been observed."""
        return self._count > 0

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        missing = slots - len(self._engines)
        new = np.zeros((len(self.prior), missing))
        for name in ("table", "_shape", "_z"):
            setattr(self, name, np.concatenate([getattr(self, name), new], axis=1))
        for name in ("error", "_ratio", "_last", "_heard", "_y", "_noise"):
            setattr(self, name, np.concatenate([getattr(self, name), new[0]]))
        self.is_cold = np.concatenate([self.is_cold, np.zeros(missing, np.bool_)])
        self._engines += [None] * missing
        for slot in range(slots - missing, slots):
            self.forget(slot)

    def forget(self, slot: int) -> None:
        """Forget a slot that another engine takes."""
        self._engines[slot] = None
        self.num_cold += not self.is_cold[slot]
        self.is_cold[slot] = True
        self._y[slot], self._z[:, slot], self.error[slot] = 0.0, 0.0, FIRST_ERROR
        self._ratio[slot], self._last[slot], self._shape[:, slot] = 1.0, 1.0, 0.0
        self._fill(slice(slot, slot + 1))

    def expected(self, slot: int, features: Sequence[float]) -> float:
        time: float = sum(map(mul, features, self.table[:, slot].tolist()))
        return time

    def lately(self, slots: Rows, now: float) -> Column:
        """Return how many times what is expected of these slots they take by their last answers
        alone; after the first one, by none. A slow answer says less the longer ago it was: a pause
        may have made it slow, which is over."""
        times = self._last[slots] / self._ratio[slots]
        fade = 0.5 ** ((now - self._heard[slots]) / LAST_HALF_LIFE_SECONDS)
        faded: Column = np.where(times > 1.0, times**fade, times)
        return faded

    def learn(self, slot: int, features: Sequence[float], time: float, now: float) -> None:
        """Learn that it took so long (more than 0). Features are not negative, one at least is not
        0."""
        usual_times = list(map(mul, features, self._prior))
        usual_time = sum(usual_times)
        z = [part / usual_time for part in usual_times]
        expected = self.expected(slot, features) / usual_time
        error = log(time / usual_time / expected)
        engine = self._engines[slot]
        if engine is None:
            engine = self._engines[slot] = _Engine(_nothing(len(self.prior)), faded=now)
            if not self.is_known:  # then nothing is too far off
                engine.error = abs(error)
        ratio = self._ratio.item(slot)
        y = expected * exp(engine.winsorized(error, ratio))
        if engine.count:  # the first answer is slow where all is warmed up with it
            self._last[slot], self._heard[slot] = exp(error) * ratio, now
        self.error[slot] = engine.error
        engine.pending.append((z, y, FADE * exp(-(engine.bias**2))))
        engine.count += 1
        if engine.is_due(now):
            engine.solved = now
            self._solve(slot, engine, now)
        if engine.count == KNOWN_AFTER:
            self.num_cold -= 1
            self.is_cold[slot] = False

    # what another gateway is told, and takes over

    @property
    def is_well_known(self) -> bool:
        """True if more has been observed than a few answers."""
        return self._count >= WELL_KNOWN_AFTER

    def known(self, slots: Mapping[str, int]) -> KnownCosts | None:
        """Return what was observed of all engines, and of those in these slots that are known."""
        if not self.is_known or self._all.weight <= _TINY:
            return None
        engines = {
            name: KnownEngine(
                _told(each.sums), each.count, each.error, each.bias, each.mean, each.variance
            )
            for name, slot in slots.items()
            if (each := self._engines[slot]) is not None and each.count >= KNOWN_AFTER
        }
        return KnownCosts(_told(self._all), self._count, engines)

    def adopt(self, told: KnownCosts, slots: Mapping[str, int], now: float) -> None:
        """Take over what another gateway has observed of engines that are hardly known here, and of
        all engines while little is known of them. It is sound."""
        if not self.is_well_known and self._count < told.count:
            self._all = _heard(told.all)
            self._count = told.count
            self._solve_all()
            self._fill(slice(None))
        for name, known in told.engines.items():
            slot = slots[name]
            if self.is_known and self.is_cold[slot]:
                self._adopt(slot, known, now)

    def _adopt(self, slot: int, known: KnownEngine, now: float) -> None:
        engine = _Engine(
            _heard(known.sums),
            faded=now,
            solved=now,
            error=known.error,
            bias=known.bias,
            mean=known.mean,
            variance=known.variance,
            count=max(known.count, KNOWN_AFTER),
        )
        self._engines[slot] = engine
        self.error[slot] = known.error
        self.num_cold -= 1
        self.is_cold[slot] = False
        self._compare(slot, engine)
        self._shape[:, slot] = self._shape_of(
            engine.sums, self._noise.item(slot), self._ratio.item(slot)
        )
        self._fill(slice(slot, slot + 1))

    def refresh(self, now: float) -> None:
        """Let sums fade as time passes. One engine a call at most: it is called for each
        request."""
        if now < self._due or not self._engines:
            return
        self._due = now + REFRESH_SECONDS / len(self._engines)
        self._next = (self._next + 1) % len(self._engines)
        engine = self._engines[self._next]
        if engine is not None:
            self._absorb(self._next, engine)
            by = 0.5 ** ((now - engine.faded) / HALF_LIFE_SECONDS)
            if engine.count >= KNOWN_AFTER:
                by = max(by, min(1.0, KEPT / engine.sums.weight))
            engine.sums.scale(by)
            self._compare(self._next, engine)
            engine.faded = now
            self._solve(self._next, engine, now)

    def _solve(self, slot: int, engine: _Engine, now: float) -> None:
        """Work out what the engine costs, and now and then what all cost."""
        self._absorb(slot, engine)
        changed = slice(slot, slot + 1)
        if self._all_are_due(now):
            self._solved = now
            self._solve_all()
            changed = slice(None)
        noise, ratio = self._noise.item(slot), self._ratio.item(slot)
        self._shape[:, slot] = self._shape_of(engine.sums, noise, ratio)
        self._fill(changed)

    def _absorb(self, slot: int, engine: _Engine) -> None:
        """Brings sums up to date: a few observations at once take hardly longer than one. Those of
        an engine that is slower than all teach what all cost once that is known."""
        if not engine.pending:
            return
        rows, y, fades = zip(*engine.pending, strict=True)
        engine.pending.clear()
        weights, kept = [], 1.0  # what is left of each, and of all before them
        for fade in reversed(fades):
            weights.append(kept)
            kept *= fade
        z = np.array(rows)
        weighed = z.T * weights[::-1]
        zz, zy = weighed.dot(z), weighed.dot(y)
        engine.sums.scale(kept)
        engine.sums.add(zz, zy)
        self._compare(slot, engine)
        self._all.scale(FADE_ALL ** len(y))
        self._all.add(zz, zy / self._ratio.item(slot))
        self._count += len(y)

    def _compare(self, slot: int, engine: _Engine) -> None:
        """Compare the engine, as its sums are now, with all."""
        sums, only = engine.sums, slice(slot, slot + 1)
        self._y[slot], self._z[:, slot] = sums.y, sums.zz.sum(axis=0)
        self._noise[slot] = CHANCE * engine.variance
        self._ratio[only] = self._ratios(only)

    def _all_are_due(self, now: float) -> bool:
        if self._count <= KNOWN_AFTER:
            return True
        enough = self._count - self._solved_count >= SOLVE_ALL_EVERY
        return enough and now - self._solved >= SOLVE_SECONDS

    def _solve_all(self) -> None:
        sums = self._all
        sums.zy *= self._changed()
        speed = self.speed = sums.y / sums.weight
        common = np.linalg.solve(sums.zz + self._eye * PULL, sums.zy + PULL * speed)
        self._common = np.maximum(common, LEAST * speed)
        self._ratio = self._ratios(slice(None))
        self._solved_count = self._count

    def _changed(self) -> float:
        """Return how many times as long most engines take as was believed of all; 1 for a little
        more or less, which would come and go."""
        is_seen = self._y > 0
        times = float(np.median(self._ratio[is_seen])) if is_seen.any() else 1.0
        return times if abs(log(times)) > CHANGED else 1.0

    def _ratios(self, slots: slice) -> Column:
        """r of the module; 1 where nothing was observed."""
        z = self._z[:, slots]
        alike = self._common.dot(z)
        off: Column = self._y[slots] - alike
        off /= np.maximum(alike, _TINY)
        chance = self._noise[slots] / np.maximum(z.sum(axis=0) * off * off, _TINY)
        off *= np.maximum(1.0 - chance, 0.0)
        off += 1.0
        return off

    def _shape_of(self, sums: _Sums, noise: float, ratio: float) -> Column:
        """d of the module."""
        zz = sums.zz
        left: Column = sums.zy - zz.dot(self._common) * ratio
        noise *= (sums.y / max(sums.weight, _TINY)) ** 2
        beyond = left.dot(left) - noise * zz.trace()
        if beyond <= 0:
            return np.zeros(len(left))
        pull = noise * np.vdot(zz, zz) / beyond
        return np.linalg.solve(zz + self._eye * max(pull, PULL), left)

    def _fill(self, slots: slice) -> None:
        """The table's columns."""
        ratio = self._ratio[slots]
        times = self._common[:, None] * ratio
        times += self._shape[:, slots]
        np.maximum(times, LEAST * self.speed * ratio, out=times)
        times *= self.prior[:, None]
        self.table[:, slots] = times


def _nothing(size: int) -> _Sums:
    return _Sums(np.zeros((size, size)), np.zeros(size))


def _told(sums: _Sums) -> KnownSums:
    return KnownSums(sums.zz.ravel().tolist(), sums.zy.tolist())


def _heard(told: KnownSums) -> _Sums:
    size = len(told.zy)
    return _Sums(np.array(told.zz, np.float64).reshape(size, size), np.array(told.zy, np.float64))
