"""A follower of one request, which learns from its answer.

answer            begins to be seen   teaches
streamed          with its first      TTFT at once; TPOT at the end, if it tells how many tokens
                  delta               it had
in one piece      never: assumed      the sum of both, if it tells its tokens: each is as far off as
                  as expected         the sum is
an error, or cut  -                   nothing
of a prefill leg  with the leg's end  TTFT on the engine of that leg
of a decode leg   as above            in place of TTFT what the transfer takes: the rest of it
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferway.model import Candidates, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.usage import Usage
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.learning import (
    AHEAD,
    BATCH,
    COST_MS,
    DECODE_MS,
    ENCODE_MS,
    ENCODED,
    FEATURES,
    FIXED,
    OWN,
    PAIRS,
    PREFILL_MS,
    REQUESTS,
    TERMS_MS,
    TRANSFER_MS,
    Learning,
)
from inferway.scheduling.expected_ttft.sharing import Kind
from inferway.scheduling.per_endpoint import EndpointSlots
from inferway.scheduling.plugin import RequestListener, RequestOutcome

_LEAST_MS = 1e-3
_LEAST_TRANSFER = 0.05  # of what was expected of it, if all else has taken longer
# learning.TTFT_FEATURES, and what is no feature
_PARTS = (
    b"fixed=%.1f, own=%.1f, pairs=%.1f, waiting=%.1f, queue=%.1f, batch=%.1f, late=%.1f, "
    b"to-others=%.1f"
)
_ENCODE = b", encode=%.1f"
_LEGS = b", prefill=%.1f, transfer=%.1f"


class _Sent(msgspec.Struct):
    """A request, or a leg of it, that an engine has got, and what was expected of it."""

    features: list[float]
    terms: list[float]  # what each made up of `ttft`, in ms
    ttft: float  # ms
    cost: float  # ms, with what it costs others
    at: float  # seconds; of a decode leg, when its blocks were there to be fetched
    waiting: QueuedRequest
    moved: float = 0.0  # tokens that a decode leg fetches
    transfer: float = 0.0  # ms of `ttft`
    encoded: float = 0.0  # tokens of media that are encoded there
    encode: float = 0.0  # ms of `ttft`


class ExpectedTtftListener(RequestListener):
    """`candidates`: as the plugin has left them."""

    __slots__ = (
        "_answers",
        "_candidates",
        "_choice",
        "_coming",
        "_first",
        "_has_reference",
        "_learning",
        "_prefill",
        "_request",
        "_sent",
        "_slots",
        "_streams",
    )

    _first: float | None  # when the first piece of the answer came
    _answers: bool  # it is no error

    def __init__(
        self,
        learning: Learning,
        slots: EndpointSlots,
        request: LLMRequest,
        candidates: Candidates,
        choice: SchedulingResult,
    ) -> None:
        self._learning = learning
        self._slots = slots
        self._request = request
        self._candidates = candidates
        self._choice = choice
        self._streams = bool(request.body.stream)
        self._sent: _Sent | None = None
        self._prefill: _Sent | None = None
        self._has_reference = False  # the next attempt, or the one that runs, gets blocks
        self._coming: int | None = None  # the slot where it is to be decoded

    def on_prefill(self, target: Target, now: float) -> None:
        self._withdraw(self._prefill, now)
        self._prefill = None
        row = self._candidates.rows.get(target.endpoint.holder)
        if row is None:
            return
        self._has_reference = True
        self._prefill = prefill = self._expected(row, target, now)
        prefill.cost = self._candidates.added[PREFILL_MS.name].item(row)
        self._wait(prefill, now)
        if self._coming is None:
            self._coming = slot = self._slots.slot(self._choice.targets[0].endpoint)
            self._learning.comes(slot, 1.0)

    def on_prefilled(self, now: float, usage: Usage | None, *, moved: bool) -> None:
        prefill, decode = self._prefill, self._sent
        if prefill is None:
            return
        self._withdraw(prefill, now)
        if moved or usage is not None:
            self._learn_ttft(prefill, (now - prefill.at) * 1000, now)
        self._has_reference = self._has_reference and moved
        if decode is not None and decode.moved:  # both legs were sent at once
            decode.at = now

    def on_attempt(self, target: Target, now: float) -> Headers:
        self._withdraw(self._sent, now)
        self._arrived()
        self._sent = None
        row = self._candidates.rows.get(target.endpoint.holder)
        if row is None:
            return ()
        self._sent = sent = self._expected(row, target, now)
        self._first, self._answers = None, False
        if self._has_reference:
            self._has_reference = False  # it serves once
            self._as_decode_leg(sent, row)
        self._wait(sent, now)
        if not self._streams:
            self._learning.assume_begun_at(sent.waiting, now + sent.ttft / 1000)
        return ()

    def on_head(self, status: int) -> Headers:
        self._answers = status < 400
        sent, prefill = self._sent, self._prefill
        if sent is None:
            return ()
        ttft, cost, terms = sent.ttft, sent.cost, sent.terms
        late = max(ttft - sent.transfer - sent.encode - sum(terms), 0.0)
        legs = _ENCODE % sent.encode if sent.encoded else b""
        if sent.moved and prefill is not None:
            legs += _LEGS % (prefill.ttft, sent.transfer)
            ttft += prefill.ttft
            cost += prefill.cost
        return (
            (b"x-inferway-expected-ttft-ms", b"%.1f" % ttft),
            (b"x-inferway-expected-ttft-parts", _PARTS % (*terms, late, cost - ttft) + legs),
        )

    def on_first_chunk(self, now: float) -> None:
        sent = self._sent
        del self._candidates, self._request  # it is sent nowhere else
        if sent is None or not self._streams:
            return
        self._first = now
        self._learning.begun(sent.waiting, now)
        if self._answers:
            self._learn_ttft(sent, (now - sent.at) * 1000, now)

    def on_end(self, ending: RequestOutcome) -> None:
        sent, usage = self._sent, ending.usage
        self._withdraw(self._prefill, ending.now)
        self._withdraw(sent, ending.now)
        self._arrived()
        if sent is None or ending.outcome != "ok" or not self._answers or usage is None:
            return
        if usage.completion:  # embeddings write nothing
            self._learning.answered(usage.completion)
        more = usage.completion - 1
        if self._first is not None:
            if more > 0:
                took = (ending.now - self._first) * 1000 / more
                self._learn_tpot(sent, took, ending.now)
        elif not self._streams:
            self._learn_sum(sent, max(more, 0), ending.now)

    def _expected(self, row: int, target: Target, now: float) -> _Sent:
        added = self._candidates.added
        features, terms = added[FEATURES.name][row].tolist(), added[TERMS_MS.name][row].tolist()
        own, work = features[OWN], terms[OWN] + terms[PAIRS]
        # as many as cost the same without pairs: requests that wait for them need not know more
        tokens_ahead = own * work / terms[OWN]
        waiting = QueuedRequest(
            self._slots.slot(target.endpoint),
            tokens_ahead,
            terms[FIXED] + work + terms[BATCH],
            holder=target.endpoint.holder,
        )
        ttft = added[EXPECTED_TTFT_MS.name].item(row)
        sent = _Sent(features, terms, ttft, added[COST_MS.name].item(row), now, waiting)
        if self._request.media:
            self._encodes(sent, target, row)
        return sent

    def _encodes(self, sent: _Sent, target: Target, row: int) -> None:
        """Note what the endpoint encodes, and the endpoints of an encode stage beside it."""
        added, learning = self._candidates.added, self._learning
        sent.encoded, sent.encode = added[ENCODED.name].item(row), added[ENCODE_MS.name].item(row)
        names = self._slots.names()
        for used in (target, *self._choice.others.values()):
            slot = names.get(used.endpoint.name)
            if slot is not None:
                learning.encoders.sent(slot, self._request.media)

    def _as_decode_leg(self, sent: _Sent, row: int) -> None:
        """Expect one token to be computed, and a wait for what waits there by now."""
        added, learning, features = self._candidates.added, self._learning, sent.features
        waiting, slot = sent.waiting, sent.waiting.slot
        sent.encoded = sent.encode = 0.0  # the prefill leg has done it
        sent.moved, sent.transfer = features[OWN], added[TRANSFER_MS.name].item(row)
        features[OWN], features[PAIRS] = 1.0, max(self._request.num_prompt_tokens - 0.5, 0.5)
        features[AHEAD] = learning.backlog.tokens.item(slot)
        features[REQUESTS] = learning.backlog.requests.item(slot)
        costs = learning.ttft.table[:, slot].tolist()
        sent.terms = [feature * cost for feature, cost in zip(features, costs, strict=True)]
        sent.ttft = sum(sent.terms) + sent.transfer
        sent.cost = added[DECODE_MS.name].item(row)
        waiting.tokens = 1.0
        waiting.alone_ms = max(sent.ttft - sent.terms[AHEAD] - sent.terms[REQUESTS], 0.0)

    def _wait(self, sent: _Sent, now: float) -> None:
        """Count it as waiting where it is sent, and as work there."""
        self._learning.waits(
            sent.waiting,
            now,
            work=sent.terms[OWN] + sent.terms[PAIRS],
            new_tokens=sent.moved or sent.features[OWN],
            prompt_tokens=None if sent.moved else max(self._request.num_prompt_tokens, 1),
        )

    def _withdraw(self, sent: _Sent | None, now: float) -> None:
        """Count the request as one that does not wait any more."""
        if sent is not None:
            self._learning.begun(sent.waiting, now)

    def _arrived(self) -> None:
        """No decode leg is to come any more."""
        if self._coming is not None:
            self._learning.comes(self._coming, -1.0)
            self._coming = None

    def _learn_ttft(self, sent: _Sent, took: float, now: float) -> None:
        learning, slot = self._learning, sent.waiting.slot
        took = max(took, _LEAST_MS)
        learning.accuracy[slot].observe(took / sent.ttft)
        if sent.moved:
            least = _LEAST_TRANSFER * sent.transfer
            rest = max(took - sent.ttft + sent.transfer, least)
            learning.took(Kind.TRANSFER, slot, (1.0, sent.moved), rest, now)
        elif sent.encoded:
            least = _LEAST_TRANSFER * sent.encode
            rest = max(took - sent.ttft + sent.encode, least)
            learning.took(Kind.ENCODE, slot, (sent.encoded,), rest, now)
        else:
            learning.took(Kind.TTFT, slot, sent.features, took, now)

    def _learn_tpot(self, sent: _Sent, took: float, now: float) -> None:
        took = max(took, _LEAST_MS)
        self._learning.took(Kind.TPOT, sent.waiting.slot, _tpot_features(sent), took, now)

    def _learn_sum(self, sent: _Sent, more: int, now: float) -> None:
        """An answer in one piece, of `more` tokens behind the first."""
        each = self._learning.tpot.expected(sent.waiting.slot, _tpot_features(sent))
        ratio = (now - sent.at) * 1000 / (sent.ttft + more * each)
        self._learn_ttft(sent, ratio * sent.ttft, now)
        if more:
            self._learn_tpot(sent, ratio * each, now)


def _tpot_features(sent: _Sent) -> Sequence[float]:
    return (1.0, sent.features[BATCH] + 1)
