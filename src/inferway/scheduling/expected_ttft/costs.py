"""What an engine's time consists of, learned from times observed: a robust regression for each.

A time is a sum of features, each at a cost of its own: t = x . c. The unknown is how many times
the usual cost (`usual`, the prior) each one is: c = usual * g. With z = x * usual / (x . usual),
whose elements sum to 1, and y = t / (x . usual), an observation says y = z . g.

Two beliefs hold g where observations are few: all its elements are one number s (an engine is slow
in everything or in nothing), and s is what it is for the other engines. So one observation teaches
how fast an engine is, and many of different mixtures which of its costs differ:

    s = (PULL_SPEED * s of all engines + sum of w y) / (PULL_SPEED + sum of w)
    g = solve(sum of w z zT + PULL_SHAPE * I,  sum of w y z + PULL_SHAPE * s)

(ridge regression towards s). Sums fade by FADE with each observation of the engine, so that what
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

from dataclasses import dataclass, field
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from inferway.model import Column

FADE = 0.99  # about the last hundred observations count
HALF_LIFE_SECONDS = 600.0
KNOWN_AFTER = 10  # observations; of an engine that has had so many
KEPT = 3.0  # the weight of as many is kept, however long ago they were
PULL_SPEED = 0.5  # the other engines' speed counts as half an observation
PULL_SHAPE = 0.5  # observations, divided among the features
FAR = 2.5  # typical errors; what is further off is an outlier
NEVER_FAR = log(2)  # no outlier, however small the typical error: half or twice as long
FIRST_ERROR = 0.8  # the typical one, before it is known: 7 times as long is no outlier
ERROR_STEP = 0.08
BIAS_STEP = 0.1
LEAST = 0.02  # times the engine's speed: no cost is less, none is negative
SURE_AFTER = 32  # observations; from then on costs are solved for every
SOLVE_EVERY = 4  # of them
REFRESH_SECONDS = 10.0  # how often every engine's sums fade


@dataclass(slots=True)
class _Sums:
    """Of one engine's observations."""

    zz: NDArray[np.float64]
    zy: NDArray[np.float64]
    weight: float = 0.0
    y: float = 0.0
    error: float = FIRST_ERROR  # the typical |log(observed / expected)|
    bias: float = 0.0  # the mean log(observed / expected) of late
    count: int = 0  # of observations
    faded: float = 0.0  # when, in seconds


@dataclass(slots=True)
class Costs:
    """Costs of one kind of time, for many engines. Column i of `table` is what place i pays for
    each feature; places begin with the usual costs, times what those before them have come to.
    """

    usual: Column  # one for each feature, in the unit of the times
    table: NDArray[np.float64] = field(init=False)  # features x places
    _sums: list[_Sums | None] = field(default_factory=list)  # by place; None: nothing observed
    _weight: float = 0.0  # of all engines
    _y: float = 0.0
    _ridge: NDArray[np.float64] = field(init=False)
    _next: int = 0  # the place to be refreshed
    _due: float = 0.0  # and when

    def __post_init__(self) -> None:
        size = len(self.usual)
        self.table = np.zeros((size, 0))
        self._ridge = PULL_SHAPE / size * np.eye(size)

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
        missing = places - self.table.shape[1]
        new = np.repeat((self.usual * self.speed)[:, None], missing, axis=1)
        self.table = np.concatenate([self.table, new], axis=1)
        self._sums += [None] * missing

    def forget(self, place: int) -> None:
        """Another engine takes the place."""
        self._sums[place] = None
        self.table[:, place] = self.usual * self.speed

    def expected(self, place: int, features: Column) -> float:
        return float(features @ self.table[:, place])

    def learn(self, place: int, features: Column, time: float, now: float) -> None:
        """It took so long (more than 0). Features are not negative, one at least is not 0."""
        z = features * self.usual
        usual_time = float(z.sum())
        z /= usual_time
        expected = self.expected(place, features) / usual_time
        error = log(time / usual_time / expected)
        sums = self._sums[place]
        if sums is None:
            size = len(self.usual)
            sums = _Sums(np.zeros((size, size)), np.zeros(size), faded=now)
            self._sums[place] = sums
            if not self.is_known:  # then nothing is too far off
                sums.error = abs(error)
        self._add(sums, z, expected * exp(_within(sums, error)))
        if sums.count < SURE_AFTER or sums.count % SOLVE_EVERY == 0:
            self._solve(place, sums)

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
            _fade(sums, by)
            sums.faded = now
            self._solve(self._next, sums)

    def _add(self, sums: _Sums, z: Column, y: float) -> None:
        _fade(sums, FADE * exp(-(sums.bias**2)))
        sums.zz += z[:, None] * z
        sums.zy += y * z
        sums.weight += 1
        sums.y += y
        sums.count += 1
        self._weight = FADE * self._weight + 1
        self._y = FADE * self._y + y

    def _solve(self, place: int, sums: _Sums) -> None:
        speed = (PULL_SPEED * self.speed + sums.y) / (PULL_SPEED + sums.weight)
        pull = PULL_SHAPE / len(self.usual) * speed
        times = np.linalg.solve(sums.zz + self._ridge, sums.zy + pull)
        np.maximum(times, LEAST * speed, out=times)
        self.table[:, place] = times * self.usual


def _fade(sums: _Sums, by: float) -> None:
    sums.zz *= by
    sums.zy *= by
    sums.weight *= by
    sums.y *= by


def _within(sums: _Sums, error: float) -> float:
    """The error, or as much of it as counts; the typical error learns from that."""
    far = max(FAR * sums.error, NEVER_FAR)
    error = min(max(error, -far), far)
    if sums.count:  # the first one says how fast the engine is, not how well we know it
        sums.error += max(ERROR_STEP, 1 / (1 + sums.count)) * (abs(error) - sums.error)
        sums.bias += BIAS_STEP * (error - sums.bias)
    return error
