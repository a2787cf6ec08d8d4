"""The simulation is what it says, and policies do what their rules say."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from inferway.kv.blocks.dialects import Dialect
from inferway.model import Candidates, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import CompletionRequest
from inferway.scheduling.idle import idle
from inferway_bench.policies.cache import BlockCache
from inferway_bench.policies.catalog import (
    POLICIES,
    CacheAware,
    ConsistentHash,
    Memory,
    RoundRobin,
    approximate,
    expected,
    policy_named,
)
from inferway_bench.policies.engine import Engine, EngineSpec, Job
from inferway_bench.policies.gateway import Feed, Gateway, Holders, Policy, chosen, endpoints_of
from inferway_bench.policies.outcome import Outcome
from inferway_bench.policies.requests import (
    AGENTIC_MOST,
    ChatSpec,
    SimRequest,
    Workload,
    chats,
    llm_request,
    read_trace,
)
from inferway_bench.policies.simulate import FleetSpec, World, simulate
from inferway_bench.processes import BenchError
from inferway_llmd.scheduling.producers.sent_blocks import SentBlocks
from inferway_sim.cache import KvCache, Run

BLOCK = 100
NAMES = list(POLICIES)
SMALL = FleetSpec(num_engines=3, engine=EngineSpec(max_batched_tokens=2_000, cache_tokens=150_000))
LOADED = chats(3, ChatSpec(num_requests=600, think_seconds=1.0, most_tokens=8_000))


def request(*blocks: int, output: int = 1, start: float = 0.0, tail: int = 1) -> SimRequest:
    """Whole blocks, and `tail` tokens more."""
    tokens = len(blocks) * BLOCK + tail
    return SimRequest(
        blocks=blocks, prompt_tokens=tokens, output_tokens=output, session=blocks[0], start=start
    )


def workload(*requests: SimRequest) -> Workload:
    return Workload("by hand", "a few requests", BLOCK, requests)


def at_times(*requests: SimRequest) -> tuple[Workload, float]:
    """With the rate at which they arrive when they say."""
    last = requests[-1].start
    return workload(*requests), len(requests) / last if last else 1.0


def run(name: str, seed: int = 1, gateways: int = 1, rate: float = 8.0) -> Outcome:
    fleet = msgspec.structs.replace(SMALL, num_gateways=gateways)
    return simulate(LOADED, rate, fleet, policy_named(name), seed)


def cached_share(outcome: Outcome) -> float:
    return float(outcome.cached_tokens.sum()) / sum(r.prompt_tokens for r in LOADED.requests)


def always_first(_: World) -> Policy:
    return Policy(RoundRobin(-1))


ONE = FleetSpec(num_engines=1, num_slow=0, engine=EngineSpec(max_batched_tokens=1_000))


# the simulation


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_run(name: str) -> None:
    first, second = run(name), run(name)

    assert np.array_equal(first.ttft, second.ttft)
    assert np.array_equal(first.engine, second.engine)


def test_other_seeds_give_other_runs() -> None:
    assert len({tuple(run("round-robin", seed=seed).engine.tolist()) for seed in range(4)}) > 1


@pytest.mark.parametrize("gateways", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_request_ends_once(name: str, gateways: int) -> None:
    outcome = run(name, gateways=gateways)

    assert set(outcome.num_ended.tolist()) == {1}
    assert (outcome.ttft > 0).all()
    assert (outcome.latency >= outcome.ttft).all()


def test_a_turn_comes_when_the_answer_before_has_ended_and_was_thought_about() -> None:
    outcome = run("kv-aware")
    turns = [(i, r) for i, r in enumerate(LOADED.requests) if r.follows is not None]

    assert turns
    for index, turn in turns:
        assert turn.follows is not None
        ended = outcome.arrived[turn.follows] + outcome.latency[turn.follows]
        assert outcome.arrived[index] == pytest.approx(ended + turn.think)


@pytest.mark.parametrize("attention", [0, 1_000])
@pytest.mark.parametrize("blocks", [1, 9, 25])
def test_an_idle_fleets_ttft_is_the_latency_models(blocks: int, attention: int) -> None:
    alone = request(*range(blocks))
    engine = msgspec.structs.replace(ONE.engine, attention_tokens=attention)
    fleet = msgspec.structs.replace(ONE, engine=engine)

    outcome = simulate(workload(alone), 1.0, fleet, always_first, seed=1)

    assert outcome.ttft[0] == pytest.approx(engine.idle_ttft(alone.prompt_tokens))


def test_a_token_that_looks_far_back_costs_more() -> None:
    spec = EngineSpec(prefill_seconds=1.0, attention_tokens=1_000)

    assert spec.prompt_seconds(0, 1_000) == 1_500
    assert spec.prompt_seconds(1_000, 1_001) == pytest.approx(2.0, rel=1e-3)


def test_a_token_of_an_answer_pays_for_what_it_looks_at() -> None:
    spec = msgspec.structs.replace(ONE.engine, context_seconds=1e-5)
    fleet = msgspec.structs.replace(ONE, engine=spec)
    one, other = request(1, output=11), request(2, 3, output=3)

    outcome = simulate(workload(one, other), 1e9, fleet, always_first, seed=1)

    context = [one.prompt_tokens + 5, other.prompt_tokens + 1]  # with half of the answer
    plain = spec.step_seconds + spec.decode_seconds
    both = plain + spec.decode_seconds + sum(context) * spec.context_seconds
    alone = plain + context[0] * spec.context_seconds
    beside = alone + spec.prompt_seconds(0, other.prompt_tokens)
    decoded = outcome.latency - outcome.ttft
    assert decoded == pytest.approx([beside + 2 * both + 7 * alone, 2 * both])


def test_a_prompt_seen_before_costs_what_is_new_of_it() -> None:
    work, rate = at_times(request(1, 2, 3), request(1, 2, 3, 4, start=50.0))

    outcome = simulate(work, rate, ONE, always_first, seed=1)

    assert outcome.cached_tokens.tolist() == [0, 3 * BLOCK]
    assert outcome.ttft[1] == pytest.approx(ONE.engine.idle_ttft(4 * BLOCK + 1, 3 * BLOCK))


def test_an_answer_takes_a_step_for_each_token() -> None:
    spec = ONE.engine

    outcome = simulate(workload(request(1, output=11)), 1.0, ONE, always_first, seed=1)

    decoding = outcome.latency[0] - outcome.ttft[0]
    assert decoding == pytest.approx(10 * (spec.step_seconds + spec.decode_seconds))


def test_a_prompt_waits_for_the_one_before_it() -> None:
    first, second = request(*range(9)), request(*range(100, 109))

    outcome = simulate(workload(first, second), 1e6, ONE, always_first, seed=1)

    both = first.prompt_tokens + second.prompt_tokens
    assert outcome.ttft[1] == pytest.approx(ONE.engine.idle_ttft(both), rel=1e-3)


def test_a_request_that_arrives_during_a_decode_joins_the_next_step() -> None:
    spec = ONE.engine
    work, rate = at_times(request(1, output=1_000), request(2, start=1.0005))
    step = spec.step_seconds + spec.decode_seconds

    outcome = simulate(work, rate, ONE, always_first, seed=1)

    alone = step + 101 * spec.prefill_seconds
    begun = spec.idle_ttft(101)
    waits = step - (outcome.arrived[1] - begun) % step
    assert outcome.ttft[1] == pytest.approx(waits + alone)


def test_a_full_batch_makes_the_next_one_wait() -> None:
    fleet = msgspec.structs.replace(ONE, engine=EngineSpec(max_num_seqs=1))

    outcome = simulate(
        workload(request(1, output=100), request(2)), 1e6, fleet, always_first, seed=1
    )

    assert outcome.ttft[1] > outcome.latency[0]


def test_a_request_that_no_engine_can_hold_is_an_error() -> None:
    fleet = msgspec.structs.replace(ONE, engine=EngineSpec(cache_tokens=500))

    with pytest.raises(BenchError, match="does not fit an engine's cache of 500"):
        simulate(workload(request(*range(9))), 1.0, fleet, always_first, seed=1)


def test_what_a_slow_engine_does_takes_as_many_times_as_long() -> None:
    fleet = msgspec.structs.replace(ONE, num_slow=1, slow_factor=3.0)
    alone = request(*range(9))

    outcome = simulate(workload(alone), 1.0, fleet, always_first, seed=1)

    assert outcome.ttft[0] == pytest.approx(3 * ONE.engine.idle_ttft(alone.prompt_tokens))


# the oracle


def test_the_oracle_knows_when_the_first_token_comes_of_who_is_added_last() -> None:
    """Of engines in all states, as long as nobody leaves or begins to decode meanwhile."""
    drawn = random.Random(1)
    for _ in range(50):
        engine = Engine(0, ONE.engine, BLOCK)
        gateway = Gateway([engine], BLOCK, always_first(None), Feed(0.0), 0.2)  # type: ignore[arg-type]
        for index in range(drawn.randrange(5)):
            blocks = range(index * 50, index * 50 + drawn.randrange(1, 30))
            job = Job(index, request(*blocks, output=1), 0.0, gateway)
            job.expected_uncached = job.request.prompt_tokens
            engine.add(job, 0.0)
        last = Job(99, request(*range(900, 900 + drawn.randrange(1, 30))), 0.0, gateway)

        said = expected(engine, last.request, last.request.prompt_tokens, 0.0)

        engine.add(last, 0.0)
        while True:
            now = engine.due
            first, _ = engine.end()
            if last in first:
                break
            engine.plan(now)
        assert said == pytest.approx(now, rel=0.05)


@pytest.mark.parametrize("name", ["round-robin", "least-request"])
def test_the_oracle_finds_more_cached_than_who_does_not_look(name: str) -> None:
    assert cached_share(run("oracle")) > cached_share(run(name))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "oracle"])
def test_nobody_answers_sooner_than_the_oracle(name: str) -> None:
    """It looks one request ahead, so a little less than never."""
    assert run("oracle").ttft.mean() < 1.03 * run(name).ttft.mean()


# what a gateway believes


def test_events_arrive_late_and_in_order() -> None:
    feed = Feed(delay=0.5)
    feed.send(1.0, 0, [1, 2, 3], [])
    feed.send(1.1, 1, [1], [])
    feed.send(2.0, 0, [], [3])

    before = feed.holders.match([1, 2, 3])
    feed.deliver(1.7)
    after = feed.holders.match([1, 2, 3])
    feed.deliver(3.0)

    assert before == {}
    assert after == {0: 3, 1: 1}
    assert feed.holders.match([1, 2, 3]) == {0: 2, 1: 1}


def test_a_gateway_sees_others_requests_when_it_scrapes_what_a_step_has_told() -> None:
    engine = Engine(0, ONE.engine, BLOCK)
    one, other = (Gateway([engine], BLOCK, always_first(None), Feed(0.0), 0.2) for _ in range(2))  # type: ignore[arg-type]
    work = workload(request(1, output=3))
    job = Job(0, work.requests[0], 0.0, one)
    one.route(job, work.llm(0), 0.0)
    engine.add(job, 0.0)

    other.scrape(1)
    unseen = other.table.others.tolist()
    engine.end()
    for gateway in (one, other):
        gateway.scrape(1)

    assert unseen == [0.0]
    assert (one.table.in_flight.tolist(), one.table.others.tolist()) == ([1.0], [0.0])
    assert (other.table.in_flight.tolist(), other.table.others.tolist()) == ([0.0], [1.0])


# the cache


def as_tokens(blocks: Sequence[int], tail: int) -> list[int]:
    """Two tokens a block, and one more that fills none."""
    return [block for block in blocks for _ in (0, 1)] + [10**6] * tail


def test_the_cache_agrees_with_the_simulators() -> None:
    """The same prompts reused to the same block, the same refused, the same held in the end; two
    tokens a block, so that there are incomplete ones."""
    drawn = random.Random(5)
    ours, theirs = BlockCache(60), KvCache(61, 2, Dialect(seed="0"))
    prompts = [
        [p % 4, *range(100 * p + 9, 100 * p + 9 + drawn.randrange(1, 14))] for p in range(12)
    ]
    running: list[tuple[list[int], list[int], int, Run]] = []
    refused = reused_blocks = 0
    for step in range(3_000):
        if running and drawn.random() < 0.5:
            blocks, answer, extra, job = running.pop(drawn.randrange(len(running)))
            ours.release(blocks, extra, answer)
            theirs.release(job)
            continue
        blocks = drawn.choice(prompts)
        answer = [10_000 + step] * drawn.randrange(2)
        job = Run(as_tokens(blocks, tail=1))
        assert ours.match(blocks, len(blocks)) * 2 == theirs.num_reusable_tokens(job)
        reused = theirs.admit(job)
        extra = 1 + len(answer)
        if reused is None:
            assert ours.admit(blocks, len(blocks), extra) is None
            refused += 1
            continue
        job.tokens[-1:] = as_tokens(answer, tail=1)
        if not theirs.reserve(job):  # ours takes room for the answer with the prompt's
            theirs.release(job)
            assert ours.admit(blocks, len(blocks), extra) is None
            assert ours.admit(blocks, len(blocks), 1) == reused // 2
            ours.release(blocks, 1)
            continue
        assert ours.admit(blocks, len(blocks), extra) == reused // 2
        reused_blocks += reused // 2
        running.append((blocks, answer, extra, job))
    for blocks, answer, extra, job in running:
        ours.release(blocks, extra, answer)
        theirs.release(job)

    assert refused > 20
    assert reused_blocks > 1_000
    assert len(ours.held()) == len(theirs.cached())


def test_the_last_token_is_always_computed_into_the_block_that_is_there() -> None:
    cache = BlockCache(4)
    cache.admit([1, 2], 1, 0)

    reused = cache.admit([1, 2], 1, 0)

    assert reused == 1
    assert cache.num_free == 2


# what is asked


def test_a_session_keeps_its_blocks_and_shares_those_of_its_system_prompt() -> None:
    made = chats(1, ChatSpec(num_requests=500, system_prompts=2))
    by_session: dict[int, list[SimRequest]] = {}
    for r in made.requests:
        by_session.setdefault(r.session, []).append(r)

    for turns in by_session.values():
        for before, after in pairwise(turns):
            said = before.blocks + before.answer_blocks
            assert after.blocks[: len(said)] == said
    assert len({turns[0].blocks[0] for turns in by_session.values()}) == 2


def test_a_block_is_as_many_characters_whatever_its_id() -> None:
    """What compares text cuts it by characters, and must find the blocks."""
    ids = (0, 7, 16**8 - 1, 16**8, (5 << 40) + 7, (6 << 40) + 7)
    asked = [llm_request(request(block), 0, BLOCK) for block in ids]

    texts = [r.body.prompt for r in asked if isinstance(r.body, CompletionRequest)]

    assert {len(str(text)) for text in texts} == {8}
    assert len(set(map(str, texts))) == len(ids)


def test_a_rate_shrinks_the_gaps_and_not_the_thinking() -> None:
    slow, fast = LOADED.starts(1.0, seed=1), LOADED.starts(10.0, seed=1)

    assert fast == pytest.approx(slow / 10)
    assert slow[-1] == pytest.approx(len(LOADED.requests))


# peers' rules


def table(matched: Sequence[float], in_flight: Sequence[float] = (0, 0)) -> Candidates:
    candidates = idle(endpoints_of(len(matched)), BLOCK)
    candidates.matched_blocks = np.array(matched, float)
    candidates.in_flight = np.array(in_flight, float)
    return candidates


def asks(*blocks: int) -> LLMRequest:
    return workload(request(*blocks)).llm(0)


def row(choice: SchedulingResult) -> int:
    return choice.targets[0].endpoint.holder


def test_cache_aware_follows_the_prompt_while_the_fleet_is_in_balance() -> None:
    policy = CacheAware(BLOCK)
    first = row(policy.choose(asks(1, 2, 3, 4), table([0, 0], [0, 0])))

    same = row(policy.choose(asks(1, 2, 3, 9), table([0, 0], [60, 0])))
    little_in_common = row(policy.choose(asks(1, 20, 30, 90), table([0, 0], [60, 0])))
    out_of_balance = row(policy.choose(asks(1, 2, 3, 9), table([0, 0], [65, 0])))

    assert (first, same) == (0, 0)
    assert (little_in_common, out_of_balance) == (1, 1)


def test_cache_aware_forgets_what_does_not_fit_its_tree() -> None:
    policy = CacheAware(BLOCK, max_tree_tokens=4 * BLOCK)
    policy.choose(asks(1, 2, 3, 4), table([0, 0], [0, 9]))
    policy.choose(asks(5, 6, 7, 8), table([0, 0], [0, 9]))

    assert row(policy.choose(asks(1, 2, 3, 4), table([0, 0], [9, 0]))) == 1
    assert row(policy.choose(asks(5, 6, 7, 8), table([0, 0], [9, 0]))) == 0


def test_a_session_keeps_its_place_on_the_ring_when_another_engine_comes() -> None:
    few, more = ConsistentHash(), ConsistentHash()
    sessions = [asks(session) for session in range(200)]
    before = [row(few.choose(s, table([0] * 4))) for s in sessions]
    after = [row(more.choose(s, table([0] * 5))) for s in sessions]

    moved = [new for old, new in zip(before, after, strict=True) if old != new]

    assert set(before) == {0, 1, 2, 3}
    assert set(moved) == {4}
    assert len(moved) < 80


def test_llm_ds_default_looks_at_the_first_4096_tokens_of_a_prompt() -> None:
    world = World([], [], 512, random.Random(1), lambda: 0.0)

    assert approximate(world)["maxPrefixBlocksToMatch"] * 512 == 4_096


def test_who_hears_nothing_remembers_what_it_sent_as_far_as_a_cache_reaches() -> None:
    memory = Memory(BLOCK, SentBlocks(capacity=4))
    first, second = asks(1, 2, 3), asks(1, 2, 9)
    memory.produce(first, empty := table([0, 0]))
    choice = chosen(empty, 1)
    memory.follow(first, empty, choice).on_attempt(choice.targets[0], 0.0)

    memory.produce(second, after := table([0, 0]))
    memory.follow(second, after, choice).on_attempt(choice.targets[0], 0.0)
    memory.produce(asks(1, 2, 3, 4), full := table([0, 0]))

    assert empty.matched_blocks.tolist() == [0, 0]
    assert after.weighted_matched_blocks.tolist() == [0, 2]
    assert full.prompt_blocks.tolist() == [4, 4]
    assert full.matched_blocks.tolist() == [0, 3]


def test_mooncakes_blocks_are_those_that_are_full(tmp_path: Path) -> None:
    line = {"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 9]}
    path = tmp_path / "mooncake_conversation_trace.jsonl.gz"
    path.write_bytes(gzip.compress(msgspec.json.encode(line)))

    [first] = read_trace(path, 1).requests

    assert (first.blocks, first.prompt_tokens, first.start) == ((0, 7), 1100, 3.0)
    assert first.session == 7


def test_an_agents_blocks_are_joined_by_eight_and_are_its_own(tmp_path: Path) -> None:
    first = {"in": 64 * 17, "out": 3, "hash_ids": list(range(1, 18)), "think_time": 2.0}
    second = {"in": 64 * 24, "out": 0, "hash_ids": list(range(1, 25)), "think_time": 5_000.0}
    too_long = {"in": AGENTIC_MOST + 1, "out": 3, "hash_ids": [1], "think_time": 0.0}
    session = msgspec.json.encode({"requests": [first, second, {"type": "subagent"}, too_long]})
    path = tmp_path / "claude_code_agentic_traces_305.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join([session, session])))

    made = read_trace(path, 1).requests

    assert [len(r.blocks) for r in made] == [2, 3, 2, 3]
    assert made[1].blocks[:2] == made[0].blocks
    assert not set(made[0].blocks) & set(made[2].blocks)
    assert [r.follows for r in made] == [None, 0, None, 2]
    assert (made[1].think, made[1].output_tokens) == (60.0, 1)


# who holds what


def test_many_holders_are_found_as_few_are() -> None:
    holders = Holders()
    for engine in range(100):
        holders.add(engine, range(1 + engine % 3))

    found = holders.match([0, 1, 2, 3])

    assert found == {engine: 1 + engine % 3 for engine in range(100)}


def test_what_is_removed_is_held_no_more() -> None:
    holders = Holders()
    holders.add(0, [1, 2])
    holders.add(70, [1, 2])
    holders.remove(70, [2])

    assert holders.match([1, 2]) == {0: 2, 70: 1}
    assert holders.match([2]) == {0: 1}
    assert holders.match([]) == {}


# what an engine tells


def test_an_engine_tells_of_a_step_when_it_is_over() -> None:
    spec = EngineSpec(max_batched_tokens=1_000)
    engine = Engine(0, spec, 100)
    policy = Policy(RoundRobin(-1))
    gateway = Gateway([engine], 100, policy, Feed(0.0), 0.2)
    long = SimRequest(blocks=(), prompt_tokens=1_500, output_tokens=5, session=1)

    for index in range(3):
        engine.add(Job(index, long, 0.0, gateway), 0.0)
    before = engine.told
    engine.end()
    first = engine.told
    engine.plan(1.0)
    engine.end()
    second = engine.told

    assert (before.running, before.waiting) == (0, 0)
    assert (first.running, first.waiting, first.awaiting_first_token) == (1, 0, 1)
    assert (second.running, second.waiting, second.awaiting_first_token) == (2, 1, 2)
