"""What is read off a simulation: a row of figures, and the rate at which a fleet is full."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from math import sqrt

import numpy as np

from inferway_bench.machine import command_line
from inferway_bench.policies.requests import Outcome, Workload
from inferway_bench.policies.results import Row

WARM = 0.5  # of a run; what arrives before is not judged
_IDLE_GAP = 60.0  # seconds between requests that do not meet


def row(
    workload: Workload,
    outcome: Outcome,
    rate: float,
    *,
    policy: str,
    seed: int = 1,
    gateways: int = 1,
    load: float = 0.0,
    warm: float = WARM,
) -> Row:
    """Of the requests that arrive behind the share `warm` of the run and before its end."""
    end = len(workload.requests) / rate
    judged = np.flatnonzero((outcome.arrived >= warm * end) & (outcome.arrived <= end))
    prompt = workload.columns.prompt_tokens[judged]
    output = workload.columns.output_tokens[judged]
    ttft = outcome.ttft[judged]
    p50, p90, p99 = np.percentile(ttft, (50, 90, 99))
    decoded = outcome.latency[judged] - ttft
    slow = outcome.slow[outcome.engine[judged]]
    return Row(
        workload=workload.name,
        gateways=gateways,
        load=load,
        policy=policy,
        seed=seed,
        rate=rate,
        requests=len(judged),
        ttft=float(ttft.mean()),
        ttft_p50=float(p50),
        ttft_p90=float(p90),
        ttft_p99=float(p99),
        token_seconds=float(decoded.sum() / max(1, (output - 1).sum())),
        cached_share=float(outcome.cached_tokens[judged].sum() / prompt.sum()),
        slow_share=float(slow.mean()),
        cpu_seconds=outcome.cpu_seconds,
        engines=len(outcome.slow),
    )


def doubling(ttft: Callable[[float], float], first: float, bisections: int) -> tuple[float, float]:
    """(`ttft` of an idle fleet, the rate at which it is twice that), searched from `first` on."""
    idle = ttft(1 / _IDLE_GAP)
    low = high = first
    while ttft(high) < 2 * idle:
        low, high = high, high * 1.5
    for _ in range(bisections):
        middle = sqrt(low * high)
        low, high = (middle, high) if ttft(middle) < 2 * idle else (low, middle)
    return idle, low


def command() -> str:
    """As it was typed."""
    return shlex.join(command_line())
