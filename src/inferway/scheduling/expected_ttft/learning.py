"""Learned costs, the backlog and the demand, in one place: `follower` says what changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.metrics import Histogram
from inferway.model import Candidates, Column, ColumnKey
from inferway.scheduling.expected_ttft.backlog import Backlog, ExternalLoad, QueuedRequest
from inferway.scheduling.expected_ttft.costs import Costs
from inferway.scheduling.expected_ttft.demand import Demand
from inferway.scheduling.expected_ttft.encoder_caches import EncoderCaches
from inferway.scheduling.expected_ttft.marginal_cost import MarginalCost
from inferway.scheduling.expected_ttft.sharing import (
    Answered,
    Begins,
    Kind,
    Sharing,
    Took,
    Waits,
)

# The features of a time to the first token, and what they cost before anything is known, in ms:
# about an 8B model on one GPU. Only how they stand to each other matters, and not for long.
TTFT_FEATURES = (
    *("ttft_fixed", "ttft_own_token", "ttft_token_pair", "ttft_waiting_token"),
    *("ttft_waiting_request", "ttft_running_request"),
)
FIXED, OWN, PAIRS, AHEAD, REQUESTS, BATCH = range(len(TTFT_FEATURES))
# A token that looks back at 64,000 others costs twice.
USUAL_TTFT = (20.0, 0.1, 0.1 / 64_000, 0.1, 5.0, 0.5)
# The same of the time from one token to the next.
TPOT_FEATURES = ("tpot_fixed", "tpot_running_request")
RUNNING = 1
USUAL_TPOT = (10.0, 0.2)
# The same for what is moved to a decode engine: NIXL's 128 kB of an 8B model's token, at 25 GB/s.
TRANSFER_FEATURES = ("transfer_fixed", "transfer_token")
USUAL_TRANSFER = (5.0, 0.005)
# The same for pictures, sound and video that are encoded: a token of a picture is made of four
# patches, by an encoder that is a tenth of an 8B model.
ENCODE_FEATURES = ("encoded_token",)
USUAL_ENCODE = (0.04,)

# The parts of an expectation: columns that `plugin` adds, and it and `follower` read.
# One row for each endpoint: the features, and what each made up of the expectation.
FEATURES: ColumnKey[NDArray[np.float64]] = ColumnKey("expected-ttft-features")
TERMS_MS: ColumnKey[NDArray[np.float64]] = ColumnKey("expected-ttft-terms-ms")
COST_MS: ColumnKey[Column] = ColumnKey("expected-cost-ms")  # TTFT, and what it costs others
# The same of the legs of a request, where endpoints can hand blocks to each other: of the prefill
# leg on each endpoint, and of a decode leg there, with the transfer, that is a part of it.
PREFILL_MS: ColumnKey[Column] = ColumnKey("expected-prefill-leg-ms")
DECODE_MS: ColumnKey[Column] = ColumnKey("expected-decode-leg-ms")
TRANSFER_MS: ColumnKey[Column] = ColumnKey("expected-transfer-ms")
# And of the media that the endpoint would have to encode, where the request has any.
ENCODED: ColumnKey[Column] = ColumnKey("expected-encoded-tokens")
ENCODE_MS: ColumnKey[Column] = ColumnKey("expected-encode-ms")
TRIED: ColumnKey[NDArray[np.bool_]] = ColumnKey(
    "expected-ttft-tried"
)  # whether it is to be got to know

# Buckets of times observed, divided by those expected: 1 is exact, 2 is twice as long.
ACCURACY_BUCKETS = (0.25, 0.5, 0.667, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


def is_try(candidates: Candidates, row: int) -> bool:
    """Return whether the endpoint, if it is chosen, is so to get to know it: another one costs
    less."""
    tried, cost = candidates.get(TRIED), candidates.get(COST_MS)
    if tried is None or cost is None or not tried[row]:
        return False
    return bool(cost.item(row) > cost.min())


@dataclass(slots=True)
class Learning:
    """Tables whose column i is slot i's."""

    ttft: Costs = field(default_factory=lambda: Costs(np.array(USUAL_TTFT)))
    tpot: Costs = field(default_factory=lambda: Costs(np.array(USUAL_TPOT)))
    transfer: Costs = field(default_factory=lambda: Costs(np.array(USUAL_TRANSFER)))
    encode: Costs = field(default_factory=lambda: Costs(np.array(USUAL_ENCODE)))
    encoders: EncoderCaches = field(default_factory=EncoderCaches)
    # decode legs of requests whose prefill leg has not ended
    coming: Column = field(default_factory=lambda: np.zeros(0))
    backlog: Backlog = field(default_factory=Backlog)
    external_load: ExternalLoad = field(default_factory=ExternalLoad)
    marginal_cost: MarginalCost = field(default_factory=MarginalCost)
    accuracy: list[Histogram] = field(default_factory=list)
    sharing: Sharing | None = None  # None: no other process is told
    demand: Demand | None = None  # None: the number of engines wanted is not asked for
    now: float = 0.0  # seconds, as of the last `advance`

    def grow(self, slots: int) -> None:
        """Have room for so many slots."""
        self.ttft.grow(slots)
        self.tpot.grow(slots)
        self.transfer.grow(slots)
        self.encode.grow(slots)
        self.encoders.grow(slots)
        self.coming = np.concatenate([self.coming, np.zeros(slots - len(self.coming))])
        self.backlog.grow(slots)
        self.external_load.grow(slots)
        self.marginal_cost.grow(slots)
        missing = range(slots - len(self.accuracy))
        self.accuracy += [Histogram(ACCURACY_BUCKETS) for _ in missing]
        if self.demand is not None:
            self.demand.grow(slots)

    def forget(self, slot: int) -> None:
        """Forget a slot that another engine takes; nothing is on its way to the old one."""
        self.ttft.forget(slot)
        self.tpot.forget(slot)
        self.transfer.forget(slot)
        self.encode.forget(slot)
        self.encoders.forget(slot)
        self.coming[slot] = 0.0
        self.external_load.forget(slot)
        self.marginal_cost.forget(slot)
        self.accuracy[slot] = Histogram(ACCURACY_BUCKETS)
        if self.demand is not None:
            self.demand.forget(slot)

    # what requests tell; others are told of it, if there are any

    def waits(
        self,
        waiting: QueuedRequest,
        now: float,
        *,
        work: float,
        new_tokens: float,
        prompt_tokens: float | None,
    ) -> None:
        """Count a request on its way to an endpoint: `work` ms of its prompt's tokens there, of
        which `new_tokens` are not in its cache. `prompt_tokens`: of the whole; None: it is the
        decode leg of a request that has been counted."""
        self.add(waiting, now, work, new_tokens, prompt_tokens)
        if self.sharing is not None:
            waiting.number = self.sharing.next_number()
            self.sharing.tell(
                Waits(
                    self.sharing.slots.name(waiting.slot),
                    waiting.number,
                    waiting.tokens,
                    waiting.alone_ms,
                    now,
                    work,
                    new_tokens,
                    prompt_tokens,
                )
            )
            if self.sharing.log is not None:
                self.sharing.log.sent(waiting.number, waiting.holder, waiting.tokens)

    def add(
        self,
        waiting: QueuedRequest,
        now: float,
        work: float,
        new_tokens: float,
        prompt_tokens: float | None,
    ) -> None:
        """Count a request as `waits` does, without telling others."""
        marginal, slot = self.marginal_cost, waiting.slot
        self.backlog.add(waiting, now)
        if prompt_tokens is None:
            marginal.moved(slot, now, work=work, new_tokens=new_tokens)
        else:
            marginal.sent(slot, now, work=work, new_tokens=new_tokens, tokens=prompt_tokens)
            if self.demand is not None:
                # Where steps are full of prompts, a token of one's own seems to cost little: what
                # one costs others is what it keeps the engine busy for.
                busy = waiting.tokens * self.ttft.table.item(AHEAD, slot)
                self.demand.sent(slot, now, work=busy, alone_ms=waiting.alone_ms)

    def assume_begun_at(self, waiting: QueuedRequest, then: float) -> None:
        """Take the request's answer for begun then, because its beginning will not be seen."""
        self.backlog.assume_begun_at(waiting, then)
        if self.sharing is not None:
            self.sharing.tell(Begins(waiting.number, then, is_assumed=True))

    def begun(self, waiting: QueuedRequest, now: float) -> None:
        """Take out a request that answers, or has gone. A second call does nothing."""
        if self.backlog.begun(waiting, now) and self.sharing is not None:
            self.sharing.tell(Begins(waiting.number, now, is_assumed=False))

    def took(self, kind: Kind, slot: int, features: Sequence[float], ms: float, now: float) -> None:
        """Learn how long something took, from what it was made of. Others are told of so many that
        they know it as well (`Sharing.is_due`)."""
        self.learn(kind, slot, features, ms, now)
        if self.sharing is not None and self.sharing.is_due(kind, slot, now):
            self.sharing.tell(Took(kind, self.sharing.slots.name(slot), features, ms, now))

    def learn(
        self, kind: Kind, slot: int, features: Sequence[float], ms: float, now: float
    ) -> None:
        """Learn as `took` does, without telling others."""
        self.costs(kind).learn(slot, features, ms, now)
        if self.demand is not None and kind is Kind.TTFT:
            self.demand.answered(slot, now, ms)

    def answered(self, tokens: int) -> None:
        """Count an answer of so many tokens."""
        self.marginal_cost.answered(tokens)
        if self.sharing is not None:
            self.sharing.tell(Answered(tokens))

    def comes(self, slot: int, by: float) -> None:
        """Count so many decode legs more that are to come there."""
        self.coming[slot] += by
        if self.sharing is not None:
            self.sharing.comes(slot, by)

    @property
    def all_costs(self) -> tuple[Costs, Costs, Costs, Costs]:
        """The costs of each `Kind`, in their order."""
        return self.ttft, self.tpot, self.transfer, self.encode

    def costs(self, kind: Kind) -> Costs:
        return self.all_costs[kind]

    def advance(self, now: float) -> None:
        """Let everything know what time it is."""
        self.now = now
        self.backlog.advance(now)
        self.ttft.refresh(now)
        self.tpot.refresh(now)
        if self.transfer.is_known:
            self.transfer.refresh(now)
        if self.encode.is_known:
            self.encode.refresh(now)
