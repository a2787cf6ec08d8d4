"""Expects milliseconds for each endpoint, and prefers the fewest.

    TTFT   = fixed + own tokens + token pairs + tokens and requests waiting ahead + running batch
             + being late
    TPOT   = fixed + running batch
    choice = the least TTFT + what it costs others (`marginal_cost`), in one leg or two (`legs`)

Own tokens are the prompt's that the endpoint does not hold; each looks at those before it, which
makes the pairs. Every term but the last has a cost of
its own on each engine, which is learned (`costs`). docs/scheduling.md says why, and what of it is
not so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.metrics import Family, gauge, histogram
from inferway.model import Candidates, Column, Endpoint, MediaSpan, Rows, SchedulingResult
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import COMPILE_MS, EXPECTED_TPOT_MS, EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.demand import Demand
from inferway.scheduling.expected_ttft.follower import ExpectedTtftListener
from inferway.scheduling.expected_ttft.learning import (
    AHEAD,
    BATCH,
    COST_MS,
    ENCODE_FEATURES,
    ENCODE_MS,
    ENCODED,
    FEATURES,
    FIXED,
    OWN,
    PAIRS,
    REQUESTS,
    RUNNING,
    TERMS_MS,
    TPOT_FEATURES,
    TRANSFER_FEATURES,
    TRIED,
    TTFT_FEATURES,
    Learning,
)
from inferway.scheduling.expected_ttft.legs import add_legs
from inferway.scheduling.expected_ttft.sent_log import SentLog
from inferway.scheduling.expected_ttft.sharing import Event, Sharing
from inferway.scheduling.per_endpoint import EndpointSlots, PerEndpoint
from inferway.scheduling.prefix_source import TRUST
from inferway.scheduling.registry import Building, Parameters, PluginType
from inferway.scheduling.roles import Roles, roles_of

TRY_EVERY = 4  # of so many requests one may go to an engine that is hardly known
# That such a try may be expected to cost more than the best choice: so many milliseconds, or so
# large a share of what that costs.
TRY_MS, TRY_SHARE = 1000.0, 0.5

# numpy takes half as long to read these as to read floats.
_ZERO, _HALF, _ONE = np.array(0.0), np.array(0.5), np.array(1.0)


class ExpectedTtftParameters(Parameters, frozen=True):
    legs: bool = True  # a prompt may be computed apart from where it is answered


@dataclass(slots=True)
class ExpectedTtft:
    """See the module. Its state is bounded by the endpoints there are."""

    learning: Learning = field(default_factory=Learning)
    is_alone: bool = False  # no other plugin reads what it adds
    has_legs: bool = True
    slots: EndpointSlots = field(init=False)
    _turn: int = 0
    _roles: PerEndpoint[Roles | None] = field(default_factory=lambda: PerEndpoint(roles_of))

    def __post_init__(self) -> None:
        self.slots = EndpointSlots(self.learning.grow, self.learning.forget)

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        """Adds EXPECTED_TTFT_MS, for others EXPECTED_TPOT_MS, and what `score`, `follow` read."""
        learning, now = self.learning, candidates.now
        rows = self.slots.rows(candidates.endpoints, now)
        learning.advance(now)
        costs = learning.ttft.table[:, rows]
        features = np.empty_like(costs)
        features[FIXED] = _ONE
        prompt = float(request.num_prompt_tokens)
        own = features[OWN] = _own_tokens(prompt, candidates)
        features[PAIRS] = own * (prompt - own * _HALF)
        late = self._waiting(features, costs[AHEAD], rows, candidates)
        terms = features * costs
        ttft: Column = np.add.reduce(terms)
        ttft += late
        slower = learning.tpot.table[RUNNING, rows]
        slowed = slower * features[BATCH]
        roles = self._roles(candidates.endpoints) if self.has_legs else None
        if roles is None or not roles.groups:
            tokens = terms[OWN] + terms[PAIRS]
            cost = learning.marginal_cost.cost(
                rows,
                now,
                work=tokens + costs[REQUESTS],
                tokens=tokens,
                backlog=terms[AHEAD] + terms[REQUESTS],
                batch=features[BATCH],
                slowed=slowed,
            )
            cost += ttft
        else:
            cost = add_legs(learning, candidates, rows, features, costs, terms, ttft, prompt)
        if request.media:
            encoding = self._encode(request.media, candidates, rows)
            ttft += encoding
            cost += encoding
        compiling = candidates.get(COMPILE_MS)
        if compiling is not None:
            cost += np.maximum(compiling - ttft, 0.0)
        candidates.add(EXPECTED_TTFT_MS, ttft)
        if learning.tpot.is_known and not self.is_alone:
            slowed += slower
            slowed += learning.tpot.table[FIXED, rows]
            candidates.add(EXPECTED_TPOT_MS, slowed)
        candidates.add(COST_MS, cost)
        candidates.add(FEATURES, features.T)
        candidates.add(TERMS_MS, terms.T)
        if learning.ttft.num_cold:
            if self._turn % TRY_EVERY == 0:
                self._try(candidates, rows, features, cost, prompt)
            self._turn += not request.is_hypothetical

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        """Return the least cost of all, divided by the row's; half that where another is to be
        tried."""
        cost = candidates.get(COST_MS)
        if cost is None:
            raise RuntimeError("expected-ttft: score before produce")
        sharing = self.learning.sharing
        if sharing is not None and sharing.delay_seconds:
            cost = cost + sharing.unheard_ms(candidates.endpoints, candidates.now, cost)
        rating: Column = cost.item(cost.argmin()) / cost
        tried = candidates.get(TRIED)
        if tried is not None and np.count_nonzero(tried):
            rating *= _HALF
            rating[tried] = 1.0
        return rating

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> ExpectedTtftListener | None:
        """Return the follower that learns from the request."""
        if candidates.get(FEATURES) is None:
            return None
        return ExpectedTtftListener(self.learning, self.slots, request, candidates, choice)

    def wait_ms(self, candidates: Candidates) -> Column:
        """Return how long a prompt that comes to each endpoint now is expected to wait until its
        turn, in milliseconds."""
        rows = self.slots.rows(candidates.endpoints, candidates.now)
        self.learning.advance(candidates.now)
        costs = self.learning.ttft.table[:, rows]
        features = np.zeros_like(costs)
        late = self._waiting(features, costs[AHEAD], rows, candidates)
        wait: Column = features[AHEAD] * costs[AHEAD] + features[REQUESTS] * costs[REQUESTS]
        wait += late
        return wait

    def expected_seconds(self, endpoints: Sequence[Endpoint]) -> float | None:
        """Return how long the prompt should take that each of these computes now, by itself; the
        longest of them, 0 if none of them has any. None: none of them was ever a candidate."""
        slots, alone = self.slots.names(), self.learning.backlog.first_alone_ms
        own = [alone.item(slots[each.name]) for each in endpoints if each.name in slots]
        return max([ms for ms in own if ms != math.inf], default=0.0) / 1000 if own else None

    def watch_demand(self, ttft_ms: float) -> None:
        """Count from now on what is asked of engines, and which first tokens take longer than
        that."""
        self.learning.demand = demand = Demand(ttft_ms)
        demand.grow(len(self.slots))

    def share(self, tell: Callable[[Event], None], delay_seconds: float = 0.0) -> Sharing:
        """Tell others what is learned here, which they know so many seconds later. Return who takes
        over what they tell."""
        sharing = Sharing(self.learning, self.slots, tell, delay_seconds)
        self.learning.sharing = sharing
        return sharing

    def families(self) -> Iterator[Family]:
        """Yield how far expectations were off, and what each part of a request costs, by engine."""
        learning, names = self.learning, self.slots.names()
        errors = [((name,), learning.accuracy[slot]) for name, slot in names.items()]
        yield histogram(
            "inferway_ttft_prediction_error",
            "Time to the first token, divided by the time that was expected; 1 is"
            " exact, 2 is twice as long.",
            ["engine"],
            errors,
        )
        features: tuple[str, ...] = (*TTFT_FEATURES, *TPOT_FEATURES)
        tables = [learning.ttft.table, learning.tpot.table]
        if learning.transfer.is_known:
            features += TRANSFER_FEATURES
            tables.append(learning.transfer.table)
        if learning.encode.is_known:
            features += ENCODE_FEATURES
            tables.append(learning.encode.table)
        costs = np.concatenate(tables) / 1000
        yield gauge(
            "expected_cost_seconds",
            "Seconds that each part of a request is expected to cost on the engine, as"
            " learned from its answers.",
            ["engine", "of"],
            {
                (name, feature): cost
                for name, slot in names.items()
                for feature, cost in zip(features, costs[:, slot].tolist(), strict=True)
            },
        )

    def _encode(self, media: Sequence[MediaSpan], candidates: Candidates, rows: Rows) -> Column:
        """Return how long each endpoint would encode media: those that it has not encoded of late,
        and whose last tokens it does not hold (0.32, v1/core/sched/scheduler.py,
        `_try_schedule_encoder_inputs`)."""
        learning = self.learning
        tokens = learning.encoders.to_encode(media)[rows]
        held = candidates.matched_blocks * candidates.block_sizes
        tokens *= held[:, None] < [each.offset + each.length for each in media]
        encoded: Column = tokens.sum(axis=1)
        ms: Column = encoded * learning.encode.table[0, rows]
        candidates.add(ENCODED, encoded)
        candidates.add(ENCODE_MS, ms)
        return ms

    def _try(
        self,
        candidates: Candidates,
        rows: Rows,
        features: NDArray[np.float64],
        cost: Column,
        prompt: float,
    ) -> None:
        """Engines that are hardly known and have nothing to do. Their first answers are often slow,
        while all is warmed up; nobody would go there again before the others are as slow. Not with
        a prompt that is held where it would go, and not where it would take far longer, as an
        answer behind the first one has shown."""
        best = cost.argmin()
        if features[OWN].item(best) * 2 >= prompt:
            idle = features[REQUESTS] + features[BATCH] == _ZERO
            least = cost.item(best)
            ttft = self.learning.ttft
            lately = cost * ttft.lately(rows, candidates.now)
            is_near = lately <= least + max(TRY_MS, TRY_SHARE * least)
            candidates.add(TRIED, ttft.is_cold[rows] & idle & is_near)

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
        elapsed = candidates.now * 1000 - backlog.since_ms[rows]
        done = np.minimum(elapsed / cost_ahead, backlog.first_tokens[rows])
        features[AHEAD] = backlog.tokens[rows] - done
        features[REQUESTS] = requests
        features[BATCH] = np.maximum(candidates.in_flight - requests, _ZERO)
        mean_tokens = self.learning.marginal_cost.new_tokens
        others = self.learning.external_load.ahead(
            candidates, rows, cost_ahead, mean_tokens, requests
        )
        if others is not None:
            queued, tokens = others
            features[AHEAD] += tokens
            features[REQUESTS] += queued
            features[BATCH] += candidates.others - queued
        sharing = self.learning.sharing
        if sharing is not None and sharing.log is not None:
            _add_unheard(sharing.log, features, candidates)
        elapsed -= backlog.first_alone_ms[rows]
        late: Column = np.maximum(elapsed, _ZERO)
        return late


def _add_unheard(log: SentLog, features: NDArray[np.float64], candidates: Candidates) -> None:
    """Count as waiting what others have sent and not told of yet; it is in flight already."""
    for holder, tokens in log.unheard():
        row = candidates.rows.get(holder)
        if row is not None:
            features[AHEAD, row] += tokens
            features[REQUESTS, row] += 1.0
            features[BATCH, row] = max(features.item(BATCH, row) - 1.0, 0.0)


def _own_tokens(prompt: float, candidates: Candidates) -> Column:
    """Return how many of the prompt's tokens must be computed. What is believed of an engine's
    cache counts as far as the belief is to be trusted; a block in a lower tier is in part to be
    computed, so to speak. One token always is."""
    held: Column = candidates.weighted_matched_blocks * candidates.block_sizes
    held *= TRUST.take(candidates.states)
    own: Column = np.maximum(prompt - held, _ONE)
    return own


def _build(parameters: ExpectedTtftParameters, building: Building) -> ExpectedTtft:
    return ExpectedTtft(is_alone=len(building.types) == 1, has_legs=parameters.legs)


TYPE = PluginType(
    "expected-ttft",
    "prefers the endpoint with the lowest cost in milliseconds, by the expected time to the first "
    "token; learns from the answers, and has no weights",
    _build,
    ExpectedTtftParameters,
)
