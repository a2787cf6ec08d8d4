"""Plugins of somebody else's, held to what plugins promise: routing never makes an answer
impossible. One that fails counts as one that has nothing to say, and the log has it once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from inferway.errors import crash_report, panic_as_error
from inferway.metrics import PREFIX, Family
from inferway.model import Candidates, Choice, Column, Headers, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import (
    Admitter,
    Ending,
    Filter,
    Follower,
    Following,
    Measured,
    Producer,
    Scorer,
)

log = logging.getLogger("inferway.scheduling")

OURS = "inferway."
_Said = TypeVar("_Said")
_Plugin = TypeVar("_Plugin")


@dataclass(slots=True)
class _Guard:
    """Calls it, and says once of each kind of failure that it failed."""

    plugin: Any
    told: set[str] = field(default_factory=set)

    def call(self, method: Callable[..., _Said], otherwise: _Said, *arguments: object) -> _Said:
        try:
            return method(*arguments)
        except BaseException as raised:
            e = panic_as_error(raised)
            self.tell(type(e).__name__, "failed", crash_report(e))
            return otherwise

    def tell(self, kind: str, what: str, details: str = "") -> None:
        if kind not in self.told:
            self.told.add(kind)
            name = type(self.plugin).__name__
            log.error("the plugin %s %s; the gateway goes on without it\n%s", name, what, details)

    def column(self, given: object, rows: int) -> NDArray[Any] | None:
        """None if it is not one value a row."""
        values = np.asarray(given)
        if values.shape == (rows,):
            return values
        self.tell("shape", f"returned shape {values.shape}, expected ({rows},)")
        return None


@dataclass(slots=True)
class OutsideScorer:
    """Ratings are brought into [0, 1], NaN to 0; without any, all are 0."""

    guard: _Guard

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        rows = len(candidates.endpoints)
        given = self.guard.call(self._score, None, request, candidates)
        if given is None:
            return np.zeros(rows)
        rating: Column = np.fmax(given, 0.0)
        return np.fmin(rating, 1.0, out=rating)

    def _score(self, request: LLMRequest, candidates: Candidates) -> Column | None:
        given = np.asarray(self.guard.plugin.score(request, candidates), np.float64)
        return self.guard.column(given, len(candidates.endpoints))


@dataclass(slots=True)
class OutsideFilter:
    """Keeps all when it fails."""

    guard: _Guard

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        rows = len(candidates.endpoints)
        given = self.guard.call(self.guard.plugin.keep, np.ones(rows, bool), request, candidates)
        kept = self.guard.column(given, rows)
        return np.ones(rows, bool) if kept is None else kept.astype(bool)


@dataclass(slots=True)
class OutsideProducer:
    guard: _Guard

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        self.guard.call(self.guard.plugin.produce, None, request, candidates)


@dataclass(slots=True)
class OutsideAdmitter:
    """Refuses nothing when it fails."""

    guard: _Guard

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        refusal: str | None = self.guard.call(self.guard.plugin.refusal, None, request, candidates)
        return refusal


@dataclass(slots=True)
class OutsideFollowing:
    guard: _Guard

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: Choice
    ) -> Follower | None:
        follower = self.guard.call(self.guard.plugin.follow, None, request, candidates, choice)
        return None if follower is None else _OutsideFollower(follower, self.guard)


class _OutsideFollower(Follower):
    def __init__(self, follower: Follower, guard: _Guard) -> None:
        self._follower = follower
        self._guard = guard

    def on_attempt(self, target: Target, now: float) -> Headers:
        return self._guard.call(self._follower.on_attempt, (), target, now)

    def on_head(self, status: int) -> Headers:
        return self._guard.call(self._follower.on_head, (), status)

    def on_first_chunk(self, now: float) -> None:
        self._guard.call(self._follower.on_first_chunk, None, now)

    def on_end(self, ending: Ending) -> None:
        self._guard.call(self._follower.on_end, None, ending)


@dataclass(slots=True)
class OutsideMeasured:
    """Has no families when it fails, or when one of them cannot stand on the page: a scrape that
    fails would take all others along."""

    guard: _Guard

    def families(self) -> Iterable[Family]:
        return self.guard.call(self._readable, ())

    def _readable(self) -> Iterable[Family]:
        families: list[Family] = list(self.guard.plugin.families())
        taken = [each.name for each in families if each.name.startswith(PREFIX)]
        if taken:
            raise ValueError(f"families(): {taken}: names with {PREFIX} are the gateway's own")
        registry = CollectorRegistry()
        registry.register(_Collected(families))
        for _ in text_string_to_metric_families(generate_latest(registry).decode()):
            pass
        return families


@dataclass(slots=True, eq=False)
class _Collected(Collector):
    families: list[Family]

    def collect(self) -> list[Family]:
        return self.families


_HELD: tuple[tuple[type, Callable[[_Guard], Any]], ...] = (
    (Scorer, OutsideScorer),
    (Filter, OutsideFilter),
    (Producer, OutsideProducer),
    (Admitter, OutsideAdmitter),
    (Following, OutsideFollowing),
    (Measured, OutsideMeasured),
)


def held(plugin: _Plugin, role: type) -> _Plugin:
    """What plays `role`, one of the plugin points, for `plugin`: itself if it is ours; tests hold
    ours to it."""
    kind = type(plugin)
    if kind.__module__.startswith(OURS) or kind.__module__ == __name__:
        return plugin
    for known, hold in _HELD:
        if known is role:
            held_plugin: _Plugin = hold(_Guard(plugin))
            return held_plugin
    return plugin
