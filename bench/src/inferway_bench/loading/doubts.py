"""Why figures cannot be trusted, or do not say what they seem to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Literal

import numpy as np

from inferway_bench.loading.measured import MeasuredLoad

_BUSY = 0.8  # of a core
_LATE_SECONDS, _LATE_SHARE = 0.005, 0.05  # of sending: less is nobody's trouble
_BEHIND = 0.95  # of the rate that was meant
_GREW, _GREW_SECONDS = 1.5, 0.02  # times and seconds, from the first third to the last
_SURE = 3.0  # standard deviations
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")
_FEW = 100  # requests: a 99th percentile needs more


def doubts(kept: MeasuredLoad) -> list[str]:
    """Return one sentence each, the worst first."""
    return [*_of_generator(kept), *_of_server(kept), *_of_what_is_said(kept)]


def _of_generator(kept: MeasuredLoad) -> Iterator[str]:
    cpu_share = kept.driven.cpu_share
    if cpu_share > _BUSY:
        yield (
            f"the load generator was the bottleneck: it used {cpu_share:.0%} of its core; the "
            "cure: a lower load, or several generators"
        )
    times = [s.ttft for s in kept.good if s.ttft is not None]
    if kept.late_p99 > max(_LATE_SECONDS, _LATE_SHARE * float(np.median(times or [0.0]))):
        yield (
            f"the load generator was late by itself: {kept.late_p99 * 1e3:.1f} ms in 1 % of the "
            "requests; the cure: a quieter or faster machine for it"
        )
    if not kept.driven.is_whole:
        yield "stopped before its end"


def _of_server(kept: MeasuredLoad) -> Iterator[str]:
    num, good, rate = len(kept.samples), kept.good, kept.stage.rate
    errors = Counter(s.error for s in kept.samples if s.error is not None).most_common()
    if errors:
        kinds = ", ".join(f"{kind} {count}" for kind, count in errors)
        yield f"{num - len(good)} of {num} requests failed ({kinds})"
    details = {s.error: s.detail for s in kept.samples if s.error is not None and s.detail}
    for kind, said in details.items():
        yield f"{kind}: {said}"
    sent, answered = len(good) / kept.seconds, kept.ended(lambda s: s.ok)
    is_behind = rate is not None and answered.value < _BEHIND * sent and answered.high < sent
    in_order = sorted(good, key=lambda s: s.intended)
    grew = _growth([s.ttft for s in in_order if s.ttft is not None])
    if is_behind and grew is not None:
        yield (
            f"the server does not keep up: {sent:.3g} requests a second were sent and "
            f"{answered.value:.3g} answered: its latencies grow as long as the load lasts"
        )
    elif is_behind:
        yield (
            f"{sent:.3g} requests a second were sent and {answered.value:.3g} answered: answers "
            "take too long for so short a run; the cure: more --warm-up and --duration"
        )
    elif grew is not None:
        yield (
            f"time to first token was still growing ({grew:.1f} times from the first third to the "
            "last): not a steady state"
        )
    num_held = sum(s.held > 0 for s in kept.samples)
    if rate is not None and num_held > 0.02 * num:
        yield (
            f"{num_held} turns waited for the answer before in their session, which counts as "
            "latency; the cure for less of it: more --sessions"
        )


def _of_what_is_said(kept: MeasuredLoad) -> Iterator[str]:
    good = kept.good
    if 0 < len(good) < _FEW:
        yield f"{len(good)} requests: the 99th percentile is hardly more than the slowest"
    if good and all(s.prompt_tokens is None for s in good):
        yield "the server says no usage: tokens are counted by their chunks, the cache is unknown"
    elif good and kept.cached_share() is None:
        yield (
            "the server does not say what it had cached; vLLM does with "
            "--enable-prompt-tokens-details"
        )
    if good and all(s.num_deltas == 1 for s in good):
        yield "no answer came in more than one piece: its first token is its last"


def _growth(values: Sequence[float]) -> float | None:
    """Median of the last third to that of the first, in the order of intended times; None if it
    is no matter, or may be chance: by Mann and Whitney's test (1947), at _SURE deviations."""
    third = len(values) // 3
    if third < 10:
        return None
    first, last = np.sort(values[:third]), np.array(values[-third:])
    low, high = (np.searchsorted(first, last, side).mean() for side in _SIDES)
    larger = float(low + high) / 2 / third  # the share of pairs whose last is the larger
    if larger - 0.5 < _SURE * sqrt((2 * third + 1) / 12) / third:
        return None
    before, now = float(np.median(first)), float(np.median(last))
    has_grown = now > _GREW * before and now - before > _GREW_SECONDS
    return now / before if before and has_grown else None
