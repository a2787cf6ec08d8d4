"""When things happen, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inferway.kv.blocks.dialects import Dialect
from inferway_sim.block_contents import BlockContents
from inferway_sim.cache import KvCache, Run
from inferway_sim.config import LatencyModel, TransferConfig
from inferway_sim.core import Disturbance, EngineCore
from inferway_sim.events import CacheStored, Event
from inferway_sim.kv_transfer import Connector, Fetch, Transfer
from inferway_sim.scheduler import RunningRequest, Scheduler

BLOCK = 4


def scheduler(
    latency: LatencyModel | None = None,
    *,
    max_num_seqs: int = 8,
    num_blocks: int = 100,
    max_waiting: int = 100,
) -> Scheduler:
    cache = KvCache(num_blocks, BLOCK, Dialect())
    return Scheduler(cache, latency or LatencyModel(), max_num_seqs, max_waiting)


def job(prompt: Sequence[int], num_tokens: int = 1, first_word: int = 500) -> RunningRequest:
    return RunningRequest(
        Run(list(prompt)), range(first_word, first_word + num_tokens), arrived=0.0
    )


def run(scheduler: Scheduler, now: float = 0.0) -> list[tuple[float, RunningRequest, int]]:
    """Until nothing is left: (when, whose, token)."""
    out = []
    due: float | None = now
    while due is not None:
        for item in scheduler.step(due).emitted:
            out.append((round(due, 6), item.job, item.token))
        due = scheduler.next_due(due)
    return out


def times(out: list[tuple[float, RunningRequest, int]], of: RunningRequest) -> list[float]:
    return [when for when, job, _ in out if job is of]


def test_only_tokens_that_are_not_cached_cost_prefill_time() -> None:
    engine = scheduler(LatencyModel(prefill_overhead=1.0, prefill_time_per_token=0.1))
    first, second = job(range(21)), job(range(21))
    engine.add(first)
    run(engine)
    engine.add(second)

    assert times(run(engine, now=10.0), second) == [pytest.approx(10 + 1.0 + 0.1)]


def test_time_to_first_token_overrides_the_prompts_length() -> None:
    engine = scheduler(LatencyModel(time_to_first_token=0.5, prefill_time_per_token=9.0))
    one = job(range(30))
    engine.add(one)

    assert times(run(engine), one) == [0.5]


def test_further_tokens_come_at_the_inter_token_latency() -> None:
    engine = scheduler(LatencyModel(time_to_first_token=0.5, inter_token_latency=0.1))
    one = job(range(3), num_tokens=3)
    engine.add(one)

    assert times(run(engine), one) == [0.5, 0.6, 0.7]


def test_a_late_step_does_not_shift_the_tokens_after_it() -> None:
    engine = scheduler(LatencyModel(inter_token_latency=0.1))
    engine.add(job(range(3), num_tokens=5))
    engine.step(0.0)
    engine.step(0.05)

    assert engine.next_due(0.05) == pytest.approx(0.1)


def test_requests_over_the_limit_wait_and_are_served_in_order() -> None:
    engine = scheduler(LatencyModel(time_to_first_token=1.0), max_num_seqs=1)
    jobs = [job([n]) for n in range(3)]
    for one in jobs:
        engine.add(one)

    assert [(when, who) for when, who, _ in run(engine)] == list(zip([1, 2, 3], jobs, strict=True))


def test_the_engine_is_full_when_all_places_to_run_and_to_wait_are_taken() -> None:
    engine = scheduler(max_num_seqs=1, max_waiting=1)
    engine.add(job([1]))
    assert not engine.is_full

    engine.add(job([2]))

    assert engine.is_full


def test_load_stretches_time_up_to_the_factor() -> None:
    engine = scheduler(
        LatencyModel(time_to_first_token=1.0, time_factor_under_load=3.0), max_num_seqs=2
    )
    first, second = job([1]), job([2])
    engine.add(first)
    engine.add(second)
    out = run(engine)

    assert times(out, first) == [1.0]
    assert times(out, second) == [3.0]


def test_prefills_in_turn_begin_when_the_one_before_has_ended() -> None:
    engine = scheduler(LatencyModel(prefill_time_per_token=0.1, prefill_in_turn=True))
    first, second = job(range(10)), job(range(100, 105))
    engine.add(first)
    engine.add(second)
    out = run(engine)

    assert times(out, first) == [1.0]
    assert times(out, second) == [1.5]


def test_who_reuses_blocks_that_are_still_being_computed_waits_for_them() -> None:
    engine = scheduler(LatencyModel(prefill_time_per_token=0.1))
    first, second = job(range(21)), job(range(21))
    engine.add(first)
    engine.add(second)
    out = run(engine)

    assert second.num_cached_tokens == 20
    assert times(out, first) == times(out, second) == [pytest.approx(2.1)]


def test_events_leave_with_the_first_token_after_them() -> None:
    engine = scheduler(LatencyModel(time_to_first_token=1.0))
    engine.add(job(range(9)))

    assert engine.step(0.0).events == []
    assert [type(event) for event in engine.step(1.0).events] == [CacheStored]


def test_a_reset_is_told_when_the_engine_works_again() -> None:
    engine = scheduler()
    engine.add(job(range(9)))
    run(engine)
    engine.cache.clear()

    assert engine.next_due(0.0) is None

    engine.add(job([1, 2]))
    engine.step(0.0)
    [cleared] = engine.step(0.0).events
    assert type(cleared).__name__ == "CacheCleared"


def test_the_last_token_is_not_computed_and_not_cached() -> None:
    engine = scheduler()
    engine.add(job(range(4), num_tokens=4))
    run(engine)
    assert len(engine.cache.cached()) == 1

    engine.add(job(range(4), num_tokens=5))
    run(engine)

    assert len(engine.cache.cached()) == 2


def test_when_blocks_run_out_the_youngest_gives_way_and_finishes_later() -> None:
    engine = scheduler(num_blocks=5)
    old, young = job(range(7), num_tokens=6), job(range(50, 57), num_tokens=6)
    engine.add(old)
    engine.add(young)

    out = run(engine)

    assert engine.totals.preemptions > 0
    assert [token for _, who, token in out if who is young] == list(range(500, 506))
    assert [token for _, who, token in out if who is old] == list(range(500, 506))
    assert engine.cache.num_free_blocks == engine.cache.num_blocks


def test_a_preempted_prompt_is_counted_once() -> None:
    engine = scheduler(num_blocks=5)
    for start in (0, 50):
        engine.add(job(range(start, start + 7), num_tokens=6))
    run(engine)

    assert engine.totals.prompt_tokens == 14
    assert engine.totals.generation_tokens == 12


def test_an_aborted_job_frees_its_blocks_and_its_events_are_told() -> None:
    engine = scheduler(LatencyModel(time_to_first_token=9.0))
    one = job(range(9))
    engine.add(one)
    engine.step(0.0)

    events: list[Event] = engine.abort(one)

    assert [type(event) for event in events] == [CacheStored]
    assert engine.cache.num_free_blocks == engine.cache.num_blocks
    assert engine.next_due(0.0) is None


def test_aborting_one_that_ended_or_only_waited_does_no_harm() -> None:
    engine = scheduler(max_num_seqs=1)
    ended, waiting = job([1]), job([2])
    engine.add(ended)
    run(engine)
    engine.add(waiting)

    assert engine.abort(ended) == engine.abort(waiting) == []
    assert engine.next_due(0.0) is None


def handing(config: TransferConfig, num_blocks: int = 100) -> Scheduler:
    """A scheduler of an engine that hands blocks to others."""
    cache = KvCache(num_blocks, BLOCK, Dialect(), BlockContents(BLOCK))
    latency = LatencyModel(prefill_time_per_token=1.0, inter_token_latency=1.0)
    return Scheduler(cache, latency, 8, 100, transfer=Connector(config, cache))


def prefill_leg(prompt: Sequence[int], key: str) -> RunningRequest:
    leg = job(prompt)
    leg.transfer = Transfer(keep_as=key)
    return leg


def decode_leg(prompt: Sequence[int], num_blocks: int, num_tokens: int = 1) -> RunningRequest:
    leg = job(prompt, num_tokens)
    fetch = Fetch("http://peer", "engine", "key", range(1, num_blocks + 1))
    leg.transfer = Transfer(fetch=fetch)
    return leg


def test_kept_blocks_are_free_when_their_lease_ends() -> None:
    engine = handing(TransferConfig(lease_seconds=30.0))
    engine.add(prefill_leg(range(10), "key"))
    engine.step(0.0)
    engine.step(10.0)

    kept = engine.cache.usage
    due = engine.next_due(10.0)
    assert due == 40.0
    engine.step(due)

    assert kept == pytest.approx(3 / 99)
    assert engine.cache.usage == 0
    assert engine.transfer is not None
    assert engine.transfer.num_expired == 1
    assert engine.next_due(due) is None


def test_heartbeats_make_a_lease_longer_and_never_shorter() -> None:
    engine = handing(TransferConfig(lease_seconds=30.0))
    assert engine.transfer is not None
    engine.add(prefill_leg(range(10), "key"))
    engine.step(0.0)
    engine.step(10.0)

    engine.transfer.extend(["key", "unknown"], 11.0)
    assert engine.transfer.next_expiry == 40.0
    engine.transfer.extend(["key"], 39.0)

    assert engine.transfer.next_expiry == 59.0


def test_a_transfer_takes_its_time_and_then_only_the_last_token_is_computed() -> None:
    engine = handing(TransferConfig(overhead=2.0, time_per_block=0.5))
    leg = decode_leg(range(10), 3)
    engine.add(leg)

    assert engine.step(0.0).loads == [leg]
    assert (len(engine.running), len(engine.waiting), len(engine.loading)) == (0, 0, 1)
    assert engine.next_due(0.0) is None
    engine.loaded(leg, [list(range(4)), list(range(4, 8)), [8, 9]], 1.0)

    assert engine.next_due(1.0) == 4.5
    assert [(when, token) for when, _, token in run(engine, 4.5)] == [(5.5, 500)]
    assert engine.totals.prompt_tokens_external == 10


def test_others_run_while_blocks_are_fetched_and_cannot_find_them_yet() -> None:
    engine = handing(TransferConfig())
    leg, other = decode_leg(range(8), 2), job(range(8))
    engine.add(leg)
    engine.step(0.0)
    engine.add(other)
    engine.step(0.0)

    assert engine.cache.cached().keys() == set(other.run.hashes[:2])
    assert other.num_cached_tokens == 0


def test_a_prompt_that_finds_no_room_beside_kept_blocks_waits_for_the_lease() -> None:
    engine = handing(TransferConfig(lease_seconds=30.0), num_blocks=6)
    engine.add(prefill_leg(range(12), "key"))
    engine.step(0.0)
    engine.step(12.0)
    late = job(range(100, 112))
    engine.add(late)

    assert engine.next_due(12.0) == 12.0
    engine.step(12.0)
    assert engine.next_due(12.0) == 42.0
    engine.step(42.0)

    assert late in engine.running


def test_a_fetched_prompt_that_loses_its_place_is_not_fetched_again() -> None:
    engine = handing(TransferConfig(), num_blocks=6)
    first, leg = job(range(100, 107), num_tokens=6), decode_leg(range(8), 2, num_tokens=6)
    engine.add(first)
    engine.add(leg)
    engine.step(0.0)
    engine.loaded(leg, [list(range(4)), list(range(4, 8))], 0.0)

    tokens = run(engine)

    assert engine.totals.preemptions > 0
    assert len(tokens) == 12
    assert engine.cache.usage == 0


def test_an_aborted_fetch_gives_its_blocks_back_and_tells_the_other_engine() -> None:
    engine = handing(TransferConfig())
    assert engine.transfer is not None
    told: list[Fetch] = []
    engine.transfer.on_drop = told.append
    waiting, loading, loaded = (decode_leg(range(i, i + 8), 2) for i in (0, 100, 200))
    engine.add(loading)
    engine.add(loaded)
    engine.step(0.0)
    engine.loaded(loaded, [[1] * 4] * 2, 0.0)
    engine.step(0.0)
    engine.add(waiting)

    for leg in (waiting, loading, loaded):
        engine.abort(leg)

    assert len(told) == 3
    assert engine.cache.usage == 0


def test_a_stalled_core_reads_of_no_abort_until_it_goes_on() -> None:
    engine = scheduler(LatencyModel(time_to_first_token=9.0))
    core = EngineCore(engine, lambda _: None, lambda _: None)
    one = job(range(8))
    with core.submit([one]):
        engine.step(0.0)
        core.disturb(Disturbance(stalled=True))

    assert (list(engine.running), engine.cache.usage > 0) == ([one], True)

    core.disturb(Disturbance())

    assert (list(engine.running), engine.cache.usage) == ([], 0)
