"""What becomes of one request, and what that teaches.

answer            begins to be seen   teaches
streamed          with its first      TTFT at once; TPOT at the end, if it tells how many tokens
                  delta               it had
in one piece      never: assumed      the sum of both, if it tells its tokens: each is as far off as
                  as expected         the sum is
an error, or cut  -                   nothing
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Column, Headers, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.expected_ttft.backlog import Waiting
from inferway.scheduling.expected_ttft.learning import BATCH, FIXED, OWN, PAIRS, Learning
from inferway.scheduling.expected_ttft.places import Places
from inferway.scheduling.plugin import Ending, Follower
from inferway.scheduling.prompt_tokens import prompt_tokens

_LEAST_MS = 1e-3
_SHORT = (
    "fixed",
    "own",
    "pairs",
    "waiting",
    "queue",
    "batch",
)  # learning.TTFT_FEATURES, in a header


class RequestFollower(Follower):
    """`features` and `terms` (what each made up of the expectation, in ms): rows of `candidates`;
    so are `ttft` and `cost`."""

    __slots__ = (
        "_answers", "_candidates", "_cost", "_features", "_first", "_learning", "_places",
        "_request", "_row", "_sent", "_terms", "_ttft", "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        learning: Learning,
        places: Places,
        request: LLMRequest,
        candidates: Candidates,
        *,
        features: NDArray[np.float64],
        terms: NDArray[np.float64],
        ttft: Column,
        cost: Column,
    ) -> None:
        self._learning = learning
        self._places = places
        self._request = request
        self._candidates = candidates
        self._features = features
        self._terms = terms
        self._ttft = ttft
        self._cost = cost
        self._row = 0
        self._sent = 0.0
        self._first: float | None = None
        self._answers = False  # it is no error
        self._waiting: Waiting | None = None

    def on_attempt(self, target: Target, now: float) -> Headers:
        self._withdraw(now)
        row = self._candidates.rows.get(target.endpoint.holder)
        if row is None:
            return ()
        learning, terms = self._learning, self._terms[row]
        place = self._places.place(target.endpoint)
        own = float(self._features[row, OWN])
        work = float(terms[OWN] + terms[PAIRS])
        alone = float(terms[FIXED]) + work + float(terms[BATCH])
        # as many as cost the same without pairs: whoever waits for them need not know more
        tokens_ahead = own * work / float(terms[OWN])
        self._row, self._sent, self._first, self._answers = row, now, None, False
        self._waiting = waiting = Waiting(place, tokens_ahead, alone)
        learning.backlog.add(waiting, now)
        if not self._streams:
            learning.backlog.assume_begun_at(waiting, now + float(self._ttft[row]) / 1000)
        tokens = max(prompt_tokens(self._request), 1)
        learning.caused.sent(place, now, work=work, new_tokens=own, tokens=tokens)
        return ()

    def on_head(self, status: int) -> Headers:
        self._answers = status < 400
        if self._waiting is None:
            return ()
        row = self._row
        others = self._cost[row] - self._ttft[row]
        parts = [f"{name}={ms:.1f}" for name, ms in zip(_SHORT, self._terms[row], strict=True)]
        late = self._ttft[row] - self._terms[row].sum()
        text = ", ".join([*parts, f"late={late:.1f}", f"to-others={others:.1f}"])
        return (
            (b"x-inferway-expected-ttft-ms", b"%.1f" % self._ttft[row]),
            (b"x-inferway-expected-ttft-parts", text.encode()),
        )

    def on_first_chunk(self, now: float) -> None:
        waiting = self._waiting
        if waiting is None or not self._streams:
            return
        self._first = now
        self._learning.backlog.begun(waiting, now)
        if self._answers:
            self._learn_ttft(waiting.place, (now - self._sent) * 1000, now)

    def on_end(self, ending: Ending) -> None:
        waiting, usage = self._waiting, ending.usage
        self._withdraw(ending.now)
        if waiting is None or ending.outcome != "ok" or not self._answers or usage is None:
            return
        self._learning.caused.answered(usage.completion)
        more = usage.completion - 1
        if self._first is not None:
            if more > 0:
                took = (ending.now - self._first) * 1000 / more
                self._learn_tpot(waiting.place, took, ending.now)
        elif not self._streams:
            self._learn_sum(waiting.place, max(more, 0), ending.now)

    @property
    def _streams(self) -> bool:
        return bool(self._request.body.stream)

    def _withdraw(self, now: float) -> None:
        """It does not wait, not any more."""
        if self._waiting is not None:
            self._learning.backlog.begun(self._waiting, now)

    def _learn_ttft(self, place: int, took: float, now: float) -> None:
        learning = self._learning
        took = max(took, _LEAST_MS)
        learning.accuracy[place].observe(took / float(self._ttft[self._row]))
        learning.ttft.learn(place, self._features[self._row], took, now)

    def _learn_tpot(self, place: int, took: float, now: float) -> None:
        batch = self._features[self._row, BATCH] + 1
        self._learning.tpot.learn(place, np.array([1.0, batch]), max(took, _LEAST_MS), now)

    def _learn_sum(self, place: int, more: int, now: float) -> None:
        """An answer in one piece, of `more` tokens behind the first."""
        batch = self._features[self._row, BATCH] + 1
        each = self._learning.tpot.expected(place, np.array([1.0, batch]))
        expected = float(self._ttft[self._row]) + more * each
        ratio = (now - self._sent) * 1000 / expected
        self._learn_ttft(place, ratio * float(self._ttft[self._row]), now)
        if more:
            self._learn_tpot(place, ratio * each, now)
