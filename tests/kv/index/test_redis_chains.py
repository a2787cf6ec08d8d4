"""One holder's blocks, and which of them a prompt can reach."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferway.kv.index.protocol import CPU, FULL_ATTENTION, GPU, STORAGE, Tier
from inferway.kv.index.redis.chains import Chains
from inferway.model import BlockKey

# A tree in which every block has its parent for good, as keys of real blocks do.
PARENTS: dict[BlockKey, BlockKey | None] = {
    **{1: None, 2: 1, 3: 2, 4: 3, 5: 2, 6: 5, 7: 2, 8: 7},
    **{9: None, 10: 9, 2**63: 10, 2**64 - 1: 2**63},
}


def lineage(key: BlockKey) -> list[BlockKey]:
    """From the root to the key."""
    parent = PARENTS[key]
    return [*(lineage(parent) if parent is not None else []), key]


def store(
    chains: Chains, keys: Sequence[BlockKey], tier: Tier = GPU, group: int = FULL_ATTENTION
) -> Sequence[BlockKey]:
    return chains.store(keys, PARENTS[keys[0]], tier, group)


def remove(
    chains: Chains, keys: Sequence[BlockKey], tier: Tier = GPU, group: int = FULL_ATTENTION
) -> list[BlockKey]:
    return list(chains.remove(keys, tier, group))


def attached(chains: Chains) -> set[BlockKey]:
    return {key for piece in chains.attached() for key in piece}


def test_a_chain_from_the_root_can_be_reached() -> None:
    chains = Chains()

    assert list(store(chains, [1, 2, 3])) == [1, 2, 3]
    assert attached(chains) == {1, 2, 3}


def test_a_block_without_its_parent_waits_for_it() -> None:
    chains = Chains()

    assert list(store(chains, [2, 3])) == []
    assert len(chains) == 2
    assert list(store(chains, [1])) == [1, 2, 3]


def test_a_removed_inner_block_takes_its_descendants_with_it_children_first() -> None:
    chains = Chains()
    store(chains, [1, 2, 3, 4])
    store(chains, [5, 6])

    changed = remove(chains, [2])

    assert set(changed) == {2, 3, 4, 5, 6}
    assert changed.index(4) < changed.index(3) < changed.index(2)
    assert changed.index(6) < changed.index(5) < changed.index(2)
    assert attached(chains) == {1}


def test_a_block_stays_while_a_lower_tier_has_it() -> None:
    chains = Chains()
    store(chains, [1, 2])
    store(chains, [1, 2], CPU)

    assert remove(chains, [1]) == [1]
    assert [chains.tier(key) for key in (1, 2)] == [CPU, GPU]
    assert remove(chains, [1], CPU) == [2, 1]


def test_a_tier_that_a_block_is_not_in_cannot_lose_it() -> None:
    chains = Chains()
    store(chains, [1], STORAGE)

    assert remove(chains, [1, 2]) == remove(chains, [1], CPU) == []
    assert chains.tier(1) == STORAGE


@pytest.mark.parametrize("tier", [GPU, CPU])
@pytest.mark.parametrize("group", [FULL_ATTENTION, 3])
def test_where_a_block_lies_is_known_attached_or_not(tier: Tier, group: int) -> None:
    chains = Chains()
    store(chains, [2], tier, group)
    places = [(each, of) for each in (GPU, CPU) for of in (FULL_ATTENTION, 3)]

    assert [place for place in places if chains.lies_in(2, *place)] == [(tier, group)]
    assert not any(chains.lies_in(3, *place) for place in places)


def test_another_groups_block_goes_with_its_last_tier() -> None:
    chains = Chains()
    store(chains, [5, 6], GPU, 3)

    assert list(chains.copy([5], CPU, 3)) == []
    assert remove(chains, [5, 6, 7], GPU, 3) == [6]
    assert chains.is_in(5, 3)
    assert remove(chains, [5], CPU, 3) == [5]
    assert not chains.is_in(5, 3)


def test_a_copy_finds_its_parent_in_another_group() -> None:
    chains = Chains()
    store(chains, [1, 2, 3], GPU, 3)

    assert list(chains.copy([3, 2, 8], GPU, FULL_ATTENTION)) == []
    assert len(chains) == 2
    assert list(chains.copy([1], CPU, FULL_ATTENTION)) == [1, 2, 3]


def test_what_another_group_alone_has_is_no_prefix() -> None:
    chains = Chains()
    store(chains, [1, 2, 3])
    store(chains, [2], GPU, 3)

    assert remove(chains, [2]) == [3, 2]
    assert attached(chains) == {1}
    assert len(chains) == 2
    assert [key for piece in chains.members(3) for key in piece] == [2]


some_keys = st.lists(st.sampled_from(sorted(PARENTS)), min_size=1, max_size=4)
tiers = st.sampled_from([GPU, CPU, STORAGE])
steps = st.lists(st.tuples(st.booleans(), some_keys, tiers), max_size=40)


@given(steps)
@example([(True, [2], GPU), (True, [3, 1, 1], CPU), (False, [2, 1], CPU)])
def test_what_can_be_reached_is_what_a_walk_from_the_root_reaches(
    steps: list[tuple[bool, list[BlockKey], Tier]],
) -> None:
    """And the keys reported as changed bring a copy there, closed after each of them."""
    chains = Chains()
    held: dict[BlockKey, set[Tier]] = {}
    copy: set[BlockKey] = set()
    for stores, keys, tier in steps:
        if stores:
            changed = list(store(chains, lineage(keys[0])[-len(keys) :], tier))
            for key in lineage(keys[0])[-len(keys) :]:
                held.setdefault(key, set()).add(tier)
        else:
            changed = remove(chains, keys, tier)
            for key in keys:
                held.get(key, set()).discard(tier)
        reached = {k for k in held if all(held.get(up) for up in lineage(k))}
        for key in changed:
            copy = copy | {key} if key in reached else copy - {key}
            assert all(PARENTS[k] is None or PARENTS[k] in copy for k in copy)

        assert attached(chains) == copy == reached
        assert len(chains) == sum(map(bool, held.values()))
        assert chains.num_attached == len(reached)
        best = [min(held[k]) if k in reached else None for k in PARENTS]
        assert [chains.tier(k) for k in PARENTS] == best
