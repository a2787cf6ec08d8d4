"""The media that each engine has encoded of late: it need not encode them again.

vLLM keeps embeddings of pictures by their hash, as many tokens as fit beside a step
(v1/core/encoder_cache_manager.py), and drops the oldest that no request uses. No engine says which
it has: the items that were sent where are remembered here, as many as an engine would keep.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from inferway.model import Column, MediaSpan

# Tokens of one engine's media: `encoder_cache_size` is --max-num-batched-tokens, which by default
# is 2,048 to 16,384 (0.32, config/scheduler.py, engine/arg_utils.py).
CACHE_TOKENS = 8192


class EncoderCaches:
    """The media of each slot, the last used last."""

    __slots__ = ("_num_tokens", "_sent", "_slots")

    def __init__(self) -> None:
        self._sent: list[OrderedDict[str, int]] = []  # by slot: name -> tokens
        self._num_tokens: list[int] = []  # by slot
        self._slots: dict[str, set[int]] = {}  # name -> the slots that have it

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        for _ in range(slots - len(self._sent)):
            self._sent.append(OrderedDict())
            self._num_tokens.append(0)

    def forget(self, slot: int) -> None:
        """Forget a slot that another engine takes, or whose engine has started anew."""
        for name in list(self._sent[slot]):
            self._drop(slot, name)

    def sent(self, slot: int, media: Sequence[MediaSpan]) -> None:
        """Note that a request with these media is sent to the slot's engine."""
        kept = self._sent[slot]
        for each in media:
            if each.identifier not in kept:
                self._slots.setdefault(each.identifier, set()).add(slot)
                self._num_tokens[slot] += each.length
                kept[each.identifier] = each.length
            kept.move_to_end(each.identifier)
        while self._num_tokens[slot] > CACHE_TOKENS and len(kept) > 1:
            self._drop(slot, next(iter(kept)))

    def to_encode(self, media: Sequence[MediaSpan]) -> Column:
        """Return, for each slot and each of the media in order, the tokens that the slot's engine
        would have to encode: 0 for what it has, and for what stands there before."""
        tokens = np.zeros((len(self._sent), len(media)))
        seen: set[str] = set()
        for number, each in enumerate(media):
            if each.identifier not in seen:
                tokens[:, number] = each.length
                tokens[list(self._slots.get(each.identifier, ())), number] = 0.0
                seen.add(each.identifier)
        return tokens

    def _drop(self, slot: int, name: str) -> None:
        self._num_tokens[slot] -= self._sent[slot].pop(name)
        slots = self._slots[name]
        slots.discard(slot)
        if not slots:
            del self._slots[name]
