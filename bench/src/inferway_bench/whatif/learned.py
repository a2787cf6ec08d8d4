"""Records -> the constants of the engines that served them. Pure.

They come from two places. What `expected-ttft` has learned while it served is in the recording; and
requests that had an engine to themselves say what it takes. Which of the two tells the recorded
times better is seen by simulating the requests on the engines they went to.

    time to the first token = request + step + prefill * (tokens + pairs / attention)
    time between two tokens = step + decode * requests that decode at once + context * their tokens

where each of the tokens that are computed looks at those before it: pairs. Least squares over the
medians of equal requests; no constant is less than nothing, and none is made of rounding errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.engine import EngineSpec
from inferway_bench.processes import BenchError
from inferway_bench.whatif.replay import (
    EngineFacts,
    Floats,
    MeasuredRequests,
    Replay,
    spans_of,
)

_ENOUGH = 30  # requests that had an engine to themselves
_ENOUGH_OF_ONE = 20  # of an engine, to say that it is slower than others
_ENOUGH_OF_A_BATCH = 8  # answers, to say how long its tokens take
_FEW_TOKENS = 4  # of an answer: fewer say nothing of the time between them
_SLOWER = log(1.1)  # and more: else it is chance
_QUARTILES = 1.349  # deviations of a normal distribution between its quartiles
_ALONE = 0.05  # answers that are written meanwhile, on average
# A constant that makes up less of the times than this, on average, was not measured: the solver's
# rounding errors, which differ from CPU to CPU, reach 1e-13, and no clock tells so small a share.
_SMALLEST_SHARE = 1e-6


class Learned(NamedTuple):
    """An engine's constants, and how many times as slow as it each engine is."""

    how: str  # where they come from, in words
    engine: EngineSpec
    factors: tuple[float, ...]


def fitted(replay: Replay, like: EngineSpec) -> list[Learned]:
    """Return `like` with constants that are fitted to the recorded times, in each way that an
    engine may compute prompts: in steps with the answers, and beside them. Raises BenchError if
    they do not say enough."""
    measured = replay.measured
    alone, decoding = _loads(measured, len(replay.names))
    use = np.flatnonzero(alone & (decoding < _ALONE))
    if len(use) < _ENOUGH:
        use = np.flatnonzero(alone)  # answers are written meanwhile, which costs less than a prompt
    if len(use) < _ENOUGH:
        raise BenchError(
            f"{len(use)} recorded requests had an engine to themselves; {_ENOUGH} are needed; "
            "fix: a recording with quieter minutes, or one that has what expected-ttft learned"
        )
    waits = measured.ttft - measured.waited
    cached = np.where(np.isfinite(measured.cached), measured.cached, 0.0)
    use = use[waits[use] > 0]
    firsts = [First(int(cached[i]), int(measured.prompt[i]), float(waits[i])) for i in use]
    prompts = fit_prompts(firsts)
    engine = with_constants(like, _between(measured), prompts)
    begin, _, _ = prompts
    beside = msgspec.structs.replace(engine, prompts_beside=1, request_seconds=begin)
    return [
        _scattered(each, firsts, measured.row[use], len(replay.names)) for each in (engine, beside)
    ]


def _scattered(
    engine: EngineSpec, firsts: Sequence[First], rows: np.ndarray, num_engines: int
) -> Learned:
    """The constants with what of each engine differs from them, and by how much times scatter."""
    off = np.array([log(f.seconds / engine.idle_ttft(f.prompt, f.cached)) for f in firsts])
    factors = _factors(off, rows, num_engines)
    off -= np.log(np.array(factors))[rows]
    low, high = np.percentile(off, (25, 75))
    scatter = round(float(high - low) / _QUARTILES, 4)
    return Learned(
        f"fitted to {len(firsts):,} requests that had an engine to themselves",
        msgspec.structs.replace(engine, scatter=scatter),
        factors,
    )


def from_costs(engines: Mapping[str, EngineFacts], like: EngineSpec) -> Learned | None:
    """Return `like` with the constants that expected-ttft has learned; None if the recording does
    not have them."""
    costs = [facts.costs for facts in engines.values()]
    known = [each for each in costs if {"ttft_own_token", "tpot_fixed"} <= each.keys()]
    if not known:
        return None

    def usual(name: str) -> float:
        return float(np.median([each.get(name, 0.0) for each in known])) / 1e3

    own, pair, step = usual("ttft_own_token"), usual("ttft_token_pair"), usual("tpot_fixed")
    engine = msgspec.structs.replace(
        like,
        step_seconds=step,
        decode_seconds=usual("tpot_running_request"),
        prefill_seconds=own,
        attention_tokens=round(own / pair) if pair > 0 else 0,
        request_seconds=max(0.0, usual("ttft_fixed") - step),
    )
    factors = tuple(each.get("ttft_own_token", own * 1e3) / own / 1e3 for each in costs)
    return Learned(
        f"as expected-ttft had learned them of {len(known)} engines",
        engine,
        tuple(round(f, 3) if abs(log(f)) > _SLOWER else 1.0 for f in factors),
    )


def _loads(measured: MeasuredRequests, num_engines: int) -> tuple[np.ndarray, Floats]:
    """Whether no other prompt was on its engine until its first token; how many answers were
    written there meanwhile, on average."""
    alone = np.zeros(len(measured.at), bool)
    decoding = np.zeros(len(measured.at))
    for row in range(num_engines):
        here, prompts, answers = spans_of(measured, row)
        sent = measured.at[here] + measured.waited[here]
        first = np.maximum(measured.at[here] + measured.ttft[here], sent)
        alone[here] = prompts.touching(sent, first) <= 1
        decoding[here] = answers.mean(sent, first)
    return alone, decoding


def _between(measured: MeasuredRequests) -> tuple[float, float, float]:
    """The seconds of a step, of each request in it, and of each token that one looks at, as far as
    the gaps between tokens tell them apart."""
    tokens: list[Tokens] = []
    for row in range(int(measured.row.max()) + 1):
        here, prompts, answers = spans_of(measured, row)
        first = measured.at[here] + measured.ttft[here]
        end = np.maximum(measured.at[here] + measured.latency[here], first)
        quiet = prompts.touching(first, end) == 0
        batch = np.maximum(answers.mean(first, end).round(), 1).astype(int)
        for i, request in enumerate(here):
            seconds = float(measured.itl[request])
            is_long = measured.output[request] >= _FEW_TOKENS
            if is_long and seconds > 0 and quiet[i]:
                context = measured.prompt[request] + measured.output[request] / 2
                tokens.append(Tokens(int(batch[i]), round(context), seconds))
    return _of_tokens(tokens)


def _of_tokens(tokens: Sequence[Tokens]) -> tuple[float, float, float]:
    default = EngineSpec()
    if not tokens:
        return default.step_seconds, default.decode_seconds, 0.0
    # medians: pieces that came late together came in no time one after the other
    by_batch: dict[tuple[int, bool], list[Tokens]] = {}
    middle = float(np.median([each.context for each in tokens]))
    for each in tokens:
        by_batch.setdefault((each.batch, each.context > middle), []).append(each)
    usual = [_median(of) for of in by_batch.values() if len(of) >= _ENOUGH_OF_A_BATCH]
    if len({each.batch for each in usual}) < 2:
        return float(np.median([each.seconds for each in tokens])), 0.0, 0.0
    step, decode, context = fit_tokens(usual)
    return step, decode, context


def _median(tokens: Sequence[Tokens]) -> Tokens:
    context = float(np.median([each.context for each in tokens]))
    return Tokens(tokens[0].batch, round(context), float(np.median([t.seconds for t in tokens])))


def _factors(off: Floats, rows: np.ndarray, num_engines: int) -> tuple[float, ...]:
    """How many times as slow each engine is, where it is beyond chance."""
    found = []
    for row in range(num_engines):
        own = off[rows == row]
        middle = float(np.median(own)) if len(own) >= _ENOUGH_OF_ONE else 0.0
        found.append(round(float(np.exp(middle)), 3) if abs(middle) > _SLOWER else 1.0)
    return tuple(found)


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
