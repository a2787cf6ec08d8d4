"""A recording of a fleet that is known: what is read from it, and what it predicts."""

from __future__ import annotations

from statistics import fmean

import msgspec
import numpy as np
import pytest
from bench.tests.whatif.recordings import BEGAN, FLEET, MODEL, TRUE, drawn, recording

from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.whatif.figures import ReplayFigures, error, measured_figures
from inferway_bench.whatif.replay import Asked, Recording, Replay, as_replay, part_of
from inferway_bench.whatif.run import AS_RECORDED, Variant, recorded_fleet, simulated

REPLACE = msgspec.structs.replace
BESIDE = REPLACE(FLEET, engine=REPLACE(TRUE, prompts_beside=1, request_seconds=0.002))


@pytest.fixture(scope="module")
def workload() -> Workload:
    return drawn()


def replay_of(recorded: Recording) -> Replay:
    return as_replay(part_of(recorded))


def off(found: Replay, case: Variant, truth: ReplayFigures) -> dict[str, float]:
    runs = [simulated(found, case, seed) for seed in (1, 2, 3)]
    return {
        name: error(fmean(getattr(r, name) for r in runs), getattr(truth, name), name)
        for name in ("ttft_p50", "ttft_p90", "cached")
    }


@pytest.mark.slow
@pytest.mark.parametrize("fleet", [FLEET, BESIDE], ids=["in steps", "beside the answers"])
def test_each_of_two_policies_is_predicted_from_a_recording_of_the_other(
    workload: Workload, fleet: FleetSpec
) -> None:
    policies = ("expected-ttft", "round-robin")
    found = {name: replay_of(recording(workload, name, fleet)) for name in policies}
    truths = {name: measured_figures(each) for name, each in found.items()}

    for recorded in policies:
        spec = recorded_fleet(found[recorded]).spec
        for policy in policies:
            errors = off(found[recorded], Variant(policy, policy, spec), truths[policy])

            assert abs(errors["ttft_p50"]) < 10, (recorded, policy, errors)
            assert abs(errors["ttft_p90"]) < 10, (recorded, policy, errors)
            assert abs(errors["cached"]) < 2, (recorded, policy, errors)


@pytest.mark.parametrize("fleet", [FLEET, BESIDE], ids=["in steps", "beside the answers"])
def test_whether_prompts_hold_up_answers_is_seen_by_which_replays_better(
    workload: Workload, fleet: FleetSpec
) -> None:
    found = recorded_fleet(replay_of(recording(workload, fleet=fleet)))

    assert found.spec.engine.prompts_beside == fleet.engine.prompts_beside
    assert found.spec.engine.prefill_seconds == pytest.approx(TRUE.prefill_seconds, rel=0.1)
    assert found.spec.engine.cache_tokens == TRUE.cache_tokens // 128 * 128


def test_an_engine_that_is_slower_than_the_others_is_found(workload: Workload) -> None:
    slow = REPLACE(FLEET, factors=(1.0, 2.0, 1.0, 1.0))

    found = recorded_fleet(replay_of(recording(workload, "round-robin", slow)))

    assert found.spec.factors == pytest.approx((1.0, 2.0, 1.0, 1.0), rel=0.15)


@pytest.mark.slow
def test_the_size_of_caches_that_nobody_told_is_found_by_what_was_reused(
    workload: Workload,
) -> None:
    recorded = recording(workload)
    truth = measured_figures(replay_of(recorded))

    untold = replay_of(REPLACE(recorded, engines={}))
    fleet = recorded_fleet(untold)

    assert any("size of its cache" in note for note in fleet.notes)
    replayed = simulated(untold, Variant("", AS_RECORDED, fleet.spec), 1)
    assert replayed.cached == pytest.approx(truth.cached, abs=2)


def test_turns_follow_the_answers_that_their_clients_had_read(workload: Workload) -> None:
    replay = replay_of(recording(workload))

    follows = [each.follows for each in replay.workload.requests]
    expected = sum(each.follows is not None for each in workload.requests)
    assert sum(one is not None for one in follows) == pytest.approx(expected, rel=0.1)
    thinks = [each.think for each in replay.workload.requests if each.follows is not None]
    assert fmean(thinks) == pytest.approx(10.0, rel=0.15)


def test_answers_that_came_back_are_reused_and_others_are_not(workload: Workload) -> None:
    sent_back = replay_of(recording(workload)).workload
    silent = [REPLACE(each, answer_blocks=()) for each in workload.requests]
    ids = {block for each in workload.requests for block in each.answer_blocks}
    foreign = Workload("", "", workload.block_tokens, silent)
    replaced = replay_of(recording(foreign)).workload

    def known(found: Workload) -> int:
        return sum(block >= 0 for each in found.requests for block in each.answer_blocks)

    assert known(sent_back) > 0.5 * len(ids & _asked(workload))
    assert known(replaced) == 0


def _asked(workload: Workload) -> set[int]:
    return {block for each in workload.requests for block in each.blocks}


def test_a_replay_by_the_recorded_choices_sends_each_request_where_it_went(
    workload: Workload,
) -> None:
    found = replay_of(recording(workload, "least-request"))
    truth = measured_figures(found)

    told = simulated(found, Variant("", AS_RECORDED, FLEET), 1)

    assert told.ttft_p90 == pytest.approx(truth.ttft_p90, rel=0.05)
    assert told.busy == pytest.approx(truth.busy, abs=2)
    assert told.cached == pytest.approx(truth.cached, abs=1)


def test_only_what_came_in_the_time_asked_for_counts(workload: Workload) -> None:
    recorded = recording(workload)
    ats = [each.record.at for each in recorded.requests]
    since, until = ats[200], ats[600]

    part = part_of(recorded, since=since, until=until)
    replay = as_replay(part)

    assert len(part.requests) == 600
    assert int(replay.measured.judged.sum()) == 400


def test_what_engines_held_before_the_recording_began_is_not_held_against_it(
    workload: Workload,
) -> None:
    recorded = recording(workload)
    warm = [
        Asked(REPLACE(each.record, delivered_tokens=each.record.block_size * len(each.blocks)),
              each.blocks)
        for each in recorded.requests
    ]  # fmt: skip

    replay = replay_of(REPLACE(recorded, requests=warm))

    assert not replay.measured.judged[: len(warm) // 5].any()
    assert any("older than the recording" in note for note in replay.notes)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"streamed": False}, "no recorded answer was streamed"),
        ({"ttft_ms": -1.0}, "no recorded answer was streamed"),
        ({"status": 503}, "0 of 800 recorded requests of llama can be replayed"),
        ({"usage_prompt_tokens": -1, "prompt_tokens": -1}, "0 of 800 recorded requests"),
    ],
)
def test_a_recording_that_says_too_little_is_refused_with_the_cure(
    workload: Workload, changed: dict[str, object], said: str
) -> None:
    with pytest.raises(BenchError, match=said):
        part_of(recording(workload, changed=changed))


def test_too_few_requests_are_refused(workload: Workload) -> None:
    recorded = recording(workload)

    with pytest.raises(BenchError, match="50 are needed at least") as refused:
        part_of(REPLACE(recorded, requests=recorded.requests[:49]))
    assert "--" not in str(refused.value)  # the gateway's page shows it, too
    with pytest.raises(BenchError, match="0 of 0 recorded requests"):
        part_of(REPLACE(recorded, requests=[]))
    with pytest.raises(BenchError, match=f"recorded: {MODEL}"):
        part_of(recorded, model="mistral")


def test_engines_that_tell_no_usage_are_replayed_by_what_the_gateway_counted(
    workload: Workload,
) -> None:
    silent = {"delivered_tokens": -1, "usage_prompt_tokens": -1, "output_tokens": -1}

    replay = replay_of(recording(workload, changed=silent))

    assert not replay.measured.has_usage
    assert np.isnan(measured_figures(replay).cached)
    assert sum("--enable-prompt-tokens-details" in note for note in replay.notes) == 1
    assert any("16 tokens are assumed" in note for note in replay.notes)


def test_requests_of_another_model_are_left_out_and_that_is_said(workload: Workload) -> None:
    recorded = recording(workload)
    other = [
        Asked(REPLACE(each.record, model="mistral"), each.blocks) for each in recorded.requests[:60]
    ]

    part = part_of(REPLACE(recorded, requests=[*other, *recorded.requests]))

    assert len(part.requests) == 800
    assert any("mistral" in note for note in part.notes)
    assert part.judged_from == BEGAN
