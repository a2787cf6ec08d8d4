"""`inferway bench index`: what both systems are given, and what is said of the run."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice, pairwise

import pytest
from bench.tests.runs import a_run, unseen

from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.event import BlockStored
from inferway.kv.index.memory import MemoryIndex
from inferway_bench.index.benchmark import (
    INDEX,
    IndexPlan,
    event_rows,
    losses,
    match_rows,
)
from inferway_bench.index.engine import FollowedEngine, endless_payloads, payload
from inferway_bench.index.worker import (
    NUM_ENGINES,
    OURS,
    PEER,
    PEER_ON_ONE,
    SHAPES,
    events,
    prompts,
)
from inferway_bench.processes import BenchError
from inferway_bench.rows import Findings, Row, Run

TINY = IndexPlan(
    peer=False,
    rounds=1,
    prompts={32: 4, 64: 2},
    filler_blocks=320,
    match_repeats=3,
    events={16: 20, 1: 40},
    event_repeats=2,
    memory_blocks=64_000,  # fewer fit into memory that is free already
)


def stored(batch: bytes) -> BlockStored:
    [event] = open_batch(batch).decoded().events
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
    found = stored(payload(event, 4))

    assert (found.block_hashes, list(found.token_ids)) == (event.hashes, event.tokens)
    assert (found.parent_hash, found.block_size, found.medium) == (None, 4, "GPU")


def test_endless_payloads_are_chains_of_new_blocks() -> None:
    made = [stored(batch) for batch in islice(endless_payloads(8, seed=0, chain=3), 200)]
    hashes = [block_hash for event in made for block_hash in event.block_hashes]

    assert len(set(hashes)) == 200 * 16
    assert len({tuple(event.token_ids) for event in made}) == 200
    for before, event in pairwise(made):
        assert event.parent_hash in (None, before.block_hashes[-1])
    assert [event.parent_hash is None for event in made[:4]] == [True, False, False, True]


def test_the_peers_side_needs_nothing_of_ours_but_the_workload() -> None:
    """It runs in a venv without our dependencies."""
    code = (
        "import sys; before = set(sys.modules); import inferway_bench.index.worker;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout.strip() == "['inferway_bench']"


def test_followed_events_are_in_the_index_and_the_picture_is_exact() -> None:
    index = MemoryIndex()
    engine = FollowedEngine(0, 4, index)
    raw = [payload(event, 4) for event in events(24, 16, 4, seed=1)]

    engine.find_dialect(raw)
    engine.apply(raw[:5])
    engine.apply(raw[5:])

    assert index.num_blocks(0) == engine.blocks.num_blocks == 24 * 16
    assert engine.follower.stats.batches == 24


# a whole run


@pytest.mark.slow
def test_a_tiny_run_measures_everything() -> None:
    run = INDEX.run(TINY, unseen)

    assert [(row.keys["blocks"], row.keys["held"]) for row in run.select("match")] == [
        (length, shape) for length in (32, 64) for shape in SHAPES
    ]
    assert run.distinct("events", "blocks of an event") == [16, 1]
    assert [row.median("bytes") > 0 for row in run.select("memory")] == [True]
    assert all(row.is_ours for row in run.rows)
    assert "left out" in INDEX.markdown(run)


# what is said of it


def a_match(right: bool = True, us: float = 1.0) -> dict[str, dict[str, object]]:
    return {
        f"{length} {shape}": {"us": us * length / 512, "right": right or shape != "random"}
        for length in (512, 1024)
        for shape in SHAPES
    }


def run_of() -> Run:
    plan = IndexPlan(prompts={512: 1, 1024: 1}, events={16: 40_000, 1: 50_000})
    peers = [{"16": [steps := {"hash": 1.0, "JSON": 1.0, "apply": 2.0}], "1": [steps]}]
    ours = [{"16": [{"all": 1.0}], "1": [{"all": 1.0}]}]
    matches = {
        OURS: [a_match()],
        PEER: [a_match(right=False, us=40.0)],
        PEER_ON_ONE: [a_match(us=20.0)],
    }
    rows = [
        *match_rows(plan, matches),
        *event_rows(plan, {OURS: ours, PEER: peers, PEER_ON_ONE: peers}),
        Row("memory", {"system": OURS}, {"bytes": 230.0}),
        Row("memory", {"system": PEER}, {"bytes": 85.0}, is_ours=False),
    ]
    words = {"prompts": {"512": 1, "1024": 1}, "filler_blocks": 7}
    return a_run("index", Findings(rows=rows), plan={**words, "memory_blocks": 7})


def test_losses_and_wrong_answers_are_shown() -> None:
    text = INDEX.markdown(run_of())

    assert losses(run_of())[0] == "memory: a block takes 230 bytes, in Dynamo's RadixTree 85"
    assert "| 512 | random | 1.00 | 40.0 | 40.0 | differ | 20.0 | 20.0 |" in text


def test_a_wrong_answer_of_ours_ends_the_run() -> None:
    plan = IndexPlan(prompts={512: 1, 1024: 1})

    with pytest.raises(BenchError, match="512 random: our answers are not those of a walk"):
        list(match_rows(plan, {OURS: [a_match(right=False)]}))
