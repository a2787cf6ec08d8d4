"""Samples -> what is known of an endpoint under a load, and why it cannot be trusted. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inferway_bench.loading.answers import Sample
from inferway_bench.loading.drive import Driven
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row, Value
from inferway_bench.spread import Interval, Windows

TABLE = "loads"
_BUSY = 0.8  # of a core
_LATE_SECONDS, _LATE_SHARE = 0.005, 0.05  # of sending: less is nobody's trouble
_BEHIND = 0.95  # of the rate that was meant
_HELD = 0.02  # of the turns
_FEW = 100  # requests: a 99th percentile needs more
_LATENCIES: dict[str, Callable[[Sample], float | None]] = {  # seconds, from the intended time
    "TTFT": lambda s: s.ttft,
    "ITL": lambda s: s.itl,
    "E2E": lambda s: s.e2e,
    "TTFT sent": lambda s: s.ttft_sent,
    "E2E sent": lambda s: s.e2e_sent,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One load: so many requests a second, or so many users, or (neither) a trace's own times."""

    rate: float | None = None
    users: int | None = None

    @property
    def name(self) -> str:
        """The name of the load in tables."""
        if self.users is not None:
            return f"{self.users} user{'s' * (self.users > 1)}"
        return "own times" if self.rate is None else f"{self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Slo:
    """The limits that a request must keep to count as good: seconds, from the intended time."""

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def kept(self, sample: Sample) -> bool:
        """Return whether the sample is good; one that failed is not."""
        wanted = ((self.ttft, sample.ttft), (self.itl, sample.itl), (self.e2e, sample.e2e))
        return sample.ok and all(
            limit is None or found is None or found <= limit for limit, found in wanted
        )

    @property
    def words(self) -> str:
        """The limits, as a title names them; empty without any."""
        named = (("TTFT", self.ttft), ("ITL", self.itl), ("E2E", self.e2e))
        return ", ".join(f"{name} up to {s * 1e3:g} ms" for name, s in named if s is not None)


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """The measurements of a stage, its warm-up and cool-down left out: the samples that were meant
    to be sent in `seconds` from `since`."""

    stage: Stage
    driven: Driven
    samples: Sequence[Sample]
    since: float
    seconds: float

    @property
    def good(self) -> list[Sample]:
        """The samples that succeeded: latencies are theirs."""
        return [s for s in self.samples if s.ok]

    @property
    def windows(self) -> Windows:
        """The parts of its time, for intervals."""
        return Windows(self.since, self.seconds, len(self.samples))

    @property
    def late_p99(self) -> float:
        """Seconds that the generator itself held requests up; 99 of 100 were less."""
        return float(np.percentile([s.late for s in self.samples], 99))

    def ended(self, counts: Callable[[Sample], bool]) -> Interval:
        """Return how many answers a second ended that `counts` is true of."""
        samples = self.driven.samples
        return self.windows.rate([s.ended for s in samples], [float(counts(s)) for s in samples])

    def cached_share(self) -> Interval | None:
        """Return the share of prompt tokens that the server had cached; None if it does not say.
        Some say nothing where it is nothing (older vLLM)."""
        said = {s.cached_tokens for s in self.good}
        if said <= {None}:
            return None
        known = [
            s
            for s in self.good
            if s.prompt_tokens and (s.cached_tokens is not None or 0 not in said)
        ]
        at, windows = [s.intended for s in known], self.windows
        return windows.ratio(
            windows.sums(at, [float(s.cached_tokens or 0) for s in known]),
            windows.sums(at, [float(s.prompt_tokens or 0) for s in known]),
        )


def keep(
    driven: Driven, stage: Stage, warm_up: float = 0.0, cool_down: float = 0.0,
    seconds: float | None = None,
) -> MeasuredLoad:  # fmt: skip
    """Return what was meant to be sent after `warm_up` and before the last `cool_down` seconds of a
    stage meant to take `seconds` (unless given: until its last request's time).

    Raises BenchError if that is nothing.
    """
    samples = driven.samples
    planned = seconds if driven.is_whole else None
    # Without a warm-up nothing is left out, nor a first request that was sent before its time, as a
    # timer of whole milliseconds does it.
    since = warm_up or min((0.0, *(s.intended for s in samples)))
    end = max((s.intended for s in samples), default=0.0) + 1e-6 if planned is None else planned
    until = end - cool_down
    kept = [s for s in samples if since <= s.intended < until]
    if not kept:
        raise BenchError(
            f"{stage.name}: nothing measured: {len(samples)} requests, none meant to be sent "
            f"between {since:g} s and {max(until, 0.0):g} s; fix: a longer run, or less of "
            "--warm-up"
        )
    return MeasuredLoad(stage, driven, kept, since, until - since)


def row_of(kept: MeasuredLoad, slo: Slo, number: int = 0) -> Row:
    """Return all figures of a stage; times in ms. `number` is its place in the run."""
    stage, good = kept.stage, kept.good
    prompts = [s.prompt_tokens for s in good if s.prompt_tokens is not None]
    values: dict[str, Value] = {
        "at": stage.rate or float(stage.users or number),
        "requests": len(kept.samples),
        "failed": len(kept.samples) - len(good),
        **_latencies(kept),
        "answers/s": kept.ended(lambda s: s.ok),
        "tokens/s": _tokens(kept),
        "cached": kept.cached_share(),
        "prompt": float(np.mean(prompts)) if prompts else None,
        "answer": float(np.mean([s.num_tokens for s in good])) if good else None,
        "held": sum(s.held > 0 for s in kept.samples),
        "late p99": kept.late_p99 * 1e3,
        "its CPU": kept.driven.cpu_share,
    }
    if slo.words:
        at = [s.intended for s in kept.samples]
        values["kept"] = kept.windows.mean(at, [float(slo.kept(s)) for s in kept.samples])
        values["good answers/s"] = kept.ended(slo.kept)
    return Row(TABLE, {"load": stage.name}, values)


def _latencies(kept: MeasuredLoad) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, of in _LATENCIES.items():
        pairs = [(s.intended, value * 1e3) for s in kept.good if (value := of(s)) is not None]
        if pairs:
            at, values = [p[0] for p in pairs], [p[1] for p in pairs]
            p50, p99 = np.percentile(values, (50, 99))
            found |= {
                name: kept.windows.mean(at, values),
                f"{name} p50": float(p50),
                f"{name} p90": kept.windows.percentile(at, values, 90),
                f"{name} p99": float(p99),
                f"{name} max": max(values),
            }
    return found


def _tokens(kept: MeasuredLoad) -> Interval:
    """When they came, not when their requests were sent: a server that lags behind has not produced
    what it still owes."""
    times: list[float] = []
    weights: list[float] = []
    for s in kept.driven.samples:
        if s.first is not None:
            deltas = np.cumsum((s.first, *s.gaps))
            times += deltas.tolist()
            weights += [s.num_tokens / len(deltas)] * len(deltas)
    return kept.windows.rate(times, weights)


def doubts(kept: MeasuredLoad) -> list[str]:
    """Return why figures of a load cannot be trusted, or do not say what they seem to: one sentence
    each, the worst first."""
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
