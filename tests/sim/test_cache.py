"""What a prompt reuses, and whether the events tell the truth about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inferway.kv.blocks.dialects import Dialect, LoraAdapter
from inferway_sim.cache import Adapter, KvCache, Run
from inferway_sim.events import CacheCleared, CacheRemoved, CacheStored, Event

BLOCK = 4


def make_cache(num_blocks: int = 100) -> KvCache:
    return KvCache(num_blocks, BLOCK, Dialect())


def served(cache: KvCache, tokens: list[int], **of_run: object) -> int | None:
    """A prompt comes, is computed and leaves; how many of its tokens were there."""
    run = Run(list(tokens), **of_run)  # type: ignore[arg-type]
    cached = cache.admit(run)
    cache.release(run)
    return cached


@given(st.integers(1, 60))
def test_a_repeated_prompt_reuses_all_whole_blocks_but_the_last_tokens(num_tokens: int) -> None:
    engine = make_cache()
    tokens = list(range(num_tokens))
    served(engine, tokens)

    assert served(engine, tokens) == (num_tokens - 1) // BLOCK * BLOCK


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_two_prompts_share_the_whole_blocks_of_their_common_prefix(
    common: int, first: int, second: int
) -> None:
    engine = make_cache()
    prefix = list(range(common))
    served(engine, [*prefix, *([1000] * (first + 1))])

    cached = served(engine, [*prefix, *([2000] * (second + 1))])

    assert cached == common // BLOCK * BLOCK


def test_what_reads_no_cache_reuses_nothing_and_is_reused_afterwards() -> None:
    engine = make_cache()
    tokens = list(range(20))

    cached = [served(engine, tokens, reads_cache=False) for _ in range(2)]

    assert (cached, served(engine, tokens)) == ([0, 0], 16)


def test_generated_tokens_are_reused_by_the_next_turn() -> None:
    engine = make_cache()
    run = Run(list(range(6)))
    engine.admit(run)
    for token in (100, 101, 102):
        run.tokens.append(token)
        engine.reserve(run)
    engine.release(run)

    assert served(engine, [*range(6), 100, 101, 102, 103, 104]) == 8


def test_a_prompt_that_wants_a_report_has_what_it_reuses_stored_once_more() -> None:
    engine = make_cache()
    tokens = list(range(20))
    served(engine, tokens)
    [first] = engine.take_events()
    assert isinstance(first, CacheStored)

    assert served(engine, tokens, report_all=True) == 16

    reported, computed = engine.take_events()
    assert isinstance(reported, CacheStored)
    assert reported.hashes == first.hashes[:4]
    assert (reported.parent, reported.token_ids) == (None, tuple(range(16)))
    assert isinstance(computed, CacheStored)
    assert computed.hashes == first.hashes[4:]


@pytest.mark.parametrize(
    "other", [{"cache_salt": "x"}, {"adapter": Adapter(1, LoraAdapter("l", "/l"))}]
)
def test_a_salt_or_an_adapter_keeps_blocks_apart(other: dict[str, object]) -> None:
    engine = make_cache()
    tokens = list(range(20))
    served(engine, tokens)

    assert served(engine, tokens, **other) == 0
    assert served(engine, tokens, **other) == 16


def test_an_event_tells_parent_tokens_and_extra_keys_of_its_blocks() -> None:
    engine, lora = make_cache(), ("lora", "l", "/l")
    served(engine, list(range(4)), adapter=Adapter(3, LoraAdapter("l", "/l")), cache_salt="s")
    [first] = engine.take_events()
    served(engine, list(range(13)), adapter=Adapter(3, LoraAdapter("l", "/l")), cache_salt="s")
    [second] = engine.take_events()

    assert isinstance(first, CacheStored)
    assert (first.parent, first.extra_keys) == (None, ((lora, ("cache_salt", "s")),))
    assert isinstance(second, CacheStored)
    assert second.parent == first.hashes[0]
    assert second.token_ids == tuple(range(4, 12))
    assert second.extra_keys == ((lora,), (lora,))
    assert (second.lora_id, second.lora_name, second.block_size) == (3, "l", BLOCK)


def test_a_whole_prompt_repeated_leaves_two_copies_of_its_last_block() -> None:
    engine = make_cache()
    served(engine, list(range(8)))
    served(engine, list(range(8)))

    assert sorted(engine.cached().values()) == [1, 2]


def test_a_prompt_without_room_is_not_admitted_and_changes_nothing() -> None:
    engine = make_cache(num_blocks=4)
    holder = Run(list(range(8)))
    engine.admit(holder)
    before = engine.cached()

    assert engine.admit(Run(list(range(100, 109)))) is None
    assert (engine.cached(), engine.num_free_blocks) == (before, 1)


def test_blocks_to_be_reused_count_as_taken_when_room_is_looked_for() -> None:
    engine = make_cache(num_blocks=4)
    served(engine, list(range(8)))

    # Two idle blocks are reused, one is free, two more are needed.
    assert engine.admit(Run([*range(8), *range(50, 58)])) is None


def apply(state: Counter[bytes], events: Iterable[Event]) -> None:
    """What a careful reader makes of the events: copies counted."""
    for event in events:
        match event:
            case CacheStored():
                state.update(event.hashes)
            case CacheRemoved():
                state[event.hash] -= 1
                assert state[event.hash] >= 0, "removed what was never stored"
            case CacheCleared():
                state.clear()


class EventsTellTheTruth(RuleBasedStateMachine):
    """Whatever an engine does: its events, applied in order, give its cache."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(num_blocks=12)
        self.runs: list[Run] = []
        self.told: Counter[bytes] = Counter()

    @rule(prefix=st.integers(0, 3), length=st.integers(1, 24))
    def a_prompt_comes(self, prefix: int, length: int) -> None:
        run = Run([prefix] * min(length, 9) + list(range(max(0, length - 9))))
        if self.cache.admit(run) is not None:
            self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), token=st.integers(0, 2))
    def a_token_is_generated(self, data: st.DataObject, token: int) -> None:
        run = data.draw(st.sampled_from(self.runs))
        run.tokens.append(token)
        if not self.cache.reserve(run):
            self.cache.release(run)
            self.runs.remove(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def a_request_ends(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.runs))
        self.cache.release(run)
        self.runs.remove(run)

    @rule()
    def the_cache_is_reset(self) -> None:
        assert self.cache.clear() == (not self.runs)

    @invariant()
    def events_give_the_cache(self) -> None:
        apply(self.told, self.cache.take_events())

        assert +self.told == Counter(self.cache.cached())

    @invariant()
    def no_block_is_lost(self) -> None:
        used = {block.id for run in self.runs for block in run.blocks}

        assert self.cache.num_free_blocks + len(used) == self.cache.num_blocks

    @invariant()
    def a_request_holds_room_for_its_tokens(self) -> None:
        for run in self.runs:
            assert len(run.blocks) == -(-len(run.tokens) // BLOCK)


TestEventsTellTheTruth = EventsTellTheTruth.TestCase
