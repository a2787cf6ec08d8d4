"""Expects milliseconds for each endpoint, and prefers the fewest.

    TTFT   = fixed + own tokens + token pairs + tokens and requests waiting ahead + running batch
             + being late
    TPOT   = fixed + running batch
    choice = the least TTFT + what it costs others (`caused`)

Own tokens are the prompt's that the endpoint does not hold; each looks at those before it, which
makes the pairs. Every term but the last has a cost of
its own on each engine, which is learned (`costs`). docs/scheduling.md says why, and what of it is
not so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.model import Added, Candidates, Choice, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.follower import RequestFollower
from inferway.scheduling.expected_ttft.learning import (
    AHEAD,
    BATCH,
    FIXED,
    OWN,
    PAIRS,
    REQUESTS,
    Learning,
)
from inferway.scheduling.expected_ttft.places import Places, Rows
from inferway.scheduling.prompt_tokens import prompt_tokens
from inferway.scheduling.registry import Building, NoParameters, PluginType
from inferway.scheduling.trust import TRUST

# One row for each endpoint: what its expectation was made of, and what each feature made up of it.
FEATURES: Added[NDArray[np.float64]] = Added("expected-ttft-features")
TERMS_MS: Added[NDArray[np.float64]] = Added("expected-ttft-terms-ms")
COST_MS: Added[Column] = Added("expected-cost-ms")  # TTFT, and what it costs others


@dataclass(slots=True)
class ExpectedTtft:
    """See the module. Its state is bounded by the endpoints there are."""

    learning: Learning = field(default_factory=Learning)
    places: Places = field(init=False)

    def __post_init__(self) -> None:
        self.places = Places(self.learning.grow, self.learning.forget)

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        """Adds EXPECTED_TTFT_MS, EXPECTED_TPOT_MS, and what `score` and `follow` read."""
        learning, now = self.learning, candidates.now
        rows = self.places.rows(candidates.endpoints, now)
        learning.advance(now)
        costs = learning.ttft.table[:, rows]
        features = np.empty_like(costs)
        features[FIXED] = 1.0
        prompt = prompt_tokens(request)
        own = features[OWN] = _own_tokens(prompt, candidates)
        features[PAIRS] = own * (prompt - 0.5 * own)
        late = self._waiting(features, costs[AHEAD], rows, candidates)
        terms = features * costs
        ttft: Column = np.add.reduce(terms)
        ttft += late
        fixed, slower = learning.tpot.table[:, rows]
        cost = learning.caused.cost(
            rows,
            now,
            work=terms[OWN] + terms[PAIRS] + costs[REQUESTS],
            backlog=terms[AHEAD] + terms[REQUESTS],
            batch=features[BATCH],
            slower=slower,
        )
        cost += ttft
        candidates.add(EXPECTED_TTFT_MS, ttft)
        if learning.tpot.is_known:
            candidates.add(EXPECTED_TPOT_MS, fixed + slower * (features[BATCH] + 1.0))
        candidates.add(COST_MS, cost)
        candidates.add(FEATURES, features.T)
        candidates.add(TERMS_MS, terms.T)

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        """The least cost of all, divided by the row's."""
        cost = candidates.get(COST_MS)
        if cost is None:
            raise RuntimeError("expected-ttft: score before produce")
        rating: Column = np.minimum.reduce(cost) / cost
        return rating

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: Choice
    ) -> RequestFollower | None:
        """Who learns from it."""
        features, terms = candidates.get(FEATURES), candidates.get(TERMS_MS)
        ttft, cost = candidates.get(EXPECTED_TTFT_MS), candidates.get(COST_MS)
        if features is None or terms is None or ttft is None or cost is None:
            return None
        return RequestFollower(
            self.learning,
            self.places,
            request,
            candidates,
            features=features,
            terms=terms,
            ttft=ttft,
            cost=cost,
        )

    def _waiting(
        self,
        features: NDArray[np.float64],
        cost_ahead: Column,
        rows: Rows,
        candidates: Candidates,
    ) -> Column:
        """Fills in what waits and what runs. Returns how late the first of those that wait is."""
        backlog = self.learning.backlog
        requests = backlog.requests[rows]
        elapsed = (candidates.now - backlog.since[rows]) * 1000
        done = elapsed / cost_ahead
        np.minimum(done, backlog.first_tokens[rows], out=done)
        np.subtract(backlog.tokens[rows], done, out=features[AHEAD])
        features[REQUESTS] = requests
        batch = np.subtract(candidates.in_flight, requests, out=features[BATCH])
        np.maximum(batch, 0.0, out=batch)
        mean_tokens = self.learning.caused.new_tokens
        others = self.learning.others.ahead(candidates, rows, cost_ahead, mean_tokens)
        if others is not None:
            queued, tokens = others
            features[AHEAD] += tokens
            features[REQUESTS] += queued
            features[BATCH] += candidates.others - queued
        elapsed -= backlog.first_alone_ms[rows]
        return np.maximum(elapsed, 0.0, out=elapsed)


def _own_tokens(prompt: int, candidates: Candidates) -> Column:
    """Of the prompt's tokens, those that must be computed. What is believed of an engine's cache
    counts as far as the belief is to be trusted; a block in a lower tier is in part to be computed,
    so to speak. One token always is."""
    tokens = candidates.matched_value * candidates.block_sizes
    tokens *= TRUST[candidates.states]
    np.subtract(prompt, tokens, out=tokens)
    return np.maximum(tokens, 1.0, out=tokens)


def _build(_: NoParameters, __: Building) -> ExpectedTtft:
    return ExpectedTtft()


TYPE = PluginType(
    "expected-ttft",
    "expected milliseconds to the first token, learned from what streams by; no weights to tune",
    _build,
)
