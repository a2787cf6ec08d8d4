"""Samples -> what is known of an endpoint under a load. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from inferway_bench.loading.doubts import doubts
from inferway_bench.loading.drive import Driven
from inferway_bench.loading.histogram import Buckets, Histogram
from inferway_bench.loading.samples import Sample
from inferway_bench.loading.windows import Windows
from inferway_bench.processes import BenchError
from inferway_bench.results import Figure, Run
from inferway_bench.spread import Interval


class Slo(msgspec.Struct, frozen=True):
    """What a request must keep to count as good; seconds, from the intended time."""

    ttft: float | None = None
    itl: float | None = None
    e2e: float | None = None

    def kept(self, sample: Sample) -> bool:
        wanted = ((self.ttft, sample.ttft), (self.itl, sample.itl), (self.e2e, sample.e2e))
        return sample.ok and all(
            limit is None or found is None or found <= limit for limit, found in wanted
        )

    @property
    def is_asked(self) -> bool:
        return (self.ttft, self.itl, self.e2e) != (None, None, None)


class Times(msgspec.Struct, frozen=True):
    """Seconds. Percentiles are exact."""

    mean: Interval
    p50: float
    p90: Interval
    p99: float
    most: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One load, its warm-up and cool-down left out. Latencies are those of the requests that
    succeeded; shares and rates are of all."""

    load: str  # "3/s", "8 users", …
    rate: float | None = None  # requests a second that were meant; None: closed loop
    users: int | None = None
    seconds: float  # that were measured
    num_requests: int  # that were meant to be sent in them
    num_ok: int
    errors: dict[str, int]  # kind -> count
    examples: dict[str, str]  # kind -> what the server said of one
    requests_per_second: Interval  # that were answered
    output_tokens_per_second: Interval
    ttft: Times | None  # from the intended time, as is e2e
    ttft_sent: Times | None  # from the first byte sent
    itl: Times | None
    e2e: Times | None
    e2e_sent: Times | None
    gap_p99: float | None  # between any two deltas
    corrected_ttft_p99: float | None = None  # of closed loops, see Histogram.add_corrected
    corrected_e2e_p99: float | None = None
    prompt_tokens: float | None  # mean, as the server says
    completion_tokens: float | None  # mean
    cached_share: Interval | None  # of the prompt tokens, as the server says
    slo: Slo | None = None
    attained: Interval | None = None  # share of requests that kept the SLO
    goodput: Interval | None = None  # how many did each second
    num_held: int  # turns whose session's answer before was not there at their time
    late_p99: float  # of sending, because the generator was busy
    cpu_share: float  # of a core, that the generator used
    is_whole: bool
    doubts: list[str]  # why this cannot be trusted, or not for all it seems to say
    histograms: dict[str, Buckets]  # ttft, ttft_sent, itl, gap, e2e, e2e_sent


class LoadRun(Run, frozen=True):
    """A whole run of `inferway bench load`."""

    url: str
    model: str
    workload: str
    seed: int
    measured: list[Measured]

    @property
    def seeds(self) -> list[int]:
        return [self.seed]

    @property
    def is_of_machine(self) -> bool:
        return False  # the server may be anywhere

    def figures(self) -> list[Figure]:
        """Of each load. A window is a part of one run and no repeat: there is one value each, and
        how it varies within the run."""
        return [figure for m in self.measured for figure in _figures(m)]


def _figures(m: Measured) -> Iterator[Figure]:
    times = (("TTFT", m.ttft), ("ITL", m.itl), ("E2E", m.e2e))
    for name, found in times:
        if found is not None:
            yield _figure(f"{m.load}: {name}, mean", "s", found.mean)
            yield _figure(f"{m.load}: {name}, 90 %", "s", found.p90)
    yield _figure(f"{m.load}: tokens", "a second", m.output_tokens_per_second, "higher")
    if m.cached_share is not None:
        yield _figure(f"{m.load}: cached", "share", m.cached_share, "higher")


def _figure(
    name: str, unit: str, found: Interval, better: Literal["lower", "higher"] = "lower"
) -> Figure:
    return Figure(name, unit, [found.value], better, within=found)


def measured(
    driven: Driven,
    *,
    load: str,
    rate: float | None = None,
    users: int | None = None,
    warm_up: float = 0.0,
    cool_down: float = 0.0,
    seconds: float | None = None,
    slo: Slo | None = None,
) -> Measured:
    """Of a stage meant to take `seconds` (unless given: until its last request's time), what
    was meant to be sent after `warm_up` and before its last `cool_down` seconds.

    Raises BenchError if that is nothing.
    """
    planned = seconds if driven.is_whole else None
    since, until = _begin(driven.samples, warm_up), _end(driven.samples, planned) - cool_down
    kept = _between(since, until, driven.samples, load)
    good = [s for s in kept if s.ok]
    windows = Windows(since, until - since, len(kept))
    histograms = _histograms(good)
    interval = _cycle(good) if users is not None else None
    found = Measured(
        load=load,
        rate=rate,
        users=users,
        seconds=until - since,
        num_requests=len(kept),
        num_ok=len(good),
        errors=dict(Counter(s.error for s in kept if s.error is not None).most_common()),
        examples={s.error: s.detail for s in kept if s.error is not None and s.detail},
        requests_per_second=_ended(windows, driven.samples, lambda s: s.ok),
        output_tokens_per_second=_tokens(windows, driven.samples),
        ttft=_times(windows, good, lambda s: s.ttft),
        ttft_sent=_times(windows, good, lambda s: s.ttft_sent),
        itl=_times(windows, good, lambda s: s.itl),
        e2e=_times(windows, good, lambda s: s.e2e),
        e2e_sent=_times(windows, good, lambda s: s.e2e_sent),
        gap_p99=histograms["gap"].percentile(99) if len(histograms["gap"]) else None,
        corrected_ttft_p99=_corrected([s.ttft for s in good if s.ttft is not None], interval),
        corrected_e2e_p99=_corrected([s.e2e for s in good], interval),
        prompt_tokens=_mean([s.prompt_tokens for s in good if s.prompt_tokens is not None]),
        completion_tokens=_mean([s.num_tokens for s in good]),
        cached_share=_cached(windows, good),
        slo=slo if slo is not None and slo.is_asked else None,
        attained=_attained(windows, kept, slo),
        goodput=None
        if slo is None or not slo.is_asked
        else _ended(windows, driven.samples, slo.kept),
        num_held=sum(s.held > 0 for s in kept),
        late_p99=float(np.percentile([s.late for s in kept], 99)),
        cpu_share=driven.cpu_share,
        is_whole=driven.is_whole,
        doubts=[],
        histograms={name: histogram.stored() for name, histogram in histograms.items()},
    )
    return msgspec.structs.replace(found, doubts=doubts(found, good))


def _begin(samples: Sequence[Sample], warm_up: float) -> float:
    """Without a warm-up nothing is left out, nor a first request that was sent before its time,
    as a timer of whole milliseconds does it."""
    return warm_up or min((0.0, *(s.intended for s in samples)))


def _end(samples: Sequence[Sample], seconds: float | None) -> float:
    """Of the stage: as it was meant, or just behind the last time of a request."""
    return max((s.intended for s in samples), default=0.0) + 1e-6 if seconds is None else seconds


def _between(since: float, until: float, samples: Sequence[Sample], load: str) -> list[Sample]:
    kept = [s for s in samples if since <= s.intended < until]
    if not kept:
        raise BenchError(
            f"{load}: nothing measured: {len(samples)} requests, none meant to be sent between "
            f"{since:g} s and {max(until, 0.0):g} s; the cure: a longer run, or less of --warm-up "
            "and --cool-down"
        )
    return kept


def _times(
    windows: Windows, samples: Sequence[Sample], of: Callable[[Sample], float | None]
) -> Times | None:
    pairs = [(s.intended, value) for s in samples if (value := of(s)) is not None]
    if not pairs:
        return None
    at, values = [p[0] for p in pairs], [p[1] for p in pairs]
    p50, p99 = np.percentile(values, (50, 99))
    return Times(
        mean=windows.mean(at, values),
        p50=float(p50),
        p90=windows.percentile(at, values, 90),
        p99=float(p99),
        most=max(values),
    )


def _histograms(good: Sequence[Sample]) -> dict[str, Histogram]:
    of: dict[str, Callable[[Sample], Sequence[float | None]]] = {
        "ttft": lambda s: (s.ttft,),
        "ttft_sent": lambda s: (s.ttft_sent,),
        "itl": lambda s: (s.itl,),
        "gap": lambda s: s.gaps,
        "e2e": lambda s: (s.e2e,),
        "e2e_sent": lambda s: (s.e2e_sent,),
    }
    found = {name: Histogram() for name in of}
    for name, values in of.items():
        found[name].add([value for s in good for value in values(s) if value is not None])
    return found


def _cycle(good: Sequence[Sample]) -> float:
    """How often a closed loop's user sends: the median time from one turn to the next."""
    before: dict[int, float] = {}
    cycles = []
    for s in sorted(good, key=lambda s: s.intended):
        if s.session in before:
            cycles.append(s.intended - before[s.session])
        before[s.session] = s.intended
    return float(np.median(cycles or [s.e2e for s in good] or [0.0]))


def _corrected(values: Sequence[float], interval: float | None) -> float | None:
    if interval is None or not values:
        return None
    histogram = Histogram()
    histogram.add_corrected(values, interval)
    return histogram.percentile(99)


def _ended(
    windows: Windows, samples: Sequence[Sample], counts: Callable[[Sample], bool]
) -> Interval:
    return windows.rate([s.ended for s in samples], [float(counts(s)) for s in samples])


def _tokens(windows: Windows, samples: Sequence[Sample]) -> Interval:
    """When they came, not when their requests were sent: a server that lags behind has not
    produced what it still owes."""
    times: list[float] = []
    weights: list[float] = []
    for s in samples:
        if s.first is None:
            continue
        deltas = np.cumsum((s.first, *s.gaps))
        times += deltas.tolist()
        weights += [s.num_tokens / len(deltas)] * len(deltas)
    return windows.rate(times, weights)


def _cached(windows: Windows, good: Sequence[Sample]) -> Interval | None:
    """None if the server does not say. Some say nothing where it is nothing (older vLLM)."""
    said = {s.cached_tokens for s in good}
    if said <= {None}:
        return None
    known = [s for s in good if s.prompt_tokens and (s.cached_tokens is not None or 0 not in said)]
    at = [s.intended for s in known]
    return windows.ratio(
        windows.sums(at, [float(s.cached_tokens or 0) for s in known]),
        windows.sums(at, [float(s.prompt_tokens or 0) for s in known]),
    )


def _attained(windows: Windows, kept: Sequence[Sample], slo: Slo | None) -> Interval | None:
    if slo is None or not slo.is_asked:
        return None
    return windows.mean([s.intended for s in kept], [float(slo.kept(s)) for s in kept])


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
