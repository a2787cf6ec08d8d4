"""Find the endpoints that can begin another prompt soon, and how long a request can still wait and
be in time, for requests that wait at the gateway (routing.limits.goodput_gate).

An endpoint computes prompts in the order in which they came. If more is asked of a fleet than it
can do, requests that are in time wait behind requests that are late already, until all are late. A
request that waits at the gateway instead goes to the endpoint that is free first, and those that
can still be in time go before those that cannot.

A prompt also holds up the answers that its endpoint writes: each of its steps with a piece of a
prompt takes as long as the piece does. With a limit between two tokens, an endpoint that writes
answers gets its next prompt when the last one is computed and, after it, the answers have had time
to catch up. Let prompts take the share f of the endpoint's time, and the limit be l. Answers get
hardly a token while a prompt is computed; if a token takes t else, they get one in t / (1 - f). So
that this is l, prompts may take the share 1 - t / l, and after a prompt of p seconds the endpoint
is closed for

    p / (1 - t / l) - p

seconds. What is seen of an endpoint is t / (1 - f), and f. docs/flow-control.md says what comes of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.metrics import Family, counter, gauge
from inferway.model import Candidates, Column, Headers, Rows, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import EXPECTED_TPOT_MS
from inferway.scheduling.expected_latency import EXPECTED_TTFT
from inferway.scheduling.expected_ttft.learning import BATCH, FEATURES, FIXED, OWN, PAIRS, TERMS_MS
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.per_endpoint import EndpointSlots
from inferway.scheduling.plugin import RequestListener, WaitingCounts
from inferway.scheduling.registry import Building, Parameters, PluginType

NAME = "goodput-admission"
# Answers differ in length and in the prompts that they meet: their mean is to be at this share of
# the limit, so that most are within it.
_AIM = 0.8
_FAR = 0.5  # of the limit: answers that are faster need no time to catch up
_LEAST_SHARE = 0.1  # of its time that an endpoint may compute prompts, however slow its answers are
_MOST_SHARE = 0.95  # that prompts count as having taken
_RECENT_SECONDS = 30.0

Positive = Annotated[float, Meta(gt=0)]


class GoodputAdmissionParameters(Parameters, frozen=True):
    ttft_ms: Positive = 2_000.0  # for requests that do not say their own
    itl_ms: Positive | None = None  # between two tokens of an answer; None: there is no limit
    engine_wait_ms: Positive = 300.0  # an endpoint with less to compute gets another prompt


@dataclass(slots=True)
class GoodputAdmission:
    """See the module. The state is bounded by the endpoints there are."""

    parameters: GoodputAdmissionParameters
    expected: ExpectedTtft
    counts: WaitingCounts = field(default_factory=WaitingCounts)
    _slots: EndpointSlots = field(init=False)
    # seconds: until when each endpoint gets no prompt, so that its answers catch up
    _closed_until: Column = field(default_factory=lambda: np.zeros(0))
    _prompts: Column = field(default_factory=lambda: np.zeros(0))  # the share of time, of late
    _prompts_at: Column = field(default_factory=lambda: np.zeros(0))  # seconds: as of when

    def __post_init__(self) -> None:
        self._slots = EndpointSlots(self._grow, self._forget)

    def is_open(self, candidates: Candidates) -> NDArray[np.bool_]:
        """Return True for each endpoint that can begin another prompt soon."""
        wait: Column = self.expected.wait_ms(candidates)
        if self.parameters.itl_ms is not None:
            rows = self._slots.rows(candidates.endpoints, candidates.now)
            closed = (self._closed_until[rows] - candidates.now) * 1000
            np.maximum(wait, closed, out=wait)
        opened: NDArray[np.bool_] = wait < self.parameters.engine_wait_ms
        return opened

    def spare_seconds(self, request: LLMRequest, candidates: Candidates) -> float:
        """Return how long a request can wait and be in time, at the endpoint that has the least to
        do for it and nothing else; less than 0: it is late already."""
        asked = request.objectives.ttft_ms
        limit = self.parameters.ttft_ms if asked is None else asked
        terms = candidates.get(TERMS_MS)
        if terms is None:
            return limit / 1000
        own = terms[:, FIXED] + terms[:, OWN] + terms[:, PAIRS] + terms[:, BATCH]
        least: float = own.min()
        return (limit - least) / 1000

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        """Return the listener that closes an endpoint for a while once it gets a prompt; None if
        there is no limit between tokens, or nothing is known of them yet."""
        tpot = candidates.get(EXPECTED_TPOT_MS)
        terms, features = candidates.get(TERMS_MS), candidates.get(FEATURES)
        if self.parameters.itl_ms is None or tpot is None or terms is None or features is None:
            return None
        rows = self._slots.rows(candidates.endpoints, candidates.now)
        busy = self._prompts[rows] * self._faded(rows, candidates.now)
        alone = tpot * (1.0 - np.minimum(busy, _MOST_SHARE))
        share = np.maximum(1.0 - alone / (self.parameters.itl_ms * _AIM), _LEAST_SHARE)
        share[tpot < self.parameters.itl_ms * _FAR] = 1.0
        share[features[:, BATCH] == 0.0] = 1.0  # there is no answer to hold up
        prompt = (terms[:, OWN] + terms[:, PAIRS]) / 1000
        return _PromptListener(self, candidates, prompt, prompt / share)

    def sent(self, target: Target, prompt: float, closed: float, now: float) -> None:
        """Note that an endpoint gets a prompt of so many seconds, and close it for as many."""
        slot = self._slots.slot_of(target.endpoint.name, now)
        self._closed_until[slot] = max(now, self._closed_until.item(slot)) + closed
        busy = self._prompts.item(slot) * self._faded(slot, now)
        self._prompts[slot], self._prompts_at[slot] = busy + prompt / _RECENT_SECONDS, now

    def _faded(self, slots: Rows | int, now: float) -> Any:
        return np.exp((self._prompts_at[slots] - now) / _RECENT_SECONDS)

    def families(self) -> Iterator[Family]:
        """Yield how many requests wait, and what became of those that did."""
        counts = self.counts
        yield gauge(
            "goodput_waiting",
            "Requests that goodput-admission has wait until an engine can begin their prompts.",
            value=counts.waiting,
        )
        yield counter(
            "goodput_waited",
            "Requests that had to wait, by what became of them: in-time (they went on while they"
            " could still be in time), late (they went on behind those), too-long (refused with"
            " 429: their time in the queue was over) or full (refused with 429: too many waited).",
            ["outcome"],
            {
                ("in-time",): counts.went - counts.late,
                ("late",): counts.late,
                ("too-long",): counts.too_long,
                ("full",): counts.full,
            },
        )

    def _grow(self, slots: int) -> None:
        missing = np.zeros(slots - len(self._closed_until))
        self._closed_until = np.concatenate([self._closed_until, missing])
        self._prompts = np.concatenate([self._prompts, missing])
        self._prompts_at = np.concatenate([self._prompts_at, missing])

    def _forget(self, slot: int) -> None:
        self._closed_until[slot] = self._prompts[slot] = 0.0


@dataclass(slots=True)
class _PromptListener(RequestListener):
    admission: GoodputAdmission
    candidates: Candidates
    prompt: Column  # the seconds that it takes to compute, by row
    closed: Column  # the seconds until the next one, by row

    def on_attempt(self, target: Target, now: float) -> Headers:
        row = self.candidates.rows.get(target.endpoint.holder)
        if row is not None:
            self.admission.sent(target, self.prompt.item(row), self.closed.item(row), now)
        return ()


def _build(parameters: GoodputAdmissionParameters, building: Building) -> GoodputAdmission:
    expected = building.plugins.get(building.sole_plugin_of(EXPECTED_TTFT))
    if not isinstance(expected, ExpectedTtft):
        raise ConfigError(f"there must be one plugin of type {EXPECTED_TTFT}, with any name")
    return GoodputAdmission(parameters, expected)


TYPE = PluginType(
    NAME,
    "lets requests wait until an engine can begin their prompts soon, and those go first that can "
    "still be in time",
    _build,
    GoodputAdmissionParameters,
    needs=lambda _: (EXPECTED_TTFT,),
)
