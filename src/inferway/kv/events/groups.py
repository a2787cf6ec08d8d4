"""The groups of KV caches that an engine's events name -> its `CacheLayout`.

Events say of each group its number, its kind, the size of its blocks and its window. They do not
say whether a draft model drops the last block (EAGLE, MTP), how long the chunks of local attention
are, or how many tokens a hash has where that is fewer than a block: `CacheFacts`, from the
engine's other answers or the settings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from math import gcd

from msgspec import Struct

from inferway.kv.events.event import MAX_GROUPS, AllBlocksCleared, BlockStored
from inferway.kv.index.reuse import FULL, LOCAL, MAMBA, CacheGroup, CacheLayout

GPU_MEDIA = (None, "GPU")
_UNNAMED = FULL[0]  # before vLLM named kinds, it had no other


class CacheFacts(Struct, frozen=True):
    """Facts of an engine's KV caches that events do not tell."""

    drops_last_block: bool = False  # for a draft model that needs its hidden states
    # the groups that have the draft model's layers; None: not known, and all of them drop it
    draft_groups: tuple[int, ...] | None = None
    chunk: int = 0  # tokens of a chunk of local attention; 0: not known
    hash_size: int = 0  # tokens of a hash; 0: as vLLM chooses it
    block_size: int = 0  # tokens of the engine's blocks; 0: not known


# The ways to draft tokens with which vLLM drops the last block (SpeculativeConfig.use_eagle).
DROPPING = ("eagle", "mtp")

NO_FACTS = CacheFacts()


def _kind(event: BlockStored) -> tuple[str, int]:
    return event.spec_kind or _UNNAMED, max(event.sliding_window or 0, 0)


@dataclass(slots=True)
class _NamedGroup:
    kind: str
    window: int  # tokens; 0: it has none
    sizes: set[int]  # of its blocks, and of parts of blocks
    is_whole: bool = False  # several of its blocks were stored at once: one of them is no part


class Groups:
    """The groups named so far. `learn` takes all events of a batch before they are applied: a step
    of the engine names all groups whose blocks it stores."""

    def __init__(self) -> None:
        self.facts = NO_FACTS
        self.lookahead = 0
        self._by_number: dict[int, _NamedGroup] = {}

    def knows(self, event: BlockStored) -> bool:
        """Return whether nothing in the event is new."""
        group = self._by_number.get(event.group_idx or 0)
        return group is not None and (
            (group.kind, group.window) == _kind(event) and event.block_size in group.sizes
        )

    def learn(self, event: BlockStored, coming: Iterable[object]) -> None:
        """Take note of the event's group, whatever was known of it, and of groups that are not
        known yet in those that come with it, up to the one that clears all blocks."""
        self._learn(event)
        known = set(self._by_number)
        for each in takewhile(lambda each: not isinstance(each, AllBlocksCleared), coming):
            if (
                isinstance(each, BlockStored)
                and each.locality != "REMOTE"
                and each.medium in GPU_MEDIA
                and each.block_size > 0
                and 0 <= (each.group_idx or 0) < MAX_GROUPS
                and ((each.group_idx or 0) not in known or self._may_be_part(each))
            ):
                self._learn(each)

    def restore(self, layout: CacheLayout | None) -> None:
        """Take over the groups of a layout that was made of them, and no others."""
        self.clear()
        if layout is None:
            return
        self.lookahead = layout.lookahead
        parts = {layout.unit} if layout.is_fine else set()
        for group in layout.groups:
            window = 0 if group.kind == LOCAL else group.span
            self._by_number[group.number] = _NamedGroup(
                group.kind, window, {group.block_size} | parts, is_whole=True
            )

    def clear(self) -> None:
        """Forget them: the engine may be another one."""
        self._by_number.clear()
        self.lookahead = 0

    def layout(self) -> CacheLayout | None:
        """Return the layout; None as long as no group is known."""
        if not self._by_number:
            return None
        facts = self.facts
        groups, unit = [], facts.hash_size
        has_states = any(group.kind == MAMBA for group in self._by_number.values())
        for number, group in sorted(self._by_number.items()):
            size, least = max(group.sizes), min(group.sizes)
            if has_states and not group.is_whole and not facts.block_size % size:
                size = max(size, facts.block_size)  # there was only the last part of a short prompt
            if least < size and has_states:
                unit = unit or gcd(least, size)
            span = facts.chunk if group.kind == LOCAL else group.window
            groups.append(CacheGroup(number, group.kind, size, span))
        return CacheLayout(tuple(self._with_draft(groups)), unit, self.lookahead)

    def _learn(self, event: BlockStored) -> None:
        number, size = event.group_idx or 0, event.block_size
        group = self._by_number.get(number)
        if group is None or not self._may_be_part(event):
            group = _NamedGroup(*_kind(event), set())
            self._by_number[number] = group
        group.sizes.add(size)
        group.is_whole |= len(event.token_ids) > size
        if event.lookahead_token_ids:
            self.lookahead = len(event.lookahead_token_ids[0])

    def _may_be_part(self, event: BlockStored) -> bool:
        """Return whether an event's blocks are of the known group of its number: of the same size,
        or parts of its blocks, or the other way round, which only an engine with several groups
        names."""
        group, size = self._by_number.get(event.group_idx or 0), event.block_size
        if group is None or (group.kind, group.window) != _kind(event):
            return False
        small, big = sorted((size, max(group.sizes)))
        return small == big or (len(self._by_number) > 1 and small > 0 and not big % small)

    def _with_draft(self, groups: list[CacheGroup]) -> list[CacheGroup]:
        """vLLM flags the groups that have the draft model's layers, and all if it finds none. What
        is believed with all of them flagged is never too much. With look-ahead hashes nothing is
        dropped."""
        if not self.facts.drops_last_block or self.lookahead:
            return groups
        drops = self.facts.draft_groups
        return [
            CacheGroup(g.number, g.kind, g.block_size, g.span, drops is None or g.number in drops)
            for g in groups
        ]
