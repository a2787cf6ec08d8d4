"""Request counts of /metrics, by model: how requests ended, and how long they took.

Measured where an answer leaves the gateway, and named and counted as vLLM does it for one engine
(vllm/v1/metrics), so that the two can be laid on each other:

time_to_first_token      from a complete request to the first tokens of a stream
inter_token_latency      between two pieces of a stream that carry tokens
time_per_output_token    from a stream's first tokens to its last, by token behind the first
e2e_request_latency      from a complete request to its answer's end
request_queue_time       of it, what it waited for its turn in the gateway
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from inferway.extension import CLIENT_GONE, EndedAnswer, Extension
from inferway.metrics import Family, Histogram, counter, histogram
from inferway.routing.record import Passed, Record, timing

OTHER = "other"  # the label of models that no engine serves
MAX_MODELS = 256  # with a label of their own: adapters come and go

# vLLM's bounds (v1/metrics/loggers.py), and some below them: a cached prompt's first token, and a
# small model's next one, take less than its first bucket has.
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
    *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_QUEUE = (0.0, 0.001, *_REQUEST)  # 0: quantiles of those that did not wait are 0, not in between
_TOKENS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))


@dataclass(slots=True)
class ModelRequests:
    """The counters of the requests for one model, each counted once it is settled. Only whole
    answers have times and tokens, but a cut one has its first token's time."""

    name: str
    clock: Callable[[], float]
    passed: Passed = field(init=False)
    endings: Counter[tuple[int, str]] = field(default_factory=Counter)  # status, outcome
    first_token: Histogram = field(default_factory=partial(Histogram, _FIRST_TOKEN))
    inter_token: Histogram = field(default_factory=partial(Histogram, _TOKEN))
    per_token: Histogram = field(default_factory=partial(Histogram, _TOKEN))
    whole: Histogram = field(default_factory=partial(Histogram, _REQUEST))
    queued: Histogram = field(default_factory=partial(Histogram, _QUEUE))
    prompt_tokens: Histogram = field(default_factory=partial(Histogram, _TOKENS))
    output_tokens: Histogram = field(default_factory=partial(Histogram, _TOKENS))

    def __post_init__(self) -> None:
        firsts, gaps = self.first_token.waiting, self.inter_token.waiting
        self.passed = timing(self.clock, firsts, gaps)

    def settle(self) -> None:
        """Counts all that waits to be counted."""
        if answered := len(self.whole.waiting):
            self.endings[200, "ok"] += answered
        for each in (
            *(self.first_token, self.inter_token, self.per_token),
            *(self.whole, self.queued, self.prompt_tokens, self.output_tokens),
        ):
            each.settle()

    def answered(self, record: Record, seconds: float) -> None:
        """One has been answered with 200 and all of its tokens; `settle` counts it."""
        self.whole.waiting.append(seconds)
        self.queued.waiting.append(record.waited)
        usage = record.usage
        if usage is None:
            prompt, output = record.prompt_tokens, record.events
        else:
            prompt, output = usage.prompt, usage.completion
        if prompt:
            self.prompt_tokens.waiting.append(prompt)
        if output:
            self.output_tokens.waiting.append(output)
            if output > 1 and record.first_at:
                self.per_token.waiting.append((record.last_at - record.first_at) / (output - 1))


_HISTOGRAMS: tuple[tuple[str, str, Callable[[ModelRequests], Histogram]], ...] = (
    (
        "time_to_first_token_seconds",
        "Seconds from a complete request to the first tokens of its streamed answer.",
        lambda m: m.first_token,
    ),
    (
        "inter_token_latency_seconds",
        "Seconds between two successive pieces of a streamed answer that carry tokens.",
        lambda m: m.inter_token,
    ),
    (
        "request_time_per_output_token_seconds",
        "Seconds from the first to the last token of a streamed answer, divided by the number of"
        " its tokens after the first.",
        lambda m: m.per_token,
    ),
    (
        "e2e_request_latency_seconds",
        "Seconds from a complete request to the end of its answer.",
        lambda m: m.whole,
    ),
    (
        "request_queue_time_seconds",
        "Seconds that a request waited for its turn in the gateway's own queue; 0 for a request"
        " that did not have to wait.",
        lambda m: m.queued,
    ),
    (
        "request_prompt_tokens",
        "Prompt tokens of a request, by model.",
        lambda m: m.prompt_tokens,
    ),
    (
        "request_generation_tokens",
        "Tokens that the engine generated for a request, by model.",
        lambda m: m.output_tokens,
    ),
)


@dataclass(slots=True)
class RequestCounts(Extension):
    """The request counters of the process: an extension that keeps numbers. `clock` is the
    director's."""

    clock: Callable[[], float]
    models: dict[str, ModelRequests] = field(default_factory=dict)

    def follow(self, record: Record) -> Passed:
        """Return a function that is called when pieces of the request's answer pass, if that is a
        stream. Its model is known, and generates."""
        model = self.models.get(record.known_model) or self._of_model(record.known_model)
        record.is_timed = True
        return model.passed

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        """Count the answers. One of a request that was sent on for no model is nobody's: a proxy
        also passes what is none of ours."""
        for answer in answers:
            record = answer.record
            if record is not None and (record.target_model or not record.reason):
                self._ended(record, answer.status, answer.seconds)

    def _ended(self, record: Record, status: int, seconds: float) -> None:
        """`status` 0: the client has gone before there was one."""
        model = self.models.get(record.known_model) or self._of_model(record.known_model)
        if status == 200 and record.outcome == "ok" and record.is_timed:
            model.answered(record, seconds)
            return
        status = status or CLIENT_GONE
        outcome = record.outcome or ("client_gone" if status == CLIENT_GONE else "error")
        model.endings[status, outcome] += 1

    def flush(self) -> None:
        """Count what waits; called each second, and before the counts are read."""
        for model in self.models.values():
            model.settle()

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of all models that were asked for; names that no engine serves
        are one of them."""
        self.flush()
        models = self.models.values()
        yield counter(
            "requests",
            "Requests that have ended, by model, by the HTTP status of the answer, and by outcome.",
            ["model", "status", "outcome"],
            {
                (model.name, str(status), outcome): number
                for model in models
                for (status, outcome), number in model.endings.items()
            },
        )
        for name, text, of in _HISTOGRAMS:
            found = [((model.name,), of(model)) for model in models]
            yield histogram(f"inferway_{name}", text, ["model"], found)

    def _of_model(self, name: str) -> ModelRequests:
        """Return the counts of a model that is served, or that a rule names; of an empty name those
        of all others."""
        found = self.models.get(name or OTHER)
        if found is None:
            if len(self.models) >= MAX_MODELS:
                name = ""
            found = self.models.setdefault(name or OTHER, ModelRequests(name or OTHER, self.clock))
        return found
