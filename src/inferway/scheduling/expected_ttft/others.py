"""Requests that did not come through us, other gateways' above all: what of them waits.

An engine tells how many it has, now and then. Those that it says wait, wait; but vLLM counts a
request as running from the first chunk of its prompt on, and the rest of that prompt is work ahead
as well. So a request that is new since the last scrape counts as a prompt that is just begun, as
long as a mean one of ours, which the engine works off from then on. An engine that tells how many
have not begun to answer (`Candidates.unbegun`) is believed: so many, but for ours, are ahead, each
as long as a mean one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inferway.model import Candidates, Column
from inferway.scheduling.expected_ttft.places import Rows


@dataclass(slots=True)
class Others:
    """Column i is place i's."""

    # Requests, by the last scrape; NaN: nothing was seen yet, so nothing is new.
    _seen: Column = field(default_factory=lambda: np.zeros(0))
    _tokens: Column = field(default_factory=lambda: np.zeros(0))  # of begun prompts, left then
    _at: Column = field(default_factory=lambda: np.zeros(0))  # seconds: when it was
    _none: bool = False  # no place has any

    def grow(self, places: int) -> None:
        """Room for so many."""
        missing = np.zeros(places - len(self._seen))
        self._seen = np.concatenate([self._seen, missing + np.nan])
        self._tokens = np.concatenate([self._tokens, missing])
        self._at = np.concatenate([self._at, missing])
        self._none = self._none and not len(missing)

    def forget(self, place: int) -> None:
        """Another engine takes the place."""
        self._seen[place], self._tokens[place], self._none = np.nan, 0.0, False

    def ahead(
        self,
        candidates: Candidates,
        rows: Rows,
        cost_ms: Column,
        mean_tokens: float,
        ours: Column,
    ) -> tuple[Column, Column] | None:
        """(requests that wait, tokens that do or are begun); None if there are none. `cost_ms`: of
        a token that waits; `ours`: of our requests, those that have not begun to answer."""
        others, now = candidates.others, candidates.now
        if not np.count_nonzero(others):
            if not self._none:
                self._seen[rows] = self._tokens[rows] = 0.0
                self._none = not self._seen.any()
            return None
        self._none = False
        unbegun = candidates.unbegun - ours
        is_told = candidates.unbegun >= 0.0
        np.minimum(np.maximum(unbegun, 0.0, out=unbegun), others, out=unbegun)
        if is_told.all():
            return unbegun, unbegun * mean_tokens
        left = self._tokens[rows] - (now - self._at[rows]) * 1000 / cost_ms
        np.maximum(left, 0.0, out=left)
        seen = self._seen[rows]
        if (others != seen).any():  # some have been scraped
            left += np.fmax(others - seen, 0.0) * mean_tokens
            np.minimum(left, others * mean_tokens, out=left)
            self._seen[rows], self._tokens[rows], self._at[rows] = others, left, now
        waiting = candidates.waiting
        queued = others * waiting / np.maximum(waiting + candidates.running, 1.0)
        tokens = np.maximum(queued * mean_tokens, left)
        return np.where(is_told, unbegun, queued), np.where(is_told, unbegun * mean_tokens, tokens)
