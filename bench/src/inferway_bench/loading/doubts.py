"""Why figures cannot be trusted, or do not say what they seem to. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from inferway_bench.loading.measured import MeasuredLoad

_BUSY = 0.8  # of a core
_LATE_SECONDS, _LATE_SHARE = 0.005, 0.05  # of sending: less is nobody's trouble
_BEHIND = 0.95  # of the rate that was meant
_HELD = 0.02  # of the turns
_FEW = 100  # requests: a 99th percentile needs more


def doubts(kept: MeasuredLoad) -> list[str]:
    """Return one sentence each, the worst first."""
    return [*_of_generator(kept), *_of_server(kept), *_of_what_is_said(kept)]


def _of_generator(kept: MeasuredLoad) -> Iterator[str]:
    cpu_share = kept.driven.cpu_share
    if cpu_share > _BUSY:
        yield (
            f"the load generator was the bottleneck: it used {cpu_share:.0%} of its core; "
            "fix: a lower load, or several generators"
        )
    times = [s.ttft for s in kept.good if s.ttft is not None]
    if kept.late_p99 > max(_LATE_SECONDS, _LATE_SHARE * float(np.median(times or [0.0]))):
        yield (
            f"the load generator was late by itself: {kept.late_p99 * 1e3:.1f} ms in 1 % of the "
            "requests; fix: a quieter or faster machine for it"
        )
    if not kept.driven.is_whole:
        yield "stopped before its end"


def _of_server(kept: MeasuredLoad) -> Iterator[str]:
    num, good = len(kept.samples), kept.good
    errors = Counter(s.error for s in kept.samples if s.error is not None).most_common()
    if errors:
        kinds = ", ".join(f"{kind} {count}" for kind, count in errors)
        yield f"{num - len(good)} of {num} requests failed ({kinds})"
    details = {s.error: s.detail for s in kept.samples if s.error is not None and s.detail}
    yield from (f"{kind}: {said}" for kind, said in details.items())
    if kept.stage.rate is None:
        return
    sent, answered = len(good) / kept.seconds, kept.ended(lambda s: s.ok)
    if answered.value < _BEHIND * sent and answered.high < sent:
        yield (
            f"the server does not keep up: {sent:.3g} requests a second were sent and "
            f"{answered.value:.3g} answered: its latencies grow as long as the load lasts; or the "
            "run is too short for its answers; fix: a lower load, or more --warm-up and "
            "--duration"
        )
    num_held = sum(s.held > 0 for s in kept.samples)
    if num_held > _HELD * num:
        yield (
            f"{num_held} turns waited for the answer before in their session, which counts as "
            "latency; fix: more --sessions"
        )


def _of_what_is_said(kept: MeasuredLoad) -> Iterator[str]:
    good = kept.good
    if not good:
        return
    if len(good) < _FEW:
        yield f"{len(good)} requests: the 99th percentile is hardly more than the slowest"
    if all(s.prompt_tokens is None for s in good):
        yield "the server says no usage: tokens are counted by their chunks, the cache is unknown"
    elif kept.cached_share() is None:
        yield (
            "the server does not say what it had cached; vLLM does with "
            "--enable-prompt-tokens-details"
        )
    if all(s.num_deltas == 1 for s in good):
        yield "no answer came in more than one piece: its first token is its last"
