"""What every index promises. A new one joins by joining `IMPLEMENTATIONS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.at_once import at_once
from tests.kv.layouts import SIZE, windows

from inferway.cluster.teller import ToldIndex
from inferway.kv.index.changes import IndexChanges
from inferway.kv.index.copied import CopiedIndex
from inferway.kv.index.memory import SLICE_BLOCKS, MemoryIndex
from inferway.kv.index.protocol import (
    CPU,
    FULL_ATTENTION,
    GPU,
    STORAGE,
    Clear,
    Copy,
    Index,
    Layout,
    MatchResult,
    Op,
    Remove,
    Store,
    Tier,
)
from inferway.kv.index.reading import MANY_HOLDERS
from inferway.kv.index.reuse import CacheLayout
from inferway.model import BlockKey, HolderId, Places

WEIGHTS = (1.0, 0.5, 0.25)
MakeIndex = Callable[[], Index]


class Copied(ToldIndex):
    """What a copy answers that is told of each change, as it comes from another process."""

    def __init__(self, slice_blocks: int = SLICE_BLOCKS, many_holders: int = MANY_HOLDERS) -> None:
        super().__init__(weights=WEIGHTS, slice_blocks=slice_blocks)
        self.copy = CopiedIndex(weights=WEIGHTS, many_holders=many_holders)
        self.tell_to(self._hear)

    def _hear(self, changes: IndexChanges) -> None:
        self.copy.hear(msgspec.msgpack.decode(msgspec.msgpack.encode(changes), type=IndexChanges))

    async def match(self, keys: Sequence[BlockKey], places: Places | None = None) -> MatchResult:
        return await self.copy.match(keys, places)

    async def match_all(
        self,
        prompts: Sequence[Sequence[BlockKey]],
        places: Sequence[Places | None] | None = None,
    ) -> list[MatchResult]:
        return await self.copy.match_all(prompts, places)

    def held(
        self, holder: HolderId, keys: Sequence[BlockKey], tier: Tier, group: int
    ) -> list[BlockKey]:
        return self.copy.held(holder, keys, tier, group)

    def num_blocks(self, holder: HolderId) -> int:
        return self.copy.num_blocks(holder)


IMPLEMENTATIONS: dict[str, MakeIndex] = {
    "memory": partial(MemoryIndex, weights=WEIGHTS),
    # as if every operation were too big to be finished at once
    "memory, bit by bit": partial(MemoryIndex, weights=WEIGHTS, slice_blocks=1),
    # as if so few holders were many
    "memory, by groups": partial(MemoryIndex, weights=WEIGHTS, many_holders=1),
    "copied": Copied,
    "copied, bit by bit": partial(Copied, slice_blocks=1),
    "copied, by groups": partial(Copied, many_holders=1),
}
A, B = 0, 1
FAR = 700  # holders are small, but not bounded by a machine word
SLIDING = 1


@pytest.fixture(params=IMPLEMENTATIONS)
def index(request: pytest.FixtureRequest) -> Index:
    return IMPLEMENTATIONS[request.param]()


def find(index: Index, keys: Sequence[BlockKey]) -> MatchResult:
    return at_once(index.match(keys))


def match(index: Index, keys: Sequence[BlockKey]) -> dict[HolderId, int]:
    return dict(find(index, keys).blocks)


def score(index: Index, keys: Sequence[BlockKey], holder: HolderId = A) -> float:
    found = find(index, keys)
    return found.blocks[holder] - found.discount.get(holder, 0.0)


def test_many_prompts_get_what_each_would_get(index: Index) -> None:
    index.apply([Store(A, range(1, 40)), Store(B, [1, 2])])
    prompts = [*(range(1, n) for n in range(1, 30)), [2], []]

    found = at_once(index.match_all(prompts))

    assert found == [find(index, keys) for keys in prompts]
    assert found[3].blocks == {A: 3, B: 2}
    assert at_once(index.match_all([])) == []


# a prompt's blocks


def test_an_empty_index_knows_no_holder(index: Index) -> None:
    assert find(index, [1, 2]) == MatchResult({}, {})


def test_no_keys_no_holders(index: Index) -> None:
    index.apply([Store(A, [1])])

    assert match(index, []) == {}


def test_stored_blocks_are_matched(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3])])

    assert match(index, [1, 2, 3]) == {A: 3}


def test_storing_nothing_does_nothing(index: Index) -> None:
    index.apply([Store(A, []), Store(A, [], parent=7)])

    assert match(index, [7]) == {}
    assert index.num_blocks(A) == 0


def test_a_chain_is_stored_piece_by_piece(index: Index) -> None:
    index.apply([Store(A, [1]), Store(A, [2, 3], parent=1), Store(A, [4], parent=3)])

    assert match(index, [1, 2, 3, 4]) == {A: 4}


def test_a_prompt_may_be_longer_or_shorter_than_what_is_held(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3])])

    assert match(index, [1, 2]) == {A: 2}
    assert match(index, [1, 2, 3, 4]) == {A: 3}


def test_prompts_may_part(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Store(A, [4, 5], parent=1), Store(B, [1, 4])])

    assert match(index, [1, 4, 5]) == {A: 3, B: 2}
    assert match(index, [1, 2, 3]) == {A: 3, B: 1}


def test_who_lacks_the_first_block_is_absent(index: Index) -> None:
    index.apply([Store(A, [2, 3], parent=1), Store(B, [1])])

    assert match(index, [1, 2, 3]) == {B: 1}


def test_each_holder_is_matched_for_itself(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Store(B, [1, 2]), Store(FAR, [1])])

    assert match(index, [1, 2, 3]) == {A: 3, B: 2, FAR: 1}


def test_many_holders_may_have_one_block(index: Index) -> None:
    index.apply([Store(holder, [1, 2]) for holder in range(200)])

    assert match(index, [1, 2, 3]) == dict.fromkeys(range(200), 2)


def test_storing_twice_is_storing_once(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Store(A, [1]), Store(A, [2], parent=1)])
    index.apply([Remove(A, [2]), Remove(A, [1])])

    assert match(index, [1]) == {}
    assert index.num_blocks(A) == 0


@pytest.mark.parametrize("key", [0, 1, 2**60 - 1, 2**60, 2**63, 2**64 - 1])
def test_every_64_bit_number_is_a_key(index: Index, key: BlockKey) -> None:
    index.apply([Store(A, [key]), Store(B, [key, 5])])

    assert match(index, [key]) == {A: 1, B: 1}


# holes


def test_a_block_whose_parent_is_not_held_is_not_matched(index: Index) -> None:
    index.apply([Store(A, [1]), Store(A, [3], parent=2)])

    assert match(index, [1, 2, 3]) == {A: 1}
    assert index.num_blocks(A) == 2


def test_a_parent_that_comes_later_completes_the_prompt(index: Index) -> None:
    index.apply([Store(A, [3, 4], parent=2), Store(A, [1, 2])])

    assert match(index, [1, 2, 3, 4]) == {A: 4}


def test_one_holders_parent_does_not_help_another(index: Index) -> None:
    index.apply([Store(A, [3], parent=2), Store(B, [1, 2])])

    assert match(index, [1, 2, 3]) == {B: 2}


def test_a_hole_of_one_holder_does_not_stop_the_others(index: Index) -> None:
    index.apply([Store(A, [1]), Store(A, [3, 4], parent=2), Store(B, [1, 2, 3])])

    assert match(index, [1, 2, 3, 4]) == {A: 1, B: 3}


def test_a_removed_block_hides_what_follows(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Remove(A, [2])])

    assert match(index, [1, 2, 3]) == {A: 1}
    assert index.num_blocks(A) == 2


def test_a_removed_block_hides_every_branch_below_it(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Store(A, [4, 5], parent=2), Remove(A, [2])])

    assert match(index, [1, 2, 3]) == {A: 1}
    assert match(index, [1, 2, 4, 5]) == {A: 1}


def test_a_block_that_returns_brings_back_what_follows(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Remove(A, [2]), Store(A, [2], parent=1)])

    assert match(index, [1, 2, 3]) == {A: 3}


def test_a_block_that_returns_brings_back_only_up_to_the_next_hole(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3, 4, 5]), Remove(A, [4, 2]), Store(A, [2], parent=1)])

    assert match(index, [1, 2, 3, 4, 5]) == {A: 3}


def test_a_prompt_removed_from_its_start_is_gone(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Remove(A, [1, 2, 3])])

    assert match(index, [1, 2, 3]) == {}
    assert index.num_blocks(A) == 0


def test_a_removal_is_one_holders_own(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Store(B, [1, 2, 3]), Remove(A, [2])])

    assert match(index, [1, 2, 3]) == {A: 1, B: 3}


def test_removing_what_was_never_there_does_nothing(index: Index) -> None:
    index.apply([Store(A, [1]), Remove(A, [9]), Remove(B, [1]), Remove(FAR, [1, 2])])

    assert match(index, [1]) == {A: 1}


# everything gone


def test_clear_empties_one_holder(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Store(B, [1, 2]), Clear(A)])

    assert match(index, [1, 2]) == {B: 2}
    assert index.num_blocks(A) == 0


def test_clear_takes_every_tier_and_group(index: Index) -> None:
    index.apply([Store(A, [1], tier=CPU), Store(A, [1], group=SLIDING), Clear(A)])

    assert match(index, [1]) == {}
    assert index.num_blocks(A) == 0


def test_clearing_what_is_empty_does_nothing(index: Index) -> None:
    index.apply([Clear(FAR), Clear(FAR)])

    assert index.num_blocks(FAR) == 0


def test_a_cleared_holder_can_store_again(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Clear(A), Store(A, [1])])

    assert match(index, [1, 2]) == {A: 1}


def test_a_cleared_holders_detached_blocks_do_not_come_back(index: Index) -> None:
    index.apply([Store(A, [2, 3], parent=1), Clear(A), Store(A, [1])])

    assert match(index, [1, 2, 3]) == {A: 1}


def test_a_holder_may_be_cleared_many_times(index: Index) -> None:
    for i in range(50):
        index.apply([Store(A, [i, 100 + i]), Store(B, [1000 + i]), Clear(A)])

    assert match(index, [7]) == {}
    assert match(index, [1007]) == {B: 1}
    assert index.num_blocks(B) == 50


def test_ops_are_done_in_order(index: Index) -> None:
    index.apply([Remove(A, [1]), Store(A, [1, 2]), Clear(A), Store(A, [2], parent=1)])
    index.apply([Store(A, [1])])

    assert match(index, [1, 2]) == {A: 2}


def test_blocks_are_counted_once(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Store(A, [2, 3], parent=1), Store(A, [2], parent=1, tier=CPU)])
    index.apply([Store(A, [2], parent=1, group=SLIDING), Remove(A, [3, 3])])

    assert index.num_blocks(A) == 2


# tiers


def test_a_block_counts_with_its_best_tier(index: Index) -> None:
    """The worked example of llm-d's scorer: gpu 1.0, cpu 0.5."""
    index.apply([Store(A, [1, 2]), Store(A, [3], parent=2), Store(A, [3], parent=2, tier=CPU)])
    index.apply([Store(B, [1]), Store(B, [3], parent=2)])

    assert find(index, [1, 2, 3]).discount == {}
    assert score(index, [1, 2, 3]) == 3.0

    index.apply([Remove(A, [3])])

    assert match(index, [1, 2, 3])[A] == 3
    assert score(index, [1, 2, 3]) == 2.5
    assert score(index, [1, 2, 3], B) == 1.0


def test_only_matched_blocks_are_discounted(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3, 4], tier=STORAGE), Remove(A, [3], tier=STORAGE)])

    assert find(index, [1, 2, 3, 4]) == MatchResult({A: 2}, {A: 1.5}, {A: {STORAGE: 0}})
    assert find(index, [1]) == MatchResult({A: 1}, {A: 0.75}, {A: {STORAGE: 0}})


def test_a_chain_may_lie_in_several_tiers(index: Index) -> None:
    index.apply([Store(A, [1]), Store(A, [2], parent=1, tier=STORAGE)])
    index.apply([Store(A, [3, 4], parent=2, tier=CPU)])

    found = find(index, [1, 2, 3, 4])
    assert found == MatchResult({A: 4}, {A: 0.75 + 0.5 + 0.5}, {A: {STORAGE: 1, CPU: 2}})
    assert [found.within(A, tier) for tier in (GPU, CPU, STORAGE)] == [1, 1, 4]


def test_a_prefix_within_a_tier_goes_on_where_a_better_one_has_the_block(index: Index) -> None:
    index.apply([Store(A, [1]), Store(A, [1, 2, 3, 4, 5], tier=CPU), Store(B, [1])])
    index.apply([Remove(A, [1, 5], tier=CPU), Store(A, [3], parent=2)])

    found = find(index, [1, 2, 3, 4, 5])

    assert [found.within(A, tier) for tier in (GPU, CPU, STORAGE)] == [1, 4, 4]
    assert [found.within(B, tier) for tier in (GPU, CPU, STORAGE)] == [1, 1, 1]
    assert found.within(FAR, STORAGE) == 0


def test_a_tier_beyond_the_last_weighs_as_the_last(index: Index) -> None:
    index.apply([Store(A, [1], tier=5)])

    assert find(index, [1]) == MatchResult({A: 1}, {A: 0.75}, {A: {5: 0}})


def test_a_block_is_gone_with_its_last_tier(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Store(A, [1, 2], tier=CPU), Remove(A, [1])])

    assert match(index, [1, 2]) == {A: 2}

    index.apply([Remove(A, [1], tier=CPU)])

    assert match(index, [1, 2]) == {}
    assert index.num_blocks(A) == 1


def test_a_removal_in_another_tier_takes_nothing_away(index: Index) -> None:
    index.apply([Store(A, [1], tier=CPU), Remove(A, [1]), Remove(A, [1], tier=STORAGE)])

    assert match(index, [1]) == {A: 1}


# copies in other places


def test_known_blocks_may_be_copied_in_any_order(index: Index) -> None:
    index.apply([Store(A, [1, 2, 3]), Copy(A, [3, 1, 2], tier=CPU), Remove(A, [1, 2, 3])])

    assert find(index, [1, 2, 3]) == MatchResult({A: 3}, {A: 1.5}, {A: {CPU: 0}})


def test_a_copy_of_what_the_holder_has_nowhere_is_ignored(index: Index) -> None:
    index.apply([Store(A, [1]), Copy(A, [2], tier=CPU), Copy(B, [1, 9]), Store(B, [2], parent=1)])

    assert match(index, [1, 2]) == {A: 1}
    assert (index.num_blocks(A), index.num_blocks(B)) == (1, 1)


def test_a_copy_without_its_parent_is_detached_until_that_comes(index: Index) -> None:
    index.apply([Store(A, [1, 2], group=SLIDING), Copy(A, [2])])

    assert match(index, [1, 2]) == {}
    assert index.num_blocks(A) == 1

    index.apply([Copy(A, [1], tier=CPU)])

    assert find(index, [1, 2]) == MatchResult({A: 2}, {A: 0.5}, {A: {CPU: 0}})


# windows


def test_blocks_of_another_group_are_no_prefix(index: Index) -> None:
    index.apply([Store(A, [1, 2], group=SLIDING)])

    assert match(index, [1, 2]) == {}
    assert index.num_blocks(A) == 0


def test_without_a_window_other_groups_do_not_matter(index: Index) -> None:
    index.apply([Store(A, [1, 2]), Store(A, [1], group=SLIDING), Remove(A, [1], group=SLIDING)])

    assert match(index, [1, 2]) == {A: 2}


def test_a_prefix_ends_where_the_window_covers_its_end(index: Index) -> None:
    index.apply([windows(A, {SLIDING: 2}), Store(A, [1, 2, 3, 4, 5])])
    index.apply([Store(A, [2, 3], parent=1, group=SLIDING)])
    index.apply([Store(A, [5], parent=4, group=SLIDING)])

    assert match(index, [1, 2, 3, 4, 5]) == {A: 3}


def test_a_short_prefix_needs_all_of_its_blocks_in_the_window(index: Index) -> None:
    index.apply([windows(A, {SLIDING: 3}), Store(A, [1, 2, 3])])
    index.apply([Store(A, [1, 2], group=SLIDING)])

    assert match(index, [1, 2, 3]) == {A: 2}


def test_nothing_can_be_reused_when_the_window_covers_nothing(index: Index) -> None:
    index.apply([windows(A, {SLIDING: 2}), Store(A, [1, 2]), Store(B, [1])])
    index.apply([Store(A, [2], parent=1, group=SLIDING)])

    assert match(index, [1, 2]) == {B: 1}


def test_all_windows_must_agree(index: Index) -> None:
    index.apply([windows(A, {1: 1, 2: 1}), Store(A, [1, 2, 3, 4])])
    index.apply([Store(A, [1, 2], group=1), Store(A, [4], parent=3, group=1)])
    index.apply([Store(A, [1], group=2), Store(A, [3], parent=2, group=2)])

    assert match(index, [1, 2, 3, 4]) == {A: 1}


def test_a_window_may_lie_in_any_tier(index: Index) -> None:
    index.apply([windows(A, {SLIDING: 2}), Store(A, [1, 2])])
    index.apply([Store(A, [1], group=SLIDING), Store(A, [2], parent=1, group=SLIDING, tier=CPU)])

    assert match(index, [1, 2]) == {A: 2}


def test_a_window_can_be_taken_back(index: Index) -> None:
    index.apply([windows(A, {SLIDING: 2}), Store(A, [1, 2]), windows(A, {})])

    assert match(index, [1, 2]) == {A: 2}


def test_clear_takes_windows_back(index: Index) -> None:
    index.apply([windows(A, {SLIDING: 2}), Clear(A), Store(A, [1, 2])])

    assert match(index, [1, 2]) == {A: 2}


# everything at once

NUM_KEYS = 14
holders = st.integers(0, 3)
tiers = st.sampled_from([GPU, GPU, CPU, STORAGE])
groups = st.sampled_from([FULL_ATTENTION, FULL_ATTENTION, 1, 2])
some_keys = st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, max_size=4)


@st.composite
def trees(draw: st.DrawFn) -> list[list[BlockKey]]:
    """For each key the way to it, from a prompt's first block on."""
    branching = draw(st.integers(1, 4))  # low: long chains, high: bushes
    ways: list[list[BlockKey]] = []
    for key in range(NUM_KEYS):
        parent = draw(st.integers(max(-1, key - branching), key - 1))
        ways.append([*(ways[parent] if parent >= 0 else ()), key])
    return ways


@st.composite
def stories(draw: st.DrawFn) -> tuple[list[list[BlockKey]], list[list[Op]]]:
    """A tree, and batches of operations on parts of it."""
    ways = draw(trees())

    def store() -> st.SearchStrategy[Op]:
        piece = st.tuples(st.sampled_from(ways), st.integers(0, NUM_KEYS), st.integers(1, NUM_KEYS))
        pieces = piece.map(lambda p: (p[0], min(p[1], len(p[0]) - 1), p[2]))
        return st.builds(
            lambda holder, p, tier, group: Store(
                holder, p[0][p[1] :][: p[2]], p[0][p[1] - 1] if p[1] else None, tier, group
            ),
            *(holders, pieces, tiers, groups),
        )

    ops = st.one_of(
        store(),
        store(),
        st.builds(Copy, holders, some_keys, tiers, groups),
        st.builds(Remove, holders, some_keys, tiers, groups),
        st.builds(Clear, holders),
        st.builds(windows, holders, st.dictionaries(st.integers(1, 2), st.integers(1, 3))),
    )
    return ways, draw(st.lists(st.lists(ops, max_size=6), max_size=12))


class Plain:
    """What the protocol says, as directly as it can be said."""

    def __init__(self) -> None:
        self.blocks: set[tuple[HolderId, BlockKey, int, int]] = set()
        self.layouts: dict[HolderId, CacheLayout | None] = {}

    def apply(self, op: Op) -> None:
        match op:
            case Store(holder, keys, _, tier, group):
                self.blocks.update((holder, key, tier, group) for key in keys)
            case Copy(holder, keys, tier, group):
                own = {key for h, key, _, _ in self.blocks if h == holder}
                self.blocks.update((holder, key, tier, group) for key in own & set(keys))
            case Remove(holder, keys, tier, group):
                self.blocks.difference_update((holder, key, tier, group) for key in keys)
            case Clear(holder):
                self.blocks = {block for block in self.blocks if block[0] != holder}
                self.layouts.pop(holder, None)
            case Layout(holder, layout):
                self.layouts[holder] = layout

    def tiers(self, holder: HolderId, key: BlockKey, group: int = FULL_ATTENTION) -> list[int]:
        return sorted(t for h, k, t, g in self.blocks if (h, k, g) == (holder, key, group))

    def num_blocks(self, holder: HolderId) -> int:
        return len({k for h, k, _, g in self.blocks if (h, g) == (holder, FULL_ATTENTION)})

    def lower_tiers(self) -> Counter[tuple[HolderId, Tier]]:
        keys = {(h, k) for h, k, _, g in self.blocks if g == FULL_ATTENTION}
        return Counter((h, tier) for h, k in keys if (tier := self.tiers(h, k)[0]))

    def matched(self, holder: HolderId, prompt: Sequence[BlockKey]) -> int:
        walked = next((i for i, k in enumerate(prompt) if not self.tiers(holder, k)), len(prompt))
        return next(n for n in range(walked, -1, -1) if self.is_covered(holder, prompt[:n]))

    def is_covered(self, holder: HolderId, prefix: Sequence[BlockKey]) -> bool:
        layout = self.layouts.get(holder)
        return layout is None or all(
            self.tiers(holder, key, group.number + 1)
            for group in layout.groups
            if group.span
            for key in prefix[-(group.span // group.block_size) :]
        )

    def found(self, prompt: Sequence[BlockKey]) -> MatchResult:
        blocks = {h: n for h in range(4) if (n := self.matched(h, prompt))}
        discount = {
            h: sum(1.0 - WEIGHTS[self.tiers(h, key)[0]] for key in prompt[:n])
            for h, n in blocks.items()
        }
        return MatchResult(
            blocks,
            {h: less for h, less in discount.items() if less},
            {h: lower for h, n in blocks.items() if (lower := self.lower(h, prompt[:n]))},
        )

    def lower(self, holder: HolderId, prefix: Sequence[BlockKey]) -> dict[Tier, int]:
        best = [self.tiers(holder, key)[0] for key in prefix]
        return {tier: best.index(tier) for tier in set(best) if tier != GPU}


def without_reuse(found: MatchResult) -> MatchResult:
    """What was found; `reuse` must say the same in tokens."""
    for holder, reuse in found.reuse.items():
        assert reuse.tokens == SIZE * found.blocks.get(holder, 0)
    return msgspec.structs.replace(found, reuse={})


def lower_tiers(index: Index) -> Counter[tuple[HolderId, Tier]]:
    told = index.lower_tiers().items()
    return Counter({(h, t): n for h, counts in told for t, n in enumerate(counts, 1) if n})


def prompts(ways: Sequence[list[BlockKey]]) -> Iterator[list[BlockKey]]:
    """All ways, and one that leads on to a block that nobody has."""
    yield from ways
    yield [*ways[-1], 99]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@given(story=stories())
def test_match_equals_a_plain_walk_of_each_holder(
    name: str, story: tuple[list[list[BlockKey]], list[list[Op]]]
) -> None:
    ways, batches = story
    index, plain = IMPLEMENTATIONS[name](), Plain()
    for batch in batches:
        index.apply(batch)
        for op in batch:
            plain.apply(op)

        assert [index.num_blocks(h) for h in range(4)] == [plain.num_blocks(h) for h in range(4)]
        assert lower_tiers(index) == plain.lower_tiers()
        for prompt in prompts(ways):
            assert without_reuse(find(index, prompt)) == plain.found(prompt)
