"""`inferway bench index`: what both systems are given, and what is said of the run."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import pytest
from bench.tests.test_report import MACHINE

from inferway.events.adapters.sglang import open_batch
from inferway.events.event import BlockStored
from inferway.index.memory import MemoryIndex
from inferway_bench.index.followed import FollowedEngine
from inferway_bench.index.holdings import Fleet
from inferway_bench.index.memory import Growth
from inferway_bench.index.payloads import endless_payloads, payloads
from inferway_bench.index.plan import QUICK, Plan
from inferway_bench.index.report import INDEX
from inferway_bench.index.results import Case, EventPath, IndexRun, Keys, PeerSeconds
from inferway_bench.index.run import run_index
from inferway_bench.index.shared import Cost, SharedCost
from inferway_bench.index.snapshot import Compaction, JournalCost, Loading, Snapshots, Wait
from inferway_bench.index.stalls import Phase, Stalls
from inferway_bench.index.workload import NUM_ENGINES, SHAPES, events, prompts

DOCS = Path(__file__).parents[2] / "docs"
TINY = Plan(
    rounds=1,
    prompts={32: 4, 64: 2},
    filler_blocks=320,
    match_repeats=3,
    events={16: 20, 1: 40},
    event_repeats=2,
    key_tokens=100,
    growth_blocks=1_600,
    quiet_seconds=0.1,
    memory_blocks=3_200,
    engines=(1, 3),
    engine_blocks=1_280,
    snapshot_blocks=3_200,
    snapshot_engine_blocks=640,
)


def stored(payload: bytes) -> BlockStored:
    [event] = open_batch(payload).decoded().events
    assert isinstance(event, BlockStored)
    return event


# what both are given


@pytest.mark.parametrize("shape", ["detached", "frayed"])
def test_one_percent_of_all_blocks_are_detached(shape: str) -> None:
    made = prompts(shape, 200, 512, seed=3)
    behind = [511 - n for prompt in made for n in prompt.removed if n is not None]

    assert 0.0095 < sum(behind) / (200 * NUM_ENGINES * 512) < 0.0105


def test_frayed_prompts_end_elsewhere_for_each_engine() -> None:
    for prompt in prompts("frayed", 10, 512, seed=3):
        assert len({prompt.matched(engine) for engine in range(NUM_ENGINES)}) == NUM_ENGINES


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_makes_the_same_prompts(shape: str) -> None:
    assert prompts(shape, 3, 64, seed=1) == prompts(shape, 3, 64, seed=1)
    assert prompts(shape, 3, 64, seed=1) != prompts(shape, 3, 64, seed=2)


@pytest.mark.parametrize("blocks", [1, 16])
def test_events_are_pieces_of_prompts_of_128_blocks(blocks: int) -> None:
    made = list(events(300, blocks, 4, seed=0))

    assert [i for i, event in enumerate(made) if event.parent is None] == [
        *range(0, 300, 128 // blocks)
    ]
    assert all(len(event.hashes) * 4 == len(event.tokens) == blocks * 4 for event in made)


def test_a_payload_is_what_an_engine_sends() -> None:
    [event] = events(1, 2, 4, seed=0)
    [payload] = payloads([event], 4)
    found = stored(payload)

    assert (found.block_hashes, found.token_ids) == (event.hashes, event.tokens)
    assert (found.parent_hash, found.block_size, found.medium) == (None, 4, "GPU")


def test_endless_payloads_are_chains_of_new_blocks() -> None:
    made = [stored(payload) for payload in islice(endless_payloads(4, 8, 3, seed=0), 200)]
    hashes = [block_hash for event in made for block_hash in event.block_hashes]

    assert len(set(hashes)) == 800
    assert len({tuple(event.token_ids) for event in made}) == 200
    for before, event in pairwise(made):
        assert event.parent_hash in (None, before.block_hashes[-1])
    assert [event.parent_hash is None for event in made[:4]] == [True, False, False, True]


def test_the_peers_side_needs_nothing_of_ours_but_the_workload() -> None:
    """It runs in a venv without our dependencies."""
    code = (
        "import sys; before = set(sys.modules); import inferway_bench.index.peer_worker;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "['inferway_bench']"


# a whole run


@pytest.mark.slow
def test_a_tiny_run_measures_everything() -> None:
    steps: list[str] = []
    run = run_index(TINY, steps.append, beside_peer=False)

    assert [(case.length, case.shape) for case in run.cases] == [
        (length, shape) for length in (32, 64) for shape in SHAPES
    ]
    assert all(case.ours > 0 and not case.peer_us for case in run.cases)
    assert [path.blocks for path in run.event_paths] == [16, 1]
    assert run.growth.points[-1][0] >= 3_200
    assert run.stalls.blocks == 1_600
    assert [(f.engines, f.kind) for f in run.fleets][:3] == [(1, "own"), (3, "own"), (1, "shared")]
    assert (run.snapshots.compaction.blocks, run.snapshots.loading.blocks) == (640, 3_200)
    assert run.snapshots.compaction.snapshot_bytes_per_block < 20
    assert run.snapshots.loading.compactions == 2
    assert (run.peer, run.peer_bytes_per_block) == (None, None)
    assert not any("peer" in goal.what for goal in run.goals())
    assert "left out" in INDEX.markdown(run)


def test_followed_events_are_in_the_index_and_the_picture_is_exact() -> None:
    index = MemoryIndex()
    engine = FollowedEngine(0, 4, index)
    raw = payloads(events(24, 16, 4, seed=1), 4)

    engine.find_dialect(raw)
    engine.apply(raw[:5])
    engine.apply(raw[5:])

    assert index.num_blocks(0) == engine.blocks.num_blocks == 24 * 16
    assert engine.follower.stats.batches == 24


# what is said of it


PHASE = Phase(
    seconds=1.0,
    decision_p50_ms=0.1,
    decision_p99_ms=0.5,
    decision_max_ms=1.0,
    late_p99_ms=0.2,
    late_max_ms=0.9,
)


def snapshots(load_ms: float = 2.0, ratio: float = 1.1) -> Snapshots:
    wait = Wait(1000, 1.0, load_ms, 1.0, 2.0, 0)
    return Snapshots(
        cost=JournalCost(50.0, 50.0 * ratio, ratio, 21.5),
        compaction=Compaction(625_000, 88.0, 18.1, 2.5, 2.4, 150.0),
        loading=Loading(5_000_000, 10.0, wait, wait, wait, 100_000.0, 2, 5.0),
    )


def a_run(growing: Phase = PHASE, peak: float = 230.0, ours_us: float = 1.0) -> IndexRun:
    cases = [
        Case(length, shape, [ours_us * length / 512], [40.0], [20.0], peer_right=shape != "random")
        for length in (512, 1024)
        for shape in SHAPES
    ]
    peer = [PeerSeconds(hashing=1.0, writing=1.0, applying=2.0)]
    return IndexRun(
        machine=MACHINE,
        command="inferway bench index",
        peer="ai-dynamo-runtime 1.6.1",
        plan=Plan(prompts={512: 1, 1024: 1}),
        cases=cases,
        event_paths=[
            EventPath(16, 40_000, [1.0], peer, peer),
            EventPath(1, 50_000, [1.0], peer, peer),
        ],
        keys=Keys(8000, [20.0], [80.0]),
        growth=Growth([(1000, 240.0), (6_000_000, 220.0)], peak, 3.0, 1.5, 0.9),
        fleets=[Fleet(n, "own", 100, 100, n, 220.0) for n in (1, 10, 100, 1000)],
        stalls=Stalls(6_000_000, 100_000.0, 2.0, 1.0, PHASE, growing),
        snapshots=snapshots(),
        peer_bytes_per_block=85.0,
        shared=SharedCost(
            "redis-server",
            memory=Cost(3.5, 9.0, 60.0, 8.0, 5.0, 0.0),
            shared=Cost(180.0, 900.0, 290.0, 160.0, 150.0, 120.0),
        ),
    )


def whole(run: IndexRun) -> str:
    """All tables."""
    assert INDEX.details is not None
    return INDEX.details(run)


def met(run: IndexRun) -> dict[str, bool]:
    return {goal.what: goal.is_met for goal in run.goals()}


def test_goals_are_met_or_not() -> None:
    assert met(a_run()) == {
        "match of 512 blocks, 8 engines, 1 % detached": True,
        "match of 1,024 blocks, time / that of 512 blocks": True,
        "applying 16-block events": True,
        "applying one-block events": False,
        "block keys of 8,000 tokens": True,
        "applying 16-block events, speed / that of the peer": True,
        "memory of a block at the peak, bytes": True,
        "longest stall while the index grows": True,
        "time that growing adds to a decision's p99": True,
        "time that a journal adds to applying events": True,
        "longest stall while 5,000,000 blocks are loaded": True,
        "longest stall with 5,000,000 blocks while a journal is compacted": True,
    }


def test_a_goal_that_is_missed_is_said_so() -> None:
    slow = msgspec.structs.replace(PHASE, decision_p99_ms=3.0, late_max_ms=6.0)
    run = a_run(growing=slow, peak=251.0, ours_us=5.0)

    missed = [what for what, is_met in met(run).items() if not is_met]

    assert missed == [
        "match of 512 blocks, 8 engines, 1 % detached",
        "applying one-block events",
        "memory of a block at the peak, bytes",
        "longest stall while the index grows",
        "time that growing adds to a decision's p99",
    ]


def test_a_journal_that_keeps_others_waiting_is_said_so() -> None:
    run = msgspec.structs.replace(a_run(), snapshots=snapshots(load_ms=5.1, ratio=1.16))

    assert [what for what, is_met in met(run).items() if not is_met][1:] == [
        "time that a journal adds to applying events",
        "longest stall while 5,000,000 blocks are loaded",
        "longest stall with 5,000,000 blocks while a journal is compacted",
    ]
    assert "| while they are loaded | 1.00 | 5.10 | 1.00 | 2.00 |" in whole(run)


def test_losses_are_shown() -> None:
    text = INDEX.markdown(a_run())

    assert a_run().losses()[0] == "memory: a block takes 230 bytes, in Dynamo's RadixTree 85"
    assert "the peer takes 85" in text
    assert "the peer's differ in 512 random, 1024 random" in text


def test_the_shared_index_stands_beside_the_one_in_memory() -> None:
    text = whole(a_run())

    assert "| in memory | 3.5 | 9.0 | 8.0 | 60.0 | 5.0 | 0.0 |" in text
    assert "| in Redis | 180 | 900 | 160 | 290 | 150 | 120 |" in text
    assert "through Redis" not in whole(msgspec.structs.replace(a_run(), shared=None))


def test_the_terminal_has_what_a_request_meets() -> None:
    assert [table.row_count for table in INDEX.tables(a_run())] == [2 * len(SHAPES), 6, 3]


def test_quick_is_less_of_everything() -> None:
    full = Plan()

    assert QUICK.rounds < full.rounds
    assert QUICK.memory_blocks < full.memory_blocks
    assert QUICK.filler_blocks < full.filler_blocks
