"""The engine whose prompts hold up no answer is the one that `inferway simulate` is."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.kv.blocks.dialects import Dialect
from inferway_bench.policies.catalog import RoundRobin
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.gateway import Policy
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec, simulate
from inferway_sim.cache import KvCache, Run
from inferway_sim.config import LatencyModel
from inferway_sim.scheduler import RunningRequest, Scheduler

SIZE = 4
SPEC = EngineSpec(
    step_seconds=0.01, decode_seconds=0.0, prefill_seconds=0.002, prompts_beside=1, max_num_seqs=4,
    cache_tokens=4_096 * SIZE,
)  # fmt: skip


def prompts(seed: int, number: int) -> list[tuple[float, list[int], int]]:
    """(when, tokens, tokens of the answer): prompts that begin as others did."""
    rng = Random(seed)
    heads = [[rng.randrange(1_000) for _ in range(12)] for _ in range(3)]
    at, found = 0.0, []
    for _ in range(number):
        at += rng.expovariate(20.0)
        tail = [rng.randrange(1_000) for _ in range(rng.randint(1, 20))]
        found.append((at, rng.choice(heads)[: rng.randint(0, 12)] + tail, rng.randint(1, 12)))
    return found


def by_scheduler(asked: list[tuple[float, list[int], int]]) -> list[tuple[float, float, int]]:
    """(first token, last token, tokens that were reused) of each."""
    cache = KvCache(4_097, SIZE, Dialect())
    latency = LatencyModel(
        prefill_time_per_token=0.002, inter_token_latency=0.01, prefill_in_turn=True
    )
    engine = Scheduler(cache, latency, 4, 1_000)
    jobs = [RunningRequest(Run(list(tokens)), [7] * n, at) for at, tokens, n in asked]
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    coming = list(jobs)
    while len(last) < len(jobs):
        due = engine.next_due(0.0) if not coming else engine.next_due(coming[0].arrived)
        if coming and (due is None or coming[0].arrived <= due):
            job = coming.pop(0)
            engine.add(job)
            now = job.arrived
        else:
            assert due is not None
            now = due
        for item in engine.step(now).emitted:
            number = jobs.index(item.job)
            first.setdefault(number, now)
            if item.is_last:
                last[number] = now
    return [(first[n], last[n], job.num_cached_tokens) for n, job in enumerate(jobs)]


def by_simulation(asked: list[tuple[float, list[int], int]]) -> list[tuple[float, float, int]]:
    ids: dict[tuple[int, ...], int] = {}
    private = iter(range(1, 10_000))
    requests = []
    for at, tokens, output in asked:
        whole = len(tokens) // SIZE
        blocks = tuple(
            ids.setdefault(tuple(tokens[: (n + 1) * SIZE]), len(ids)) for n in range(whole)
        )
        rest = (len(tokens) + output - 1) // SIZE - whole
        answer = tuple(-next(private) for _ in range(rest))
        requests.append(
            SimRequest(
                blocks=blocks,
                prompt_tokens=len(tokens),
                output_tokens=output,
                session=0,
                start=at,
                answer_blocks=answer,
            )
        )
    work = Workload("", "", SIZE, requests)
    fleet = FleetSpec(1, num_slow=0, engine=SPEC)
    found = simulate(work, work.own_rate, fleet, lambda _: Policy(RoundRobin(0)), 1)
    begin = asked[0][0]
    ends = found.arrived + begin
    return list(
        zip(ends + found.ttft, ends + found.latency, found.cached_tokens.tolist(), strict=True)
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 25))
def test_it_answers_when_the_simulated_engine_does(seed: int, number: int) -> None:
    asked = prompts(seed, number)

    expected, found = by_scheduler(asked), by_simulation(asked)

    assert [e[2] for e in expected] == [f[2] for f in found]
    assert np.array(found) == pytest.approx(np.array(expected), abs=1e-6)
