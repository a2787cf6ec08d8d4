"""`inferway bench validate`: the same chats as they were measured, and as they are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from bench.tests.peers.test_run import RoundRobin
from bench.tests.runs import unseen

from inferway_bench.conversations import EnginePrompts
from inferway_bench.loading.answers import Sample
from inferway_bench.peers.fleets import simulated_fleet
from inferway_bench.peers.plan import ChatSpec, SimulatedEngines, chats
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.simulate.validate import (
    ValidatePlan,
    as_workload,
    compared,
    engine_like,
    row_of,
)
from inferway_sim.prepare import prepare_smollm2

TRUE = EngineSpec(
    step_seconds=0.02, decode_seconds=0.003, context_seconds=2e-6, prefill_seconds=0.0006,
    attention_tokens=4_000, request_seconds=0.015, cache_tokens=10_000,
)  # fmt: skip
ONE = FleetSpec(num_engines=1, num_slow=0, engine=TRUE)
FIRST = SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=3, session=1)
LATER = SimRequest(blocks=(1, 2), prompt_tokens=250, output_tokens=3, session=1, start=9.0)
WORK = Workload("sent", "", 100, [FIRST, LATER])


def sample(first: float, cached: int, error: str | None = None) -> Sample:
    return Sample(
        session=1, turn=0, intended=0.0, sent=0.0, first=first, last=first + 0.1,
        ended=first + 0.1, prompt_tokens=250, cached_tokens=cached, completion_tokens=3,
        num_deltas=3, error=error,
    )  # fmt: skip


def of(samples: Sequence[Sample]) -> dict[str, float]:
    return compared("a router", "round-robin", 1, samples, WORK, ONE)


def test_a_simulated_engines_flags_are_its_constants() -> None:
    engine = engine_like(SimulatedEngines(inter_token_ms=10, max_num_seqs=32, blocks=100))

    assert engine.step_seconds + engine.decode_seconds == pytest.approx(0.010)
    assert engine.step_seconds + 32 * engine.decode_seconds == pytest.approx(0.020)
    assert engine.cache_tokens == 3_200


def test_chats_are_simulated_with_the_blocks_that_engines_see() -> None:
    sessions = chats(ChatSpec(sessions=4, turns=3, systems=2, apart=1), 1, "t", rate=2.0)
    with closing(EnginePrompts(str(prepare_smollm2()))) as prompts:
        made = as_workload(sessions, prompts, 32)

    assert len(made.requests) == 12
    assert [r.start for r in made.requests] == sorted(at for s in sessions for at in s.at)
    kept = [block for r in made.requests for block in r.answer_blocks]
    assert kept
    assert len(set(kept)) == len(kept)  # nobody else's
    for r in made.requests:
        computed = r.prompt_tokens + r.output_tokens - 1
        assert len(r.blocks) + len(r.answer_blocks) == computed // 32
    by_session: dict[int, list[SimRequest]] = {}
    for request in made.requests:
        by_session.setdefault(request.session, []).append(request)
    for first, second, third in by_session.values():
        shared = first.prompt_tokens // 32 - 1  # its end belongs to the generation prompt
        assert second.blocks[:shared] == first.blocks[:shared]
        assert third.prompt_tokens > second.prompt_tokens > first.prompt_tokens
    assert len({turns[0].blocks[0] for turns in by_session.values()}) == 2


def test_both_are_judged_over_all_requests() -> None:
    found = of([sample(0.2, 0), sample(0.1, 200)])

    assert found["ttft"] == pytest.approx(150)
    assert found["cached"] == pytest.approx(40)
    assert found["simulated_cached"] == pytest.approx(40)
    both = TRUE.idle_ttft(250) + TRUE.idle_ttft(250, 200)
    assert found["simulated_ttft"] == pytest.approx(both / 2 * 1e3)
    context = 251 * TRUE.context_seconds  # 250 of the prompt, and one of the answer
    assert found["simulated_itl"] == pytest.approx(23 + context * 1e3)


@pytest.mark.parametrize(
    "samples", [[sample(0.2, 0)], [sample(0.2, 0), sample(0.2, 0, error="timeout")]]
)
def test_requests_that_failed_are_no_comparison(samples: list[Sample]) -> None:
    with pytest.raises(BenchError, match="requests failed"):
        of(samples)


@pytest.mark.slow
def test_chats_through_a_router_are_compared_with_simulated_ones(tmp_path: Path) -> None:
    plan = ValidatePlan(sessions=6, rate=10.0)
    engines = plan.scenario.engines
    assert isinstance(engines, SimulatedEngines)

    with (
        simulated_fleet(engines, tmp_path) as fleet,
        closing(EnginePrompts(str(prepare_smollm2()))) as prompts,
    ):
        row = row_of(RoundRobin(), plan, fleet, prompts, tmp_path, unseen)

    assert (row.keys["policy"], row.values["requests"]) == ("round-robin", [60])
    # the router hands over connections, not requests: only that both reuse something is the same
    assert min(row.median("cached"), row.median("simulated_cached")) > 20
