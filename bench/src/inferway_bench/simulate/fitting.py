"""What a few requests took on one engine -> the constants of a simulated one. Pure.

    time to the first token = request + step + prefill * (tokens + pairs / attention)
    time between two tokens = step + decode * requests that decode at once + context * their tokens

where each of the tokens that are computed looks at those before it: pairs. Least squares over the
medians of equal requests; no constant is less than nothing, and none is made of rounding errors.
By how much equal requests differ says how a step's time scatters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import log, sqrt
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.processes import BenchError

# Half of all pairs drawn from a normal distribution differ by so many deviations or less.
_PAIR_MEDIAN = 0.9539

# A constant that makes up less of the times than this, on average, was not measured: the solver's
# rounding errors, which differ from CPU to CPU, reach 1e-13, and no clock tells so small a share.
_SMALLEST_SHARE = 1e-6
_MOST_BESIDE, _CLOSE = 4.0, 0.002
_USUAL = 0.95  # of requests: what the rest takes longer may be a pause
_BEYOND_CHANCE = 3.0  # deviations


class First(NamedTuple):
    """The beginning of one answer, on an engine with nothing else to do."""

    cached: int  # tokens
    prompt: int  # tokens
    seconds: float


class Tokens(NamedTuple):
    """The tokens of answers of which `batch` are written at once."""

    batch: int
    context: int  # tokens before one of them, prompt and answer, on average
    seconds: float  # from one to the next


class Measured(NamedTuple):
    """What an engine took at one time."""

    firsts: Sequence[First]
    tokens: Sequence[Tokens]


def fit(measured: Sequence[Measured], like: EngineSpec) -> EngineSpec:
    """Return `like` with the constants that were measured, at several times. Raises BenchError if
    too little was measured."""
    tokens = fit_tokens([token for one in measured for token in one.tokens])
    prompts = fit_prompts(first for one in measured for first in one.firsts)
    fitted = with_constants(like, tokens, prompts)
    return msgspec.structs.replace(fitted, scatter=round(_scatter(measured), 4))


def with_constants(
    like: EngineSpec, tokens: Sequence[float], prompts: Sequence[float]
) -> EngineSpec:
    """Return `like` with what `fit_tokens` and `fit_prompts` have found."""
    step, decode, context = tokens
    begin, each, pair = prompts
    return msgspec.structs.replace(
        like,
        step_seconds=step,
        decode_seconds=decode,
        context_seconds=context,
        prefill_seconds=each,
        attention_tokens=round(each / pair) if pair > 0 else 0,
        request_seconds=max(0.0, begin - step),
    )


def fit_beside(waited: float, simulated: Callable[[float], float], close: float = _CLOSE) -> float:
    """Return by how much engines that share a machine slow each other: how many times as long a
    step takes while another engine computes (or as often it pauses then), so that the mean TTFT
    which is `simulated` with it is `waited`, in seconds; 1 if it is longer without. It is found as
    exactly as `close`. Raises BenchError when four times is not enough.

    It is the only constant that cannot be measured on an engine alone: the router and the clients
    want the processors as well, so `waited` is that of chats that went through a router.
    """
    low, high = 1.0, _MOST_BESIDE
    if simulated(high) < waited:
        raise BenchError(
            f"fitting: first tokens came after {waited * 1e3:,.0f} ms; with engines that slow each "
            f"other {high:g} times it is {simulated(high) * 1e3:,.0f}: something else was in the "
            "way; fix: a quieter machine"
        )
    while high - low > close:
        middle = (low + high) / 2
        low, high = (middle, high) if simulated(middle) < waited else (low, middle)
    return round(low, 3)


class Pauses(NamedTuple):
    """How often an engine pauses while others compute, and for how long, on average."""

    number: float
    seconds: float


def fit_pauses(apart: NDArray[np.float64], together: NDArray[np.float64]) -> Pauses | None:
    """Return what explains that requests came later than they should, in seconds, `together` with
    others more often than `apart`; None if they hardly did. What is left of an exponentially
    distributed pause is on average as long as all of it, so those that exceed what is usual apart
    say how long one is, and the mean of all then says how many there are."""
    more = max(0.0, float(together.mean() - apart.mean()))
    usual = max(float(np.percentile(apart, _USUAL * 100)), more / 2)  # no pause is less, or few
    longer = together[together > usual] - usual
    chance, count = 1 - _USUAL, len(together)
    if len(longer) < chance * count + _BEYOND_CHANCE * sqrt(chance * _USUAL * count):
        return None
    seconds = float(longer.mean())
    return Pauses(more / seconds, seconds)


def _scatter(measured: Sequence[Measured]) -> float:
    """The deviation of a time's logarithm from one request to an equal one of the same minute."""
    differences: list[float] = []
    for one in measured:
        for times in _by_case(one.firsts).values():
            differences += (abs(log(a / b)) for a, b in combinations(times, 2))
    return median(differences) / _PAIR_MEDIAN if differences else 0.0


def _by_case(firsts: Iterable[First]) -> dict[tuple[int, int], list[float]]:
    """The seconds of equal requests."""
    times: dict[tuple[int, int], list[float]] = {}
    for first in firsts:
        times.setdefault((first.cached, first.prompt), []).append(first.seconds)
    return dict(sorted(times.items()))


def fit_prompts(firsts: Iterable[First]) -> tuple[float, ...]:
    """Return the seconds until a prompt is begun and its first token told, of each of its tokens
    that is computed, and of each pair of such a token and one before it. Raises BenchError if too
    little was measured."""
    cases = _by_case(firsts)
    if len(cases) < 3:
        raise BenchError(f"fitting: prompts of {len(cases)} lengths; three are needed at least")
    # the tokens that are computed, and the pairs of one of them and one before it
    rows = [(1.0, p - c, (p * p - c * c) / 2) for c, p in cases]
    times = [median(seconds) for seconds in cases.values()]
    found = _least_squares(np.array(rows), np.array(times))
    if found[1] <= 0:
        raise BenchError("fitting: longer prompts did not take longer; fix: a quieter machine")
    return found


def fit_tokens(tokens: Sequence[Tokens]) -> tuple[float, ...]:
    """Return the seconds of a step, of each request in it, and of each token that one looks at.
    Raises BenchError if all were measured at one batch size."""
    if len({one.batch for one in tokens}) < 2:
        raise BenchError("fitting: tokens of one batch size; two are needed at least")
    rows = [(1.0, one.batch, one.batch * one.context) for one in tokens]
    return _least_squares(np.array(rows), np.array([one.seconds for one in tokens]))


def _least_squares(rows: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[float, ...]:
    """As good a fit relative to each time as can be; a constant that would be negative, or too
    small to have been measured, is left out and zero, the most negative first."""
    weighed = rows / times[:, None]
    kept = list(range(rows.shape[1]))
    found = np.zeros(rows.shape[1])
    while kept:
        solved = np.linalg.lstsq(weighed[:, kept], np.ones(len(times)), rcond=None)[0]
        shares = solved * weighed[:, kept].mean(axis=0)
        if (shares >= _SMALLEST_SHARE).all():
            found[kept] = solved
            break
        del kept[int(shares.argmin())]
    return tuple(found.tolist())
