"""Counters of the director."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from inferway.metrics import Family, Histogram, Row, counter, histogram, table

# Deciding takes 0.1 to 0.5 ms for most prompts and seconds for pathological ones.
DECISION_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)


@dataclass(slots=True)
class EngineTokens:
    """Prompt tokens sent to one engine, of requests whose answers tell of all their prompts what
    was cached, if they tell it; and of no prompt more than we know of it."""

    prompt: int = 0
    matched: int = 0  # believed to be cached
    checked: int = 0  # the same, where the answer has told what was
    delivered: int = 0  # what it has told

    def sent(self, num_tokens: int, num_reused: int) -> None:
        """Count a request's tokens, and those of them that are believed to be cached."""
        self.prompt += num_tokens
        self.matched += num_reused

    def told(self, num_tokens: int, num_reused: int, num_cached: int) -> None:
        """Count the cached tokens that the answer to a `sent` request reports."""
        self.checked += num_reused
        self.delivered += min(num_cached, num_tokens)


_TOKENS: tuple[Row[EngineTokens], ...] = (
    (
        counter,
        "prompt_tokens",
        "Prompt tokens of the requests that the engine answered.",
        lambda tokens: tokens.prompt,
    ),
    (
        counter,
        "matched_tokens",
        "Prompt tokens that were in the engine's cache by the gateway's view, of requests"
        " that it answered.",
        lambda tokens: tokens.matched,
    ),
    (
        counter,
        "checked_tokens",
        "Matched tokens of the requests whose answers say what the engine took from its cache.",
        lambda tokens: tokens.checked,
    ),
    (
        counter,
        "delivered_tokens",
        "Prompt tokens that the engine took from its cache, as its answers say.",
        lambda tokens: tokens.delivered,
    ),
)


@dataclass(slots=True)
class DirectorStats:
    """Plain integers; one collector reads them when it is scraped."""

    decisions: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, EngineTokens] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=partial(Histogram, DECISION_BUCKETS))

    def decided(self, reason: str, seconds: float) -> None:
        """Count a decision that took so long, parsing and rendering included."""
        self.decisions[reason] = self.decisions.get(reason, 0) + 1
        self.seconds.observe(seconds)

    def tokens_of(self, engine: str) -> EngineTokens:
        found = self.tokens.get(engine)
        if found is None:
            found = self.tokens[engine] = EngineTokens()
        return found

    def forget_others(self, engines: Iterable[str]) -> None:
        """Forget all engines but these: where engines are pods, each has a name of its own."""
        for gone in self.tokens.keys() - set(engines):
            del self.tokens[gone]

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of decisions, and of the tokens of each engine's prompts."""
        yield counter(
            "decisions",
            "Routing decisions by reason: why a request went to its engine.",
            ["reason"],
            {(reason,): n for reason, n in self.decisions.items()},
        )
        yield histogram(
            "inferway_decision_seconds",
            "Seconds from a complete request to the choice of its engine; parsing,"
            " rendering and tokenizing are included.",
            values=[((), self.seconds)],
        )
        tokens = {(engine,): each for engine, each in self.tokens.items()}
        yield from table(_TOKENS, ["engine"], tokens)
