"""What an engine's time consists of, learned from times observed: a robust regression for each.

A time is a sum of features, each at a cost of its own: t = x . c. The unknown is how many times
the usual cost (`usual`, the prior) each one is: c = usual * g. With z = x * usual / (x . usual),
whose elements sum to 1, and y = t / (x . usual), an observation says y = z . g.

Two beliefs hold g where observations are few: all its elements are one number s (an engine is slow
in everything or in nothing), and s is what it is for the other engines. So one observation teaches
how fast an engine is, and many of different mixtures which of its costs differ:

    s = (PULL_SPEED * s of all engines + sum of w y) / (PULL_SPEED + sum of w)
    g = solve(sum of w z zT + PULL_SHAPE * I,  sum of w y z + PULL_SHAPE * s)

(ridge regression towards s). Both pulls are (noise / STEADY)^2 as strong where an engine's errors
scatter by more than STEADY: of a few times that differ by half or twice, none says how fast it is.

Sums fade by FADE with each observation of the engine, so that what
was true some hundred requests ago is forgotten; and by half in HALF_LIFE_SECONDS, so that an engine
which was slow with its first requests, and is avoided since, is as good as an unknown one some time
later. Of one that is well known the weight of KEPT observations is never lost that way: what
nothing contradicts is true still, and the next observations count for more all the same.

An observation further off than FAR typical errors counts as if it were that far off only (it is
winsorized). Errors are ratios: twice as long as expected is as far off as half. If they are to one
side, the engine is not as it was, and sums fade faster: by exp(-bias^2) more, so that one that is
slower from now on is believed within some 20 requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from operator import mul

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column

FADE = 0.99  # about the last hundred observations count
HALF_LIFE_SECONDS = 600.0
KNOWN_AFTER = 10  # observations; of an engine that has had so many
KEPT = 3.0  # the weight of as many is kept, however long ago they were
PULL_SPEED = 0.5  # the other engines' speed counts as half an observation
PULL_SHAPE = 0.5  # observations, divided among the features
STEADY = 0.3  # a typical error; twice as big, and beliefs hold four times as fast
FAR = 2.5  # typical errors; what is further off is an outlier
NEVER_FAR = log(2)  # no outlier, however small the typical error: half or twice as long
FIRST_ERROR = 0.8  # the typical one, before it is known: 7 times as long is no outlier
ERROR_STEP = 0.08
BIAS_STEP = 0.1
LEAST = 0.02  # times the engine's speed: no cost is less, none is negative
SOLVE_EVERY = 8  # of a known engine's observations; with each while its errors are to one side
BIASED = 0.1
# But a known engine's costs follow no faster than this: one that answers a thousand times a second
# would have them solved for a thousand times.
SOLVE_SECONDS = 0.02
TELL = 0.05  # a change of the engines' speed that those are told of that have not answered yet
REFRESH_SECONDS = 10.0  # how often every engine's sums fade


@dataclass(slots=True)
class _Sums:
    """Of one engine's observations. `zz` and `zy` lack those that are pending: (z, y, what it
    fades all before it by)."""

    zz: NDArray[np.float64]
    zy: Column
    pending: list[tuple[Sequence[float], float, float]] = field(default_factory=list)
    weight: float = 0.0
    y: float = 0.0
    error: float = FIRST_ERROR  # the typical |log(observed / expected)|
    bias: float = 0.0  # the mean log(observed / expected) of late
    count: int = 0  # of observations
    faded: float = 0.0  # when, in seconds
    solved: float = 0.0  # when


@dataclass(slots=True)
class Costs:
    """Costs of one kind of time, for many engines. Column i of `table` is what place i pays for
    each feature. One that nothing was observed of pays the usual costs, times what the others have
    come to: were it thought to be slower than they turn out to be, nobody would go there and see.
    """

    usual: Column  # one for each feature, in the unit of the times
    table: NDArray[np.float64] = field(init=False)  # features x places
    unsure: NDArray[np.bool_] = field(init=False)  # by place: it has hardly been observed
    num_unsure: int = 0  # places
    _columns: list[Sequence[float]] = field(default_factory=list)  # of the table, by place
    _sums: list[_Sums | None] = field(default_factory=list)  # by place; None: nothing observed
    _weight: float = 0.0  # of all engines
    _y: float = 0.0
    _unknown: set[int] = field(default_factory=set)  # places without sums
    _told: float = 1.0  # the speed that these were given
    _usual: Sequence[float] = field(init=False)  # the same as `usual`
    _ridge: NDArray[np.float64] = field(init=False)
    _next: int = 0  # the place to be refreshed
    _due: float = 0.0  # and when

    def __post_init__(self) -> None:
        size = len(self.usual)
        self.table = np.zeros((size, 0))
        self.unsure = np.zeros(0, np.bool_)
        self._usual = self.usual.tolist()
        self._ridge = np.eye(size)

    @property
    def is_known(self) -> bool:
        """Whether anything has been observed."""
        return self._weight > 0

    @property
    def speed(self) -> float:
        """How many times the usual cost, of all engines; 1 before the first observation."""
        return self._y / self._weight if self._weight else 1.0

    def grow(self, places: int) -> None:
        """Room for so many."""
        missing = places - len(self._sums)
        new = np.zeros((len(self.usual), missing))
        self.table = np.concatenate([self.table, new], axis=1)
        self.unsure = np.concatenate([self.unsure, np.zeros(missing, np.bool_)])
        self._columns += [()] * missing
        self._sums += [None] * missing
        for place in range(places - missing, places):
            self._forgotten(place)

    def forget(self, place: int) -> None:
        """Another engine takes the place."""
        self._sums[place] = None
        self._forgotten(place)

    def expected(self, place: int, features: Sequence[float]) -> float:
        time: float = sum(map(mul, features, self._columns[place]))
        return time

    def learn(self, place: int, features: Sequence[float], time: float, now: float) -> None:
        """It took so long (more than 0). Features are not negative, one at least is not 0."""
        usual_times = list(map(mul, features, self._usual))
        usual_time = sum(usual_times)
        z = [part / usual_time for part in usual_times]
        expected = self.expected(place, features) / usual_time
        error = log(time / usual_time / expected)
        sums = self._sums[place]
        if sums is None:
            size = len(self.usual)
            sums = _Sums(np.zeros((size, size)), np.zeros(size), faded=now)
            self._sums[place] = sums
            self._unknown.discard(place)
            if not self.is_known:  # then nothing is too far off
                sums.error = abs(error)
        self._add(sums, z, expected * exp(_within(sums, error)))
        if _is_due(sums, now):
            sums.solved = now
            self._solve(place, sums)
            self._tell_unknown()
        if sums.count == KNOWN_AFTER:
            self.num_unsure -= 1
            self.unsure[place] = False

    def refresh(self, now: float) -> None:
        """Time has passed. One engine a call at most: it is called for each request."""
        if now < self._due or not self._sums:
            return
        self._due = now + REFRESH_SECONDS / len(self._sums)
        self._next = (self._next + 1) % len(self._sums)
        sums = self._sums[self._next]
        if sums is not None:
            by = 0.5 ** ((now - sums.faded) / HALF_LIFE_SECONDS)
            if sums.count >= KNOWN_AFTER:
                by = max(by, min(1.0, KEPT / sums.weight))
            _absorb(sums)
            sums.zz *= by
            sums.zy *= by
            sums.weight *= by
            sums.y *= by
            sums.faded = now
            self._solve(self._next, sums)

    def _add(self, sums: _Sums, z: Sequence[float], y: float) -> None:
        fade = FADE * exp(-(sums.bias**2))
        sums.pending.append((z, y, fade))
        sums.weight = fade * sums.weight + 1
        sums.y = fade * sums.y + y
        sums.count += 1
        self._weight = FADE * self._weight + 1
        self._y = FADE * self._y + y

    def _solve(self, place: int, sums: _Sums) -> None:
        _absorb(sums)
        noise = sums.error - abs(sums.bias)
        doubt = max(1.0, noise / STEADY) ** 2
        pull = PULL_SPEED * doubt
        speed = (pull * self.speed + sums.y) / (pull + sums.weight)
        pull = PULL_SHAPE / len(self.usual) * doubt
        times = np.linalg.solve(sums.zz + self._ridge * pull, sums.zy + pull * speed)
        np.maximum(times, LEAST * speed, out=times)
        self._set(place, times * self.usual)

    def _forgotten(self, place: int) -> None:
        self._unknown.add(place)
        self.num_unsure += not self.unsure[place]
        self.unsure[place] = True
        self._set(place, self.usual * self.speed)

    def _tell_unknown(self) -> None:
        """Those of whom nothing is known, how fast the others are."""
        if self._unknown and abs(self.speed - self._told) > TELL * self._told:
            self._told = self.speed
            for place in self._unknown:
                self._set(place, self.usual * self.speed)

    def _set(self, place: int, costs: Column) -> None:
        self.table[:, place] = costs
        self._columns[place] = costs.tolist()


def _is_due(sums: _Sums, now: float) -> bool:
    if sums.count <= KNOWN_AFTER:
        return True
    enough = len(sums.pending) >= SOLVE_EVERY or abs(sums.bias) >= BIASED
    return enough and now - sums.solved >= SOLVE_SECONDS


def _absorb(sums: _Sums) -> None:
    """Brings `zz` and `zy` up to date: a few observations at once take hardly longer than one."""
    if not sums.pending:
        return
    rows, y, fades = zip(*sums.pending, strict=True)
    sums.pending.clear()
    weights, kept = [], 1.0  # what is left of each, and of all before them
    for fade in reversed(fades):
        weights.append(kept)
        kept *= fade
    z = np.array(rows)
    weighed = z.T * weights[::-1]
    sums.zz *= kept
    sums.zz += weighed.dot(z)
    sums.zy *= kept
    sums.zy += weighed.dot(y)


def _within(sums: _Sums, error: float) -> float:
    """The error, or as much of it as counts; the typical error learns from that."""
    far = max(FAR * sums.error, NEVER_FAR)
    error = min(max(error, -far), far)
    if sums.count:  # the first one says how fast the engine is, not how well we know it
        sums.error += max(ERROR_STEP, 1 / (1 + sums.count)) * (abs(error) - sums.error)
        sums.bias += BIAS_STEP * (error - sums.bias)
    return error
