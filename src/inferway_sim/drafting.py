"""Drafted tokens: how many of them an engine accepts, and what it counts of them."""

from __future__ import annotations

from inferway_sim.kv_groups.spec import SpeculativeDecoding


class Drafter:
    """Drafts `num_tokens` tokens in each step after a request's first token, and accepts the share
    of them that is configured: in some steps one more than in others, always the first ones. The
    scheduler asks it, and the metrics read its counters."""

    def __init__(self, speculation: SpeculativeDecoding) -> None:
        self.num_tokens = speculation.num_tokens
        self._share = speculation.acceptance * speculation.num_tokens  # of each step
        self._due = 0.0
        self.num_drafts = 0
        self.accepted_by_position = [0] * speculation.num_tokens

    @property
    def num_accepted(self) -> int:
        """Tokens that were accepted so far."""
        return sum(self.accepted_by_position)

    def accept(self, most: int) -> int:
        """Verify a draft: return how many of its tokens are accepted, at most `most`."""
        self.num_drafts += 1
        self._due += self._share
        accepted = min(int(self._due), most, self.num_tokens)
        self._due -= int(self._due)
        for position in range(accepted):
            self.accepted_by_position[position] += 1
        return accepted
