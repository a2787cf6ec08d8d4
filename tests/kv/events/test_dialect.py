"""An engine's way to hash is found from its events, verified, and never a reason to fail."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.kv.blocks.dialects import (
    ALGORITHMS,
    Dialect,
    HashExtra,
    LoraAdapter,
    hash_extras,
    wire_hash,
)
from inferway.kv.events.adapters.sglang import open_batch
from inferway.kv.events.dialect_finder import DialectFinder, DialectState
from inferway.kv.events.event import BlockStored
from inferway.model import TokenIds
from inferway_sim.cache import Adapter, KvCache, Run
from inferway_sim.events import encode_batch

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "blocks" / "vllm_hashes.json").read_text()
)
SIZE = 4
LORA = LoraAdapter("alice", "/adapters/alice")


def prompt(seed: int, blocks: int = 3) -> list[int]:
    numbers = random.Random(seed)
    return [numbers.randrange(50_000) for _ in range(blocks * SIZE)]


def stored(
    dialect: Dialect,
    tokens: Sequence[int],
    *,
    first: int = 0,
    lora: LoraAdapter | None = None,
    salt: str | None = None,
) -> BlockStored:
    """As an engine of this dialect tells of a prompt's blocks from `first` on."""
    hashes = []
    parent = None
    for start in range(0, len(tokens), SIZE):
        extra: tuple[HashExtra, ...] | None = hash_extras(lora, salt if start == 0 else None)
        parent = dialect.block_hash(parent, tokens[start : start + SIZE], extra)
        hashes.append(wire_hash(parent))
    keys: list[object] = [[lora.name] if lora else None for _ in hashes]
    if salt:
        keys[0] = [*([lora.name] if lora else []), salt]
    return BlockStored(
        block_hashes=hashes[first:],
        parent_hash=hashes[first - 1] if first else None,
        token_ids=list(tokens[first * SIZE :]),
        block_size=SIZE,
        lora_name=lora.name if lora else None,
        lora_id=1 if lora else None,
        extra_keys=keys[first:],
    )


def ids(tokens: Sequence[int]) -> TokenIds:
    return np.array(tokens, dtype=np.uint32)


def after(*events: BlockStored, **options: Any) -> DialectFinder:
    finder = DialectFinder(**options)
    for event in events:
        finder.see(event)
        finder.step(1000)
    return finder


def paths(name: str) -> str | None:
    return LORA.path if name == LORA.name else None


# finding


@pytest.mark.parametrize("run", GOLDEN["runs"], ids=lambda run: f"{run['algorithm']} {run['seed']}")
def test_the_dialects_of_vllm_are_found_from_its_hashes(run: dict[str, Any]) -> None:
    size, case = GOLDEN["block_size"], run["cases"]["plain"]
    event = BlockStored(
        block_hashes=case["wire"],
        parent_hash=None,
        token_ids=GOLDEN["token_ids"][: size * len(case["wire"])],
        block_size=size,
    )
    seeds = ["vllm-none-hash", "0", *([run["seed"]] if run["seed"] else [])]

    finder = after(event, seeds=seeds)

    assert finder.state is DialectState.FOUND
    assert finder.name == f"{run['algorithm']}, seed {run['seed'] or 'vllm-none-hash'!r}"
    assert finder.num_checked == len(case["wire"])


@settings(max_examples=40)
@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["vllm-none-hash", "0", "42", "mine"]),
    st.booleans(),
    st.lists(st.integers(0, 2**32 - 1), min_size=SIZE, max_size=5 * SIZE),
)
def test_what_is_found_hashes_prompts_as_the_engine_does(
    algorithm: str, seed: str, tagged: bool, tokens: list[int]
) -> None:
    dialect = Dialect(algorithm, seed, tagged=tagged)
    finder = after(stored(dialect, prompt(1)), seeds=["vllm-none-hash", "0", "42", "mine"])

    [found] = finder.dialects(with_extras=False)

    assert list(found.block_hashes(tokens, SIZE)) == list(dialect.block_hashes(tokens, SIZE))


def test_the_simulated_engines_dialect_is_found() -> None:
    cache = KvCache(64, SIZE, Dialect("sha256_cbor", "0"))
    finder = DialectFinder(lora_path=paths)
    for seed in range(6):
        adapter = Adapter(1, LORA) if seed % 3 == 1 else None
        run = Run(prompt(seed, 6), adapter, "s" if seed % 3 == 2 else None)
        cache.admit(run)
        cache.release(run)
        payload = encode_batch(cache.take_events(), timestamp=0.0, rank=0, format="array")
        for event in open_batch(payload).decoded().events:
            if isinstance(event, BlockStored):
                finder.see(event)
    finder.step(1000)

    assert (finder.state, finder.name) == (DialectState.FOUND, "sha256_cbor, seed '0'")
    assert finder.num_checked == 36
    assert [dialect.tagged for dialect in finder.dialects(with_extras=True)] == [True]


def test_nothing_is_known_before_a_prompts_start_was_seen() -> None:
    finder = after(stored(Dialect(), prompt(1), first=1))

    assert (finder.state, finder.name, finder.finding) == (DialectState.UNKNOWN, None, None)
    assert finder.dialects(with_extras=False) == ()


def test_a_random_seed_is_said_with_its_cure() -> None:
    finder = after(stored(Dialect("xxhash", "f00d"), prompt(1)))

    assert finder.state is DialectState.NONE
    assert finder.finding is not None
    assert "set PYTHONHASHSEED=0" in finder.finding
    assert "'vllm-none-hash', '0', '42'" in finder.finding
    assert finder.dialects(with_extras=False) == ()


def test_it_is_found_after_all_if_what_fits_comes_later() -> None:
    finder = after(
        stored(Dialect("xxhash", "f00d"), prompt(1)),
        stored(Dialect(), prompt(2)),
    )

    assert finder.state is DialectState.FOUND


@pytest.mark.parametrize("num_salted", [7, 8])
def test_an_engine_that_publishes_no_salts_is_given_some_more_chances(num_salted: int) -> None:
    salted = [stored(Dialect(), prompt(seed), salt="s") for seed in range(num_salted)]

    finder = after(*[msgspec.structs.replace(event, extra_keys=None) for event in salted])

    assert finder.state is (DialectState.UNKNOWN if num_salted < 8 else DialectState.NONE)


# prompts that were routed


@pytest.mark.parametrize("lora", [None, LORA])
def test_a_prompt_shows_what_events_without_a_start_do_not(lora: LoraAdapter | None) -> None:
    dialect, tokens = Dialect("sha256_cbor", "0"), prompt(1, 8)
    finder = after(stored(dialect, tokens, first=5, lora=lora, salt="s"))
    assert finder.wants_prompts
    name = lora.name if lora else None
    found = finder.find(ids(tokens), SIZE, name)
    assert found is not None
    block, event = found

    for _ in finder.prove(event, ids(tokens[: (block + 1) * SIZE]), lora, "s"):
        pass

    assert block == 5
    assert (finder.state, finder.name) == (DialectState.FOUND, "sha256_cbor, seed '0'")
    assert [d.tagged for d in finder.dialects(with_extras=True)] == [True]
    assert finder.find(ids(prompt(2, 8)), SIZE, name) is None


def test_another_prompt_with_the_same_words_in_it_proves_nothing() -> None:
    tokens = prompt(1, 8)
    finder = after(stored(Dialect(), tokens, first=5))
    other = prompt(2, 5) + tokens[5 * SIZE :]
    found = finder.find(ids(other), SIZE, None)
    assert found is not None

    list(finder.prove(found[1], ids(other[: 6 * SIZE])))

    assert finder.state is DialectState.UNKNOWN
    assert not finder.wants_prompts


def test_events_of_an_adapter_are_looked_for_in_its_prompts_alone() -> None:
    tokens = prompt(1, 8)
    finder = after(stored(Dialect(), tokens, first=5, lora=LORA))

    assert finder.find(ids(tokens), SIZE, None) is None
    assert finder.find(ids(tokens), SIZE, LORA.name) is not None


def test_the_last_64_loose_events_are_kept() -> None:
    finder = after(*[stored(Dialect(), prompt(seed, 2), first=1) for seed in range(65)])

    assert finder.find(ids(prompt(0, 2)), SIZE, None) is None
    assert finder.find(ids(prompt(1, 2)), SIZE, None) is not None


# extra keys


@pytest.mark.parametrize("tagged", [True, False])
def test_how_extra_keys_are_hashed_shows_with_the_first(tagged: bool) -> None:
    dialect = Dialect(tagged=tagged)
    finder = after(stored(dialect, prompt(1)))
    assert len(finder.dialects(with_extras=True)) == 2

    finder.see(stored(dialect, prompt(2), salt="s"))
    finder.step(100)

    assert [found.tagged for found in finder.dialects(with_extras=True)] == [tagged]


def test_an_adapter_is_hashed_with_its_path() -> None:
    event = stored(Dialect(), prompt(1), lora=LORA, salt="s")

    assert after(event, lora_path=paths).name == "sha256, seed 'vllm-none-hash'"
    assert after(event).state is DialectState.UNKNOWN  # its path is not known


def test_an_adapter_of_another_path_says_nothing_of_the_dialect() -> None:
    moved = LoraAdapter(LORA.name, "/elsewhere")

    finder = after(
        stored(Dialect(), prompt(1)), stored(Dialect(), prompt(2), lora=moved), lora_path=paths
    )

    assert finder.state is DialectState.FOUND


def test_an_adapter_of_another_path_is_seen_in_its_first_block() -> None:
    moved = LoraAdapter(LORA.name, "/elsewhere")
    known = stored(Dialect(), prompt(1))
    found = after(known, lora_path=paths)

    assert found.is_moved(stored(Dialect(), prompt(2), lora=moved))
    assert found.is_moved(stored(Dialect(), prompt(2), lora=moved, salt="s"))
    assert not found.is_moved(stored(Dialect(), prompt(2), lora=LORA, salt="s"))
    assert not found.is_moved(known)
    assert not after(known).is_moved(stored(Dialect(), prompt(2), lora=moved))  # none is known
    assert not after(lora_path=paths).is_moved(stored(Dialect(), prompt(2), lora=moved))


def test_blocks_with_pictures_are_left_out() -> None:
    event = stored(Dialect("xxhash", "f00d"), prompt(1))
    pictured = BlockStored(
        block_hashes=event.block_hashes,
        parent_hash=None,
        token_ids=event.token_ids,
        block_size=SIZE,
        extra_keys=[[["picture", 0]], None, None],
    )

    assert after(stored(Dialect(), prompt(2)), pictured).state is DialectState.FOUND


# verifying


def test_a_chain_that_continues_a_known_one_is_verified() -> None:
    tokens = prompt(1, 6)
    dialect = Dialect()

    finder = after(stored(dialect, tokens[: 3 * SIZE]), stored(dialect, tokens, first=3))

    assert finder.num_checked == 6


def test_another_hash_later_is_a_finding_and_ends_it() -> None:
    finder = after(stored(Dialect(), prompt(1)), stored(Dialect(seed="0"), prompt(2)))

    assert finder.state is DialectState.CONTRADICTED
    assert finder.finding is not None
    assert "no longer those of the dialect found at first (sha256)" in finder.finding
    assert finder.dialects(with_extras=False) == ()
    finder.see(stored(Dialect(), prompt(3)))
    assert not finder.has_work


def test_later_only_one_chain_in_256_is_looked_at() -> None:
    finder = after(*[stored(Dialect(), prompt(seed, 1)) for seed in range(600)])

    assert finder.num_checked == 1 + 64 + 2


def test_what_nobody_hashes_does_not_pile_up() -> None:
    finder = DialectFinder()
    for seed in range(1000):
        finder.see(stored(Dialect(), prompt(seed, 1)))

    finder.step(10_000)

    assert finder.num_checked == 64


def test_a_step_keeps_to_its_budget() -> None:
    finder = after(stored(Dialect(), prompt(0, 1)))
    for seed in range(1, 11):
        finder.see(stored(Dialect(), prompt(seed, 1)))

    finder.step(4)

    assert finder.num_checked == 5
    assert finder.has_work


def test_of_a_long_event_no_more_is_looked_at_than_hashed() -> None:
    event = stored(Dialect(), prompt(1, 100))
    assert event.extra_keys is not None
    event.extra_keys[80] = [["picture", 0]]

    finder = after(event)

    assert finder.num_checked == 64


def test_an_event_without_blocks_is_nothing() -> None:
    event = BlockStored(block_hashes=[], parent_hash=None, token_ids=[], block_size=SIZE)

    assert after(event).state is DialectState.UNKNOWN
