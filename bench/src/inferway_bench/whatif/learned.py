"""Records -> the constants of the engines that served them. Pure.

They come from two places. What `expected-ttft` has learned while it served is in the recording; and
requests that had an engine to themselves say what it takes. Which of the two tells the recorded
times better is seen by simulating the requests on the engines they went to.

    time to the first token = request + step + prefill * (tokens + pairs / attention)
    time between two tokens = step + decode * requests that decode at once + context * their tokens

where each of the tokens that are computed looks at those before it: pairs. Least squares over the
medians of equal requests; no constant is less than nothing, and none is made of rounding errors.

Engines that share processors make each other pause. That is seen where requests that had an engine
to themselves took longer while others computed than those that had all engines to themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log, sqrt
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
    Spans,
    spans_of,
)

_ENOUGH = 30  # requests that had an engine to themselves
_ENOUGH_OF_ONE = 20  # of an engine, to say that it is slower than others
_ENOUGH_OF_A_BATCH = 8  # answers, to say how long its tokens take
_FEW_TOKENS = 4  # of an answer: fewer say nothing of the time between them
_SLOWER = log(1.1)  # and more: else it is chance
_QUARTILES = 1.349  # deviations of a normal distribution between its quartiles
_ALONE = 0.05  # answers that are written meanwhile, on average
_APART, _TOGETHER = 0.1, 0.5  # requests on other engines meanwhile, on average: fewer, more
_PAUSED = 0.1  # of the time to the first token, and more: else it is chance
_USUAL = 0.95  # of requests: what the rest takes longer may be a pause
_BEYOND_CHANCE = 3.0  # deviations
_MOST_TIMES, _CLOSE = 4.0, 0.03
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
    found = [
        _scattered(each, firsts, measured.row[use], len(replay.names)) for each in (engine, beside)
    ]
    paused = _paused(replay, engine, dict(zip(use.tolist(), firsts, strict=True)))
    return [*found, paused] if paused is not None else found


def _paused(replay: Replay, like: EngineSpec, firsts: Mapping[int, First]) -> Learned | None:
    """The constants where engines make each other pause; None if they do not."""
    measured = replay.measured
    sent = measured.at + measured.waited
    _, others = _company(measured, sent, measured.at + measured.ttft, len(replay.names))
    apart = [i for i in firsts if others[i] < _APART]
    together = [i for i in firsts if others[i] > _TOGETHER]
    if min(len(apart), len(together)) < _ENOUGH:
        return None
    quiet = [firsts[i] for i in apart]
    tokens = (like.step_seconds, like.decode_seconds, like.context_seconds)
    try:
        engine = with_constants(like, tokens, fit_prompts(quiet))
    except BenchError:
        return None
    late, later = (
        np.array([f.seconds - engine.idle_ttft(f.prompt, f.cached) for f in each])
        for each in (quiet, [firsts[i] for i in together])
    )
    pauses = fit_pauses(late, later)
    more = later.mean() - late.mean()
    if pauses is None or more < _PAUSED * np.mean([firsts[i].seconds for i in together]):
        return None
    learned = _scattered(engine, quiet, measured.row[apart], len(replay.names))
    paused = msgspec.structs.replace(
        learned.engine,
        prompt_pauses=round(pauses.number, 4),
        decode_pauses=round(_more_between(measured, len(replay.names)) / pauses.seconds, 4),
        pause_seconds=round(pauses.seconds, 4),
    )
    how = (
        f"fitted to {len(apart):,} requests that had all engines to themselves, and "
        f"{len(together):,} that had one of them"
    )
    return learned._replace(engine=paused, how=how)


def _more_between(measured: MeasuredRequests, num_engines: int) -> float:
    """By how many seconds a token of an answer that had an engine to itself came later, on average,
    while another engine computed."""
    first, end = measured.at + measured.ttft, measured.at + measured.latency
    each = (measured.latency - measured.ttft) / np.maximum(measured.output - 1, 1)
    own, others = _company(measured, first, end, num_engines)
    use = (measured.output >= _FEW_TOKENS) & (own < 1 + _ALONE)
    apart, together = each[use & (others < _APART)], each[use & (others > _TOGETHER)]
    if min(len(apart), len(together)) < _ENOUGH:
        return 0.0
    return max(0.0, float(together.mean() - apart.mean()))


def _company(
    measured: MeasuredRequests, since: Floats, until: Floats, num_engines: int
) -> tuple[Floats, Floats]:
    """How many requests were on each one's engine meanwhile, itself among them, and how many on
    other engines, on average; NaN where that is not known."""
    own, others = np.full((2, len(measured.at)), np.nan)
    rows = [spans_of(measured, row) for row in range(num_engines)]
    spans = [each for _, *both in rows for each in both]
    everyone = Spans.of(
        np.concatenate([each.starts for each in spans]),
        np.concatenate([each.ends for each in spans]),
    )
    for here, prompts, answers in rows:
        during = since[here], until[here]
        own[here] = prompts.mean(*during) + answers.mean(*during)
        others[here] = everyone.mean(*during) - own[here]
    return own, others


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


def fit_times(waited: float, simulated: Callable[[float], float]) -> float:
    """Return how many times as often engines that share a machine pause, so that the mean TTFT
    which is `simulated` with it is `waited`, in seconds; 1 if it is longer without. Raises
    BenchError when four times is not enough."""
    low, high = 1.0, _MOST_TIMES
    if simulated(high) < waited:
        raise BenchError(
            f"fitting: first tokens came after {waited * 1e3:,.0f} ms; with {high:g} times as many "
            f"pauses it is {simulated(high) * 1e3:,.0f}"
        )
    while high - low > _CLOSE:
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
