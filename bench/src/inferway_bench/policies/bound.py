"""A bound that no policy can beat, even one that knows what comes.

It is a relaxation: all engines share one cache that forgets nothing and has each block from when
its first request comes, steps take nothing but what their tokens take, batches are always full, and
requests may be cut in pieces. What is left is that each block is computed once, each answer is
written, and engines have only so much time. Requests are chosen after the fact, those that take the
least first.
"""

from __future__ import annotations

import numpy as np

from inferway_bench.policies.outcome import Outcome
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec


def bound(
    workload: Workload, fleet: FleetSpec, outcome: Outcome, since: float
) -> tuple[float, float]:
    """Return the least mean TTFT in seconds, and the largest number of requests a second that keep
    the limits, of the requests that arrived in `outcome` from the second `since` until the last
    that follows no answer. Which these are depends on the policy where requests follow answers."""
    spec, limits, size = fleet.engine, fleet.limits, workload.block_tokens
    seen: set[int] = set()
    ttft, work = np.zeros((2, len(workload.requests)))
    each_token = spec.decode_seconds + spec.step_seconds / spec.max_num_seqs
    for index in outcome.arrived.argsort().tolist():
        request = workload.requests[index]
        cached = next(
            (at for at, block in enumerate(request.blocks) if block not in seen),
            len(request.blocks),
        )
        seen.update(request.blocks[cached:], request.answer_blocks)
        held = min(cached, (request.prompt_tokens - 1) // size) * size
        ttft[index] = spec.idle_ttft(request.prompt_tokens, held)
        work[index] = spec.prompt_seconds(held, request.prompt_tokens)
        work[index] += (request.output_tokens - 1) * each_token
    until = float(outcome.arrived[workload.columns.follows < 0].max())
    judged = (outcome.arrived >= since) & (outcome.arrived <= until)
    in_time = np.sort(work[judged & (ttft <= limits.ttft)])
    has = fleet.num_engines * (until - since + limits.ttft)
    most = int(in_time.cumsum().searchsorted(has, side="right"))
    return float(ttft[judged].mean()), most / (until - since)
