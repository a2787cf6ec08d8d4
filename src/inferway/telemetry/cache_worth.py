"""The worth of each engine's cache: the prompt tokens that requests of late found in it and in no
other. If the engine went, they would have to be computed. A use counts half after
HALF_LIFE_SECONDS, as it does for warm prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from inferway.extension import Extension
from inferway.metrics import Family, gauge
from inferway.model import Column
from inferway.routing.journey import Routed
from inferway.routing.warm_prefixes import HALF_LIFE_SECONDS

NAME = "engine_cache_worth_tokens"


@dataclass(slots=True)
class FadingTokens:
    """Tokens by engine, of which half is left after HALF_LIFE_SECONDS."""

    _tokens: dict[str, tuple[float, float]] = field(default_factory=dict)  # and when it was so

    def add(self, engine: str, tokens: float, now: float) -> None:
        self._tokens[engine] = (self.of(engine, now) + tokens, now)

    def of(self, engine: str, now: float) -> float:
        tokens, at = self._tokens.get(engine, (0.0, now))
        return float(tokens * 0.5 ** ((now - at) / HALF_LIFE_SECONDS))

    def forget_others(self, engines: Iterable[str]) -> None:
        """Forget all engines but these: the others are no more."""
        for engine in self._tokens.keys() - set(engines):
            del self._tokens[engine]


@dataclass(slots=True)
class CacheWorth(Extension):
    """An extension that counts what each engine's cache is worth. `clock` is the director's."""

    clock: Callable[[], float]
    own: FadingTokens = field(default_factory=FadingTokens)
    others: Sequence[Mapping[str, float]] = ()  # what other processes have told, by engine

    def hear(self, others: Sequence[Mapping[str, float]]) -> None:
        """Take over what other processes have told, by engine, in place of the earlier."""
        self.others = others

    def on_request(self, routed: Routed, seconds: float) -> None:  # noqa: ARG002
        target, candidates = routed.decision.targets[0], routed.candidates
        if not target.matched_blocks:
            return
        row = candidates.rows[target.endpoint.holder]
        alone = found_alone(candidates.matched_blocks, row)
        if alone > 0:
            tokens = alone * float(candidates.block_sizes[row])
            self.own.add(target.endpoint.engine, tokens, candidates.now)

    def of(self, engine: str) -> float:
        """Return it in tokens, as of now, with what other processes have seen."""
        return self.own.of(engine, self.clock()) + sum(
            told.get(engine, 0.0) for told in self.others
        )

    def families_of(self, engines: Iterable[str]) -> Iterator[Family]:
        """Yield what /metrics shows of it: of this process alone, for those of all are added up."""
        now = self.clock()
        yield gauge(
            NAME,
            "Prompt tokens that requests found in this engine's cache and in no other; each counts"
            " half after five minutes.",
            ["engine"],
            {(engine,): self.own.of(engine, now) for engine in engines},
        )


def found_alone(matched_blocks: Column, row: int) -> float:
    """Return how many blocks only the endpoint in this row has; not more than 0 if there are
    none."""
    own = float(matched_blocks[row])
    if len(matched_blocks) < 2:
        return own
    second, first = np.partition(matched_blocks, -2)[-2:]
    return own - float(second) if own >= float(first) else 0.0
