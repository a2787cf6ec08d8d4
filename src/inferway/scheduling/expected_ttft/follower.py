"""What becomes of one request, and what that teaches.

answer            begins to be seen   teaches
streamed          with its first      TTFT at once; TPOT at the end, if it tells how many tokens
                  delta               it had
in one piece      never: assumed      the sum of both, if it tells its tokens: each is as far off as
                  as expected         the sum is
an error, or cut  -                   nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from inferway.model import Candidates, Headers, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.learning import (
    BATCH,
    COST_MS,
    FEATURES,
    FIXED,
    OWN,
    PAIRS,
    TERMS_MS,
    Learning,
)
from inferway.scheduling.per_endpoint import EndpointSlots
from inferway.scheduling.plugin import RequestListener, RequestOutcome

_LEAST_MS = 1e-3
# learning.TTFT_FEATURES, and what is no feature
_PARTS = (
    b"fixed=%.1f, own=%.1f, pairs=%.1f, waiting=%.1f, queue=%.1f, batch=%.1f, late=%.1f, "
    b"to-others=%.1f"
)


class ExpectedTtftListener(RequestListener):
    """`candidates`: as the plugin has left them."""

    __slots__ = (
        "_answers",
        "_candidates",
        "_cost",
        "_features",
        "_first",
        "_learning",
        "_request",
        "_sent",
        "_slots",
        "_streams",
        "_terms",
        "_ttft",
        "_waiting",
    )  # fmt: skip

    _features: Sequence[float]  # of the endpoint that it is sent to
    _terms: Sequence[float]  # what each made up of `_ttft`, in ms
    _ttft: float
    _cost: float
    _sent: float  # seconds
    _first: float | None  # when the first piece of the answer came
    _answers: bool  # it is no error

    def __init__(
        self,
        learning: Learning,
        slots: EndpointSlots,
        request: LLMRequest,
        candidates: Candidates,
    ) -> None:
        self._learning = learning
        self._slots = slots
        self._request = request
        self._candidates = candidates
        self._streams = bool(request.body.stream)
        self._waiting: QueuedRequest | None = None

    def on_attempt(self, target: Target, now: float) -> Headers:
        self._withdraw(now)
        row = self._candidates.rows.get(target.endpoint.holder)
        if row is None:
            return ()
        self._sent, self._first, self._answers = now, None, False
        self._read(row)
        learning, terms, own = self._learning, self._terms, self._features[OWN]
        slot = self._slots.slot(target.endpoint)
        work = terms[OWN] + terms[PAIRS]
        alone = terms[FIXED] + work + terms[BATCH]
        # as many as cost the same without pairs: whoever waits for them need not know more
        tokens_ahead = own * work / terms[OWN]
        self._waiting = waiting = QueuedRequest(slot, tokens_ahead, alone)
        learning.backlog.add(waiting, now)
        if not self._streams:
            learning.backlog.assume_begun_at(waiting, now + self._ttft / 1000)
        tokens = max(self._request.num_prompt_tokens, 1)
        learning.marginal_cost.sent(slot, now, work=work, new_tokens=own, tokens=tokens)
        return ()

    def on_head(self, status: int) -> Headers:
        self._answers = status < 400
        if self._waiting is None:
            return ()
        ttft, terms = self._ttft, self._terms
        parts = _PARTS % (*terms, max(ttft - sum(terms), 0.0), self._cost - ttft)
        return (
            (b"x-inferway-expected-ttft-ms", b"%.1f" % ttft),
            (b"x-inferway-expected-ttft-parts", parts),
        )

    def on_first_chunk(self, now: float) -> None:
        waiting = self._waiting
        del self._candidates, self._request  # it is sent nowhere else
        if waiting is None or not self._streams:
            return
        self._first = now
        self._learning.backlog.begun(waiting, now)
        if self._answers:
            self._learn_ttft(waiting.slot, (now - self._sent) * 1000, now)

    def on_end(self, ending: RequestOutcome) -> None:
        waiting, usage = self._waiting, ending.usage
        self._withdraw(ending.now)
        if waiting is None or ending.outcome != "ok" or not self._answers or usage is None:
            return
        if usage.completion:  # embeddings write nothing
            self._learning.marginal_cost.answered(usage.completion)
        more = usage.completion - 1
        if self._first is not None:
            if more > 0:
                took = (ending.now - self._first) * 1000 / more
                self._learn_tpot(waiting.slot, took, ending.now)
        elif not self._streams:
            self._learn_sum(waiting.slot, max(more, 0), ending.now)

    def _read(self, row: int) -> None:
        added = self._candidates.added
        self._features = added[FEATURES.name][row].tolist()
        self._terms = added[TERMS_MS.name][row].tolist()
        self._ttft = added[EXPECTED_TTFT_MS.name].item(row)
        self._cost = added[COST_MS.name].item(row)

    def _withdraw(self, now: float) -> None:
        """It does not wait, not any more."""
        if self._waiting is not None:
            self._learning.backlog.begun(self._waiting, now)

    def _learn_ttft(self, slot: int, took: float, now: float) -> None:
        learning = self._learning
        took = max(took, _LEAST_MS)
        learning.accuracy[slot].observe(took / self._ttft)
        learning.ttft.learn(slot, self._features, took, now)

    def _learn_tpot(self, slot: int, took: float, now: float) -> None:
        self._learning.tpot.learn(slot, self._tpot_features(), max(took, _LEAST_MS), now)

    def _learn_sum(self, slot: int, more: int, now: float) -> None:
        """An answer in one piece, of `more` tokens behind the first."""
        each = self._learning.tpot.expected(slot, self._tpot_features())
        ratio = (now - self._sent) * 1000 / (self._ttft + more * each)
        self._learn_ttft(slot, ratio * self._ttft, now)
        if more:
            self._learn_tpot(slot, ratio * each, now)

    def _tpot_features(self) -> Sequence[float]:
        return (1.0, self._features[BATCH] + 1)
