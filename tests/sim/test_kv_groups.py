"""What prompts reuse where a model has several KV cache groups, or is speculated, and what is told
of it. tests/engines/simulated_cache.py compares it with vLLM itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import ConfigError
from inferway.kv.blocks.dialects import Dialect
from inferway_sim.cache import Run
from inferway_sim.events import CacheCleared, CacheRemoved, CacheStored, encode_batch
from inferway_sim.kv_groups.cache import GroupedCache
from inferway_sim.kv_groups.spec import (
    KvGroup,
    KvGroups,
    SpeculativeDecoding,
    read_groups,
)

BLOCK = 4


def groups(text: str, **fields: Any) -> KvGroups:
    return KvGroups(read_groups(text, BLOCK), **fields)


def cache(text: str, num_blocks: int = 100, **fields: Any) -> GroupedCache:
    return GroupedCache(num_blocks, groups(text, **fields), Dialect(), max_model_len=1000)


def served(engine: GroupedCache, tokens: range | list[int]) -> int | None:
    """A prompt comes, is computed and leaves; how many of its tokens were there."""
    run = Run(list(tokens))
    cached = engine.admit(run)
    engine.finish(run, 0)
    return cached


def stored(engine: GroupedCache, group: int) -> list[CacheStored]:
    events = engine.take_events()
    return [e for e in events if isinstance(e, CacheStored) and e.group == group]


MTP = SpeculativeDecoding("mtp", 1)


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("full", KvGroup("full", 4)),
        ("full:64", KvGroup("full", 64)),
        ("window:100", KvGroup("window", 4, 100)),
        ("window:100:8", KvGroup("window", 8, 100)),
        ("local:32", KvGroup("local", 4, 32)),
        ("mamba:align", KvGroup("mamba", 4, mode="align")),
        ("mamba:all:16", KvGroup("mamba", 16, mode="all")),
    ],
)
def test_a_group_is_read(text: str, group: KvGroup) -> None:
    assert read_groups(text, 4) == (group,)


@pytest.mark.parametrize(
    "text",
    ["", "fully", "full:0", "full:x", "full:1:1", "window", "window:-1", "mamba:none", "full,"],
)
def test_what_is_no_group_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(ConfigError, match=r"kv-groups: .*full\[:SIZE\], window:TOKENS"):
        read_groups(text, 4)


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        ("full:4,local:8:8", {}, "give all the same SIZE"),
        ("full:4,mamba:all:8", {}, "give all the same SIZE"),
        ("full,mamba:all", {"version": "0.33"}, "gone from vLLM 0.33"),
        ("mamba:align:4,mamba:align:8", {}, "give all mamba groups the same SIZE"),
        ("full,local:8", {"speculation": SpeculativeDecoding("eagle", 1)}, "choose --speculation"),
        ("full", {"match_unit": 2}, "prefix-match-unit: expected 4"),
        ("full,window:8", {"match_unit": 3}, "expected a divisor"),
        ("full", {"retention_interval": 8}, "no effect"),
        ("full,window:8", {"retention_interval": 6}, "expected 0 or a multiple of 4"),
        ("full:64", {"max_num_batched_tokens": 32}, "max-num-batched-tokens: expected at least 64"),
    ],
)
def test_groups_that_vllm_does_not_have_are_refused(
    text: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        groups(text, **fields)


@pytest.mark.parametrize("text", ["full,window:8", "full,mamba:all", "full,local:8", "window:8"])
def test_a_repeated_prompt_reuses_all_whole_blocks_but_the_last_tokens(text: str) -> None:
    engine = cache(text, retention_interval=None)
    served(engine, range(41))

    assert served(engine, range(41)) == 40


def test_a_hit_is_a_whole_number_of_blocks_in_every_group() -> None:
    engine = cache("full:8,window:8:4", retention_interval=None)
    served(engine, range(30))

    assert served(engine, [*range(13), 500]) == 8


def test_a_window_group_keeps_what_the_hits_end_reads() -> None:
    engine = cache("full,window:8", num_blocks=40, retention_interval=0)
    served(engine, range(41))

    assert [served(engine, [*range(n), 500]) for n in (20, 40)] == [0, 40]


def test_a_window_group_holds_no_blocks_before_its_window() -> None:
    engine = cache("window:8", retention_interval=None, max_num_batched_tokens=8)
    run = Run(list(range(41)))
    engine.admit(run)
    engine.reserve(run)

    assert engine.num_blocks - engine.num_free_blocks == 3


def test_an_aligned_mamba_group_has_a_state_where_a_step_ends() -> None:
    engine = cache("full,mamba:align", retention_interval=None, max_num_batched_tokens=16)
    served(engine, range(41))

    # The steps end at 16, 32 and 40.
    assert [served(engine, [*range(n), 500]) for n in (15, 31, 39)] == [0, 16, 32]
    assert served(engine, range(41)) == 40


def test_an_aligned_mamba_group_keeps_a_state_where_prompts_part() -> None:
    engine = cache("full,mamba:align")
    served(engine, range(41))
    branches = [[*range(22), *[number] * 20] for number in (500, 501, 502)]

    assert [served(engine, branch) for branch in branches] == [0, 20, 20]


def test_states_are_kept_at_the_retention_interval() -> None:
    engine = cache("full,mamba:all", retention_interval=16)
    served(engine, range(50))

    assert [served(engine, [*range(n), 500]) for n in (31, 32, 47, 49)] == [16, 32, 32, 48]


def test_with_a_finer_match_unit_a_hit_ends_within_a_block() -> None:
    engine = cache("full:16,mamba:align:16", match_unit=4)
    served(engine, range(27))

    assert served(engine, range(27)) == 24


@pytest.mark.parametrize(("text", "reused"), [("full", 36), ("full,window:8", 36)])
def test_a_drafter_takes_the_last_block_of_a_hit(text: str, reused: int) -> None:
    engine = cache(text, retention_interval=None, speculation=MTP)
    served(engine, range(42))

    assert served(engine, [*range(42), 500]) == reused


def test_where_hashes_cover_the_next_token_a_hit_ends_before_that_differs() -> None:
    speculation = SpeculativeDecoding("mtp", 1, hash_lookahead=1)
    engine = cache("full", speculation=speculation, version="0.33")
    served(engine, range(41))
    [event] = stored(engine, 0)

    assert event.lookahead == tuple((end,) for end in range(4, 41, 4))
    assert [served(engine, [*range(n), 500, 501]) for n in (20, 21)] == [16, 20]


def test_an_event_of_a_group_tells_its_kind_and_window_and_the_blocks_kept() -> None:
    engine = cache("full,window:8")
    served(engine, range(41))
    full, window = engine.take_events()
    assert isinstance(full, CacheStored)
    assert isinstance(window, CacheStored)

    assert (full.group, full.spec_kind, full.window) == (0, "full_attention", None)
    assert (window.group, window.spec_kind, window.window) == (1, "sliding_window", 8)
    assert (len(full.hashes), len(window.hashes)) == (10, 2)
    assert window.hashes == full.hashes[8:]
    assert (window.parent, window.token_ids) == (None, tuple(range(40)))


def test_an_event_of_a_prompts_end_within_a_block_has_the_match_units_size() -> None:
    engine = cache("full:16,mamba:align:16", match_unit=4)
    served(engine, range(27))
    [*_, tail] = stored(engine, 0)

    assert (tail.block_size, tail.token_ids) == (4, tuple(range(20, 24)))


def test_events_are_written_with_vllms_fields() -> None:
    engine = cache("window:8")
    served(engine, range(5))
    batch = encode_batch(engine.take_events(), timestamp=0.0, rank=0, format="map")

    for field in (b"group_idx", b"sliding_window", b"kv_cache_spec_sliding_window"):
        assert field in batch
    assert b"lookahead_token_ids" not in batch


def test_all_groups_take_their_blocks_from_one_pool() -> None:
    engine = cache("full,window:8", num_blocks=11)

    assert served(engine, range(20)) == 0
    assert served(engine, range(100, 124)) is None


def held_after(engine: GroupedCache, told: Counter[tuple[int, bytes]]) -> None:
    for event in engine.take_events():
        match event:
            case CacheStored():
                told.update((event.group, block_hash) for block_hash in event.hashes)
            case CacheRemoved():
                told[event.group, event.hash] -= 1
            case CacheCleared():
                told.clear()


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("full,window:8", {}),
        ("full:8,window:8:4", {}),
        ("full,mamba:align,mamba:align", {"retention_interval": None}),
        ("full:16,mamba:align:16", {"match_unit": 4}),
        ("full,window:8,mamba:align", {"speculation": SpeculativeDecoding("eagle", 2)}),
    ],
)
@given(data=st.data())
def test_events_add_up_to_the_cache_and_no_block_is_lost(
    text: str, fields: dict[str, Any], data: st.DataObject
) -> None:
    engine = cache(text, num_blocks=48, max_num_batched_tokens=16, **fields)
    told: Counter[tuple[int, bytes]] = Counter()
    runs: list[Run] = []
    for kind in data.draw(st.lists(st.sampled_from("ptttte"), max_size=30)):
        if kind == "p":
            first = [data.draw(st.integers(0, 1))] * data.draw(st.integers(1, 30))
            run = Run(first + [2] * data.draw(st.integers(0, 20)))
            runs += [run] if engine.admit(run) is not None else []
        elif runs and kind == "t":
            runs[-1].tokens.append(3)
            if not engine.reserve(runs[-1]):
                engine.release(runs.pop())
        elif runs:
            engine.finish(runs.pop(0), 3)
        held_after(engine, told)
    for run in runs:
        engine.finish(run, 3)
    held_after(engine, told)
    by_hash: Counter[bytes] = Counter()
    for (_, block_hash), copies in told.items():
        by_hash[block_hash] += copies

    assert +by_hash == engine.cached()
    assert engine.num_free_blocks == engine.num_blocks
