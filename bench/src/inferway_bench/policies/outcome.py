"""The outcome of a simulated run: what became of each request, and the figures of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.requests import Workload


class Limits(msgspec.Struct, frozen=True):
    """The limits that the answer to a request keeps if it is to count as good."""

    ttft: float = 5.0  # seconds
    itl: float = 0.1  # seconds: the mean of the answer's gaps


class Figures(msgspec.Struct, frozen=True):
    """The means of a run's requests that count: times in ms, shares in %, tokens of a prompt."""

    ttft: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    itl: float
    itl_p99: float  # of all gaps between tokens
    cached: float
    computed: float  # tokens of a prompt
    overestimated: float  # requests of which more was believed to be reusable than was reused
    excess: float  # tokens that were believed to be reusable, and were not
    two_legs: float  # requests
    returning: float  # prompt tokens from a cache, of requests that follow an answer
    good: float  # requests that kept the limits (`Limits`)
    good_rate: float  # of them, a second
    scatter: float  # of the requests of an engine: their standard deviation by their mean
    work_scatter: float  # the same of the tokens that it computes of prompts
    cpu_seconds: float  # of the simulation
    cpu_us: float  # of each request
    # of a bound on all policies (policies.bound), if it is asked for
    least_ttft: float = 0.0
    most_good_rate: float = 0.0


NO_LIMITS = Limits(math.inf, math.inf)


@dataclass(slots=True)
class Outcome:
    """The outcome of a run's requests, as arrays by request in seconds and tokens."""

    ttft: NDArray[np.float64]
    latency: NDArray[np.float64]  # to the last token
    arrived: NDArray[np.float64]
    cached_tokens: NDArray[np.int64]
    believed_tokens: NDArray[np.int64]  # to be reused, when the engine was chosen
    engine: NDArray[np.int32]
    num_ended: NDArray[np.int32]  # how often each ended: once
    in_two_legs: NDArray[np.bool_]
    limits: Limits
    # between tokens, by stretches of equal steps: when it began, a gap's seconds, the gaps
    gaps: Sequence[NDArray[np.float64]] = ()
    num_engines: int = 0
    cpu_seconds: float = 0.0

    @classmethod
    def of(cls, count: int, limits: Limits = NO_LIMITS) -> Outcome:
        """Return that of requests of which nothing has become yet."""
        ttft, latency, arrived = np.zeros((3, count))
        engine, ended = np.zeros((2, count), np.int32)
        legs = np.zeros(count, np.bool_)
        cached, believed = np.zeros((2, count), np.int64)
        return cls(ttft, latency, arrived, cached, believed, engine, ended, legs, limits)

    def figures(self, workload: Workload, rate: float, warm_up: float = 0.0) -> Figures:
        """Return the figures of the requests that arrive behind the first share `warm_up` of the
        run, and before its end."""
        # the last request's time has been rounded
        end = len(workload.requests) / rate * (1 + 1e-9)
        judged = np.flatnonzero((self.arrived >= warm_up * end) & (self.arrived <= end))
        prompt = workload.columns.prompt_tokens[judged]
        cached, believed = self.cached_tokens[judged], self.believed_tokens[judged]
        gaps = workload.columns.output_tokens[judged] - 1
        ttft = self.ttft[judged]
        p50, p90, p99 = np.percentile(ttft, (50, 90, 99)) * 1e3
        decoded = self.latency[judged] - ttft
        later = workload.columns.follows[judged] >= 0
        is_good = (ttft <= self.limits.ttft) & (decoded <= self.limits.itl * gaps)
        where, few = self.engine[judged], self.num_engines
        each, work = np.bincount(where, minlength=few), np.bincount(where, prompt - cached, few)
        return Figures(
            ttft=float(ttft.mean()) * 1e3,
            ttft_p50=float(p50),
            ttft_p90=float(p90),
            ttft_p99=float(p99),
            itl=float(decoded.sum() / max(1, gaps.sum())) * 1e3,
            itl_p99=self._gap(0.99, warm_up * end, end) * 1e3,
            cached=float(cached.sum() / prompt.sum()) * 100,
            computed=float((prompt - cached).mean()),
            overestimated=float((believed > cached).mean()) * 100,
            excess=float(np.maximum(believed - cached, 0).mean()),
            two_legs=float(self.in_two_legs[judged].mean()) * 100,
            returning=float(cached[later].sum() / max(1, prompt[later].sum())) * 100,
            good=float(is_good.mean()) * 100,
            good_rate=float(is_good.sum() / ((1 - warm_up) * end)),
            scatter=float(each.std() / each.mean()),
            work_scatter=float(work.std() / work.mean()) if work.any() else 0.0,
            cpu_seconds=self.cpu_seconds,
            cpu_us=self.cpu_seconds / len(workload.requests) * 1e6,
        )

    def _gap(self, share: float, since: float, until: float) -> float:
        """The seconds that so many of the gaps between tokens are not longer than."""
        at, seconds, count = self.gaps
        judged = (at >= since) & (at <= until)
        if not judged.any():
            return 0.0
        seconds, count = seconds[judged], count[judged]
        order = seconds.argsort()
        passed = count[order].cumsum()
        return float(seconds[order[passed.searchsorted(share * passed[-1])]])
