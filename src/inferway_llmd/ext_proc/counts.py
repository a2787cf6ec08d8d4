"""Counters of the picker, as plain numbers. Exchanges, their driver and the picker write them;
/metrics reads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from inferway.metrics import Histogram
from inferway.routing.record import Record

# Bounds as the reference has them (GIE pkg/epp/metrics): its dashboards compare them.
_SECONDS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0),
    *(10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0),
    *(1200.0, 1800.0, 2700.0, 3600.0),
)
_SECONDS_PER_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_REQUEST_BYTES = tuple(float(1 << n) for n in range(6, 31))
_RESPONSE_BYTES = (1.0, *(float(1 << n) for n in range(3, 17)))
_INPUT_TOKENS = (1.0, *(float(1 << n) for n in range(3, 21)))
_OUTPUT_TOKENS = (1.0, *(float(1 << n) for n in range(3, 14)))
_DECISION_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_SHARES = tuple(tenth / 10 for tenth in range(11))


@dataclass(slots=True)
class ModelCounts:
    """Requests for one model, and what they were sent on as."""

    requests: int = 0
    running: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # by llm-d's word
    seconds: Histogram = field(default_factory=partial(Histogram, _SECONDS))
    seconds_per_token: Histogram = field(default_factory=partial(Histogram, _SECONDS_PER_TOKEN))
    request_bytes: Histogram = field(default_factory=partial(Histogram, _REQUEST_BYTES))
    response_bytes: Histogram = field(default_factory=partial(Histogram, _RESPONSE_BYTES))
    input_tokens: Histogram = field(default_factory=partial(Histogram, _INPUT_TOKENS))
    output_tokens: Histogram = field(default_factory=partial(Histogram, _OUTPUT_TOKENS))
    cached_tokens: Histogram = field(default_factory=partial(Histogram, _INPUT_TOKENS))
    # to the answer's first piece
    first_seconds: Histogram = field(default_factory=partial(Histogram, _SECONDS))
    seconds_per_later_token: Histogram = field(
        default_factory=partial(Histogram, _SECONDS_PER_TOKEN)
    )

    def ended(self, record: Record, seconds: float, answer_bytes: int) -> None:
        """A request is over, so many seconds after it was complete."""
        self.running -= 1
        outcome, usage = record.outcome, record.usage
        if outcome != "ok":
            self.errors["ClientDisconnect" if outcome == "client_gone" else "ModelServerError"] += 1
            return
        self.seconds.observe(seconds)
        self.response_bytes.observe(answer_bytes)
        first_seconds = record.begun_at - record.opened_at  # to its answer's first piece
        if record.begun_at:
            self.first_seconds.observe(first_seconds)
        if usage is None:
            return
        if usage.prompt:
            self.input_tokens.observe(usage.prompt)
        if usage.cached is not None:
            self.cached_tokens.observe(usage.cached)
        if usage.completion:
            self.output_tokens.observe(usage.completion)
            self.seconds_per_token.observe(seconds / usage.completion)
            if record.is_streamed and record.begun_at and usage.completion > 1:
                later = (seconds - first_seconds) / (usage.completion - 1)
                self.seconds_per_later_token.observe(later)


@dataclass(slots=True)
class PickerCounts:
    """The counters of the picker since its start."""

    streams: int = 0
    open: int = 0  # streams, now
    messages: int = 0  # from the proxy
    unread: int = 0  # requests that went by load, because they carry no prompt
    elsewhere: int = 0  # answers of another endpoint than was told first
    refusals: Counter[int] = field(default_factory=Counter)  # status -> answers of our own
    closed: Counter[str] = field(default_factory=Counter)  # streams, by gRPC's word
    decided: Histogram = field(default_factory=partial(Histogram, _DECISION_SECONDS))
    # shares of prompts' blocks that were held where the prompts were sent
    hits: Histogram = field(default_factory=partial(Histogram, _SHARES))
    # decisions: status, model that it was sent on as, engine
    attempts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    models: dict[tuple[str, str], ModelCounts] = field(default_factory=dict)  # asked, sent on as

    def of_model(self, asked: str, target: str) -> ModelCounts:
        """Return the counters of a model. Only names that are served or configured may become
        labels."""
        found = self.models.get((asked, target))
        if found is None:
            found = self.models[asked, target] = ModelCounts()
        return found
