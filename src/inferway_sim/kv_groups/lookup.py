"""The longest beginning of a prompt that all groups have.

Rules from vLLM 0.32 (v1/core/kv_cache_coordinator.py), written anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferway_sim.kv_groups.group import LayerGroup, blocks_for
from inferway_sim.kv_groups.spec import KvGroup, KvGroups
from inferway_sim.pool import Block


@dataclass(slots=True)
class CacheHit:
    """The blocks that serve a prompt: in each group those of its first `num_tokens` tokens."""

    blocks: list[list[Block]]
    num_tokens: int = 0
    junction: int = 0  # the tokens that some group had and another did not; 0: none


@dataclass(slots=True)
class _EqualGroups:
    """Groups of one kind, which have a block only if all of them have it."""

    group: LayerGroup  # any of them
    is_full: bool
    may_drop: bool
    margin: int  # tokens that are looked up beyond the hit, where its last block is dropped
    indices: list[int] = field(default_factory=list)


class HitFinder:
    """Looks prompts up in `groups`, which are those of `config`."""

    def __init__(self, config: KvGroups, groups: Sequence[LayerGroup]) -> None:
        self._num_groups = len(groups)
        sets: dict[KvGroup, _EqualGroups] = {}
        for spec, group in zip(config.groups, groups, strict=True):
            if spec not in sets:
                sets[spec] = _EqualGroups(
                    group, spec.kind == "full", group.drops_last_block, _margin(config, spec)
                )
            sets[spec].indices.append(group.index)
        # Full attention first: what it has bounds all others.
        self._sets = sorted(sets.values(), key=lambda equal: not equal.is_full)
        self._is_simple = len(self._sets) == 2 and self._sets[0].is_full

    def find(self, hashes: Sequence[bytes], limit: int) -> CacheHit:
        """Return what serves a prompt with these hashes, at most `limit` tokens of it."""
        if self._num_groups == 1:
            only = self._sets[0]
            blocks, length = only.group.find(hashes, limit, [0], drops=only.may_drop)
            return CacheHit(blocks, length)
        return _HitSearch(self._sets, hashes, self._num_groups).run(limit, once=self._is_simple)


class _HitSearch:
    """One look-up: each set of groups shortens the hit until all agree."""

    def __init__(
        self, sets: Sequence[_EqualGroups], hashes: Sequence[bytes], num_groups: int
    ) -> None:
        self._sets = sets
        self._hashes = hashes
        self._blocks: list[list[Block]] = [[] for _ in range(num_groups)]
        self._full_lengths: dict[int, int] = {}  # by set, what full attention has
        self._dropped: set[int] = set()  # the sets that dropped their last block
        self._longest = 0

    def run(self, limit: int, *, once: bool) -> CacheHit:
        length = limit
        while (shorter := self._round(length)) < length:
            length = shorter
            if once:
                break
        for equal in self._sets:
            for index in equal.indices if equal.is_full else ():
                del self._blocks[index][blocks_for(length, equal.group.block_size) :]
        junction = self._longest if self._longest > length else 0
        return CacheHit(self._blocks, length, junction)

    def _round(self, length: int) -> int:
        for number, equal in enumerate(self._sets):
            if number in self._full_lengths:
                length = min(length, self._full_lengths[number])
                continue
            length = self._look_up(number, equal, length)
            self._longest = max(self._longest, length)
        return length

    def _look_up(self, number: int, equal: _EqualGroups, length: int) -> int:
        drops = equal.may_drop and number not in self._dropped
        limit = length + equal.margin if drops else length
        blocks, found = equal.group.find(self._hashes, limit, equal.indices, drops=drops)
        if drops:
            self._dropped.add(number)
        elif found < length:
            self._dropped.clear()
        for index, each in zip(equal.indices, blocks, strict=True):
            self._blocks[index] = each
        if equal.is_full:
            self._full_lengths[number] = found
        return found


def _margin(config: KvGroups, spec: KvGroup) -> int:
    if spec.kind == "mamba":
        return 0
    return config.hash_unit if config.has_fine_hits and spec.is_fine else spec.block_size
