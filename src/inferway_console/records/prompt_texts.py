"""The text around the first block of a prompt that was not reused, for an admin who has asked for
it (`explain_text`): made of token ids of the last prompts, which are kept in memory alone."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from inferway.extension import Extension
from inferway.model import TokenIds, block_size_of
from inferway.prompts.served import ServedModel
from inferway.routing.journey import Routed
from inferway_console.records.alignment import common_prefix
from inferway_console.records.parting import Side, parting
from inferway_console.records.record import RequestRecord

MAX_BYTES = 32 << 20  # 1,000 prompts of 8,000 tokens
_OWN_BYTES = 400
_AROUND = 32  # tokens, before and behind


class _Kept(msgspec.Struct, frozen=True):
    model: ServedModel
    cache_salt: str | None
    token_ids: TokenIds
    block_size: int

    @property
    def num_bytes(self) -> int:
        return int(self.token_ids.nbytes) + _OWN_BYTES

    def as_side(self) -> Side:
        """Return it as one of two that are compared; of its fields nothing is kept."""
        return Side(self.token_ids, {}, self.block_size, (self.model.name, self.cache_salt))


@dataclass(slots=True, repr=False)
class PromptTexts(Extension):
    """Keeps prompts of requests. The oldest prompts are dropped over `max_bytes`."""

    max_bytes: int = MAX_BYTES
    num_bytes: int = 0
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)  # by the request's id

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        if not routed.prompts:
            return
        cut, items = next(iter(routed.prompts.items()))
        if len(items) != 1:
            return
        ids = items[0].prompt.token_ids
        kept = _Kept(
            routed.model,
            routed.request.body.cache_salt,
            ids.copy() if isinstance(ids.base, np.ndarray) else ids,
            block_size_of(cut),
        )
        replaced = self._kept.pop(routed.request.request_id, None)
        self.num_bytes += kept.num_bytes - (0 if replaced is None else replaced.num_bytes)
        self._kept[routed.request.request_id] = kept
        while self.num_bytes > self.max_bytes and self._kept:
            self.num_bytes -= self._kept.popitem(last=False)[1].num_bytes

    def __len__(self) -> int:
        return len(self._kept)

    def told(self, record: RequestRecord) -> dict[str, Any] | None:
        """Return the text around the first block that the request had to compute, and where its
        prompt parts from the nearest one before it; None if its prompt is not in memory any more.
        It takes milliseconds."""
        others = list(self._kept.items())
        place = next((i for i, (name, _) in enumerate(others) if name == record.id), None)
        if place is None:
            return None
        kept = others[place][1]
        local = kept.model.prompts.local
        if local is None:
            return None
        size = kept.block_size
        blocks = record.chosen_blocks
        if record.delivered_tokens >= 0:
            blocks = min(blocks, record.delivered_tokens // size)
        at = min(blocks * size, len(kept.token_ids))
        told: dict[str, Any] = {
            "block": blocks,
            "token": at,
            "before": local.decode(kept.token_ids[max(0, at - _AROUND) : at]),
            "behind": local.decode(kept.token_ids[at : at + _AROUND]),
        }
        nearest = _nearest(kept, others[:place])
        if nearest is not None:
            name, other = nearest
            told["nearest"] = {"id": name, **parting(kept.as_side(), other.as_side(), local)}
        return told


def _nearest(kept: _Kept, others: list[tuple[str, _Kept]]) -> tuple[str, _Kept] | None:
    """Return the prompt that has the most in common with this one from the start."""
    found, longest = None, 0
    for name, other in reversed(others):
        if other.as_side().shares_with != kept.as_side().shares_with:
            continue
        same = common_prefix(kept.token_ids, other.token_ids)
        if same > longest:
            found, longest = (name, other), same
    return found
