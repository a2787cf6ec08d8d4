"""Requests in two legs, simulated, and what `inferway bench kv-transfer` says of them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from bench.tests.runs import a_run, unseen
from bench.tests.test_policies import BLOCK, LOADED, ONE, request, workload

from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway_bench.policies.catalog import ALWAYS, LEARNED, NEVER, THRESHOLD, policy_named
from inferway_bench.policies.engine import EngineSpec
from inferway_bench.policies.gateway import Policy, chosen
from inferway_bench.policies.outcome import Outcome
from inferway_bench.policies.simulate import FleetSpec, World, simulate
from inferway_bench.processes import BenchError
from inferway_bench.rows import Row
from inferway_bench.simulate.report import KV_TRANSFER, KvTransferPlan, with_ratios

TWO = msgspec.structs.replace(ONE, num_engines=2)
SPEC = TWO.engine


class FromFirstToSecond:
    """Every prompt is computed on the first engine, and answered by the second."""

    def choose(self, _: LLMRequest, candidates: Candidates) -> SchedulingResult:
        prefill, decode = (chosen(candidates, row).targets for row in (0, 1))
        return SchedulingResult(decode, prefill=prefill)


class Turns:
    """Prompts of even requests are computed on one engine, of odd ones on the other."""

    def choose(self, asked: LLMRequest, candidates: Candidates) -> SchedulingResult:
        row = int(asked.request_id) % 2
        prefill, decode = (chosen(candidates, each).targets for each in (row, 1 - row))
        return SchedulingResult(decode, prefill=prefill)


def apart(_: World) -> Policy:
    return Policy(FromFirstToSecond())


def run(*requests: object, rate: float = 1.0, fleet: FleetSpec = TWO) -> Outcome:
    return simulate(workload(*requests), rate, fleet, apart, seed=1)  # type: ignore[arg-type]


def test_two_legs_take_a_prefill_a_transfer_and_a_step_of_one_token() -> None:
    outcome = run(request(*range(9), output=11))

    transfer = SPEC.transfer_seconds + 901 * SPEC.transfer_token_seconds
    assert outcome.ttft[0] == pytest.approx(
        SPEC.idle_ttft(901) + transfer + SPEC.step_seconds + SPEC.prefill_seconds
    )
    assert (outcome.engine[0], outcome.in_two_legs[0]) == (1, True)
    decoding = outcome.latency[0] - outcome.ttft[0]
    assert decoding == pytest.approx(10 * (SPEC.step_seconds + SPEC.decode_seconds))


def test_what_the_decode_engine_holds_is_not_moved() -> None:
    first, second = request(*range(9)), request(*range(9), start=10.0)

    outcome = run(first, second, rate=0.2)

    assert outcome.cached_tokens.tolist() == [0, 9 * BLOCK]  # on the prefill engine
    transfer = SPEC.transfer_seconds + 1 * SPEC.transfer_token_seconds
    steps = 2 * (SPEC.step_seconds + SPEC.prefill_seconds)
    assert outcome.ttft[1] == pytest.approx(transfer + steps)


def test_a_prompt_on_another_engine_pauses_no_answer() -> None:
    answer, prompt = request(1, output=500), request(*range(100, 109), output=1)

    outcome = run(answer, prompt, rate=2.0)  # half a second apart

    gaps = outcome.gaps[1]
    assert gaps.max() < SPEC.step_seconds + SPEC.decode_seconds + 2 * SPEC.prefill_seconds
    alone = simulate(
        workload(answer, prompt), 2.0, ONE, lambda _: Policy(FromFirst()), seed=1
    ).gaps[1]
    assert alone.max() > SPEC.prompt_seconds(0, 900)


class FromFirst:
    def choose(self, _: LLMRequest, candidates: Candidates) -> SchedulingResult:
        return chosen(candidates, 0)


def test_the_gaps_between_tokens_are_those_of_all_answers() -> None:
    outcome = run(request(1, output=500), request(2, output=300), rate=5.0)

    assert outcome.gaps[2].sum() == 499 + 299
    figures = outcome.figures(workload(request(1), request(2)), 0.1)
    assert figures.two_legs == 100
    step = SPEC.step_seconds + SPEC.decode_seconds
    assert step * 1e3 <= figures.itl_p99 <= (step + SPEC.decode_seconds + 1e-9) * 1e3


def test_blocks_stay_in_use_until_they_have_been_fetched() -> None:
    """The second prompt has no room before the first one's blocks are moved."""
    engine = EngineSpec(cache_tokens=1_100, transfer_seconds=1.0, max_batched_tokens=1_000)
    fleet = msgspec.structs.replace(TWO, engine=engine)

    outcome = run(request(*range(9)), request(*range(100, 109)), rate=1e6, fleet=fleet)

    assert outcome.ttft[1] > outcome.ttft[0] + 1.0


def test_engines_that_are_full_of_each_others_blocks_are_an_error() -> None:
    fleet = msgspec.structs.replace(TWO, engine=EngineSpec(cache_tokens=1_100))
    both = workload(request(*range(9)), request(*range(100, 109)))

    with pytest.raises(BenchError, match="requests wait for ever: engines are full of blocks"):
        simulate(both, 1e6, fleet, lambda _: Policy(Turns()), seed=1)


@pytest.mark.parametrize("name", [LEARNED, ALWAYS, f"{ALWAYS}@1", f"{THRESHOLD}@1"])
def test_every_request_ends_once_whoever_decides(name: str) -> None:
    fleet = FleetSpec(num_engines=3, num_slow=0, num_gateways=2)

    outcome = simulate(LOADED, 8.0, fleet, policy_named(name), 1)

    assert set(outcome.num_ended.tolist()) == {1}
    assert (outcome.latency >= outcome.ttft).all()
    assert outcome.in_two_legs.any() or name == LEARNED
    if name.endswith("@1"):
        assert not np.isin(outcome.engine, [0]).any()  # it only computes prompts


def test_a_policy_of_two_legs_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        BenchError, match=r"no policy 'always@x'; known: .*learned, always, llm-d-pd"
    ):
        policy_named("always@x")


# what is said of them


def row(policy: str, ttft: list[float], itl: list[float], load: str = "50%") -> Row:
    keys: dict[str, str | int | float] = {
        "trace": "t",
        "engines": 16,
        "gateways": 1,
        "load": load,
        "policy": policy,
    }
    return Row("simulations", keys, {"rate": 1.0, "ttft_p90": ttft, "itl_p99": itl})


def test_each_split_that_is_ahead_is_named() -> None:
    rows = [
        row(LEARNED, [100, 102], [10, 10]),
        row(NEVER, [100, 104], [300, 300]),
        row("always@10", [150, 150], [9, 9]),
        row("always@12", [900, 900], [9.5, 9.5]),
    ]

    first, second = KV_TRANSFER.losses(a_run("kv-transfer", list(with_ratios(rows))))

    assert first.startswith("t, gateways: 1, load: 50%: the inter-token p99 of always@10 is 0.900")
    assert "always@12" in second


@pytest.mark.slow
def test_the_benchmark_in_miniature() -> None:
    plan = KvTransferPlan(
        trace=("chats",), engines=(4,), requests=300, load=(0.75,), seeds=2, bisections=2,
        policy=(NEVER, LEARNED, f"{ALWAYS}@2", f"{THRESHOLD}@2"), processes=1,
    )  # fmt: skip

    run = KV_TRANSFER.run(plan, unseen)

    text = KV_TRANSFER.markdown(run)
    assert all(f"| {name} |" in text for name in plan.policy)
    assert "inter-token p99 divided by that of learned, chats" in text
    assert "A transfer takes 5 ms, plus 5 µs for each token." in text
