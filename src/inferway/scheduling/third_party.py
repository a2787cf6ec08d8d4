"""Plugins of other packages, held to what plugins promise: routing never makes an answer
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
from inferway.model import Candidates, Column, Headers, SchedulingResult, Target
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.plugin import RequestListener, RequestOutcome

log = logging.getLogger("inferway.scheduling")

OURS = ("inferway.", "inferway_llmd.")  # packages whose plugins tests hold to what they promise
_Said = TypeVar("_Said")
_Plugin = TypeVar("_Plugin")


def guarded(plugin: _Plugin) -> _Plugin:
    """Return what plays the roles of `plugin` (scorer, filter, producer, admitter, following,
    measured): itself if it is ours."""
    if type(plugin).__module__.startswith(OURS):
        return plugin
    standing_in: Any = GuardedPlugin(plugin)
    return standing_in  # type: ignore[no-any-return]


@dataclass(slots=True)
class GuardedPlugin:
    """Has the methods of all roles; those are called that the plugin has, too."""

    plugin: Any
    told: set[str] = field(default_factory=set)  # kinds of failure that the log has

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        """Return its rating, brought into [0, 1], NaN to 0; all 0 if it fails."""

        def score() -> Column:
            return np.asarray(self.plugin.score(request, candidates), np.float64)

        rows = len(candidates.endpoints)
        given = self._column(self.call(score, None), rows)
        if given is None:
            return np.zeros(rows)
        rating: Column = np.fmax(given, 0.0)
        return np.fmin(rating, 1.0, out=rating)

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        """Return what it keeps; all if it fails."""
        rows = len(candidates.endpoints)
        given = self.call(self.plugin.keep, None, request, candidates)
        kept = self._column(given, rows)
        return np.ones(rows, bool) if kept is None else kept.astype(bool)

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        self.call(self.plugin.produce, None, request, candidates)

    def refusal(self, request: LLMRequest, candidates: Candidates) -> str | None:
        """Return why it refuses the request; None if it fails."""
        refusal: str | None = self.call(self.plugin.refusal, None, request, candidates)
        return refusal

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: SchedulingResult
    ) -> RequestListener | None:
        follower = self.call(self.plugin.follow, None, request, candidates, choice)
        return None if follower is None else _GuardedListener(follower, self)

    def families(self) -> Iterable[Family]:
        """Return its families; none if it fails, or if one of them cannot stand on the page, for a
        scrape that fails would take all others along."""
        return self.call(self._families, ())

    def _families(self) -> Iterable[Family]:
        families: list[Family] = list(self.plugin.families())
        taken = [each.name for each in families if each.name.startswith(PREFIX)]
        if taken:
            raise ValueError(f"families(): {taken}: names with {PREFIX} are the gateway's own")
        registry = CollectorRegistry()
        registry.register(_Collected(families))
        for _ in text_string_to_metric_families(generate_latest(registry).decode()):
            pass
        return families

    def _column(self, given: object, rows: int) -> NDArray[Any] | None:
        """None if it is not one value a row."""
        if given is None:
            return None
        values = np.asarray(given)
        if values.shape == (rows,):
            return values
        self._tell("shape", f"returned shape {values.shape}, expected ({rows},)")
        return None

    def call(self, method: Callable[..., _Said], otherwise: _Said, *arguments: object) -> _Said:
        """Return what the method returns, or `otherwise` if it fails."""
        try:
            return method(*arguments)
        except BaseException as raised:
            e = panic_as_error(raised)
            self._tell(type(e).__name__, "failed", crash_report(e))
            return otherwise

    def _tell(self, kind: str, what: str, details: str = "") -> None:
        if kind not in self.told:
            self.told.add(kind)
            name = type(self.plugin).__name__
            log.error("the plugin %s %s; the gateway goes on without it\n%s", name, what, details)


class _GuardedListener(RequestListener):
    def __init__(self, follower: RequestListener, guard: GuardedPlugin) -> None:
        self._follower = follower
        self._guard = guard

    def on_attempt(self, target: Target, now: float) -> Headers:
        return self._guard.call(self._follower.on_attempt, (), target, now)

    def on_head(self, status: int) -> Headers:
        return self._guard.call(self._follower.on_head, (), status)

    def on_first_chunk(self, now: float) -> None:
        self._guard.call(self._follower.on_first_chunk, None, now)

    def on_end(self, ending: RequestOutcome) -> None:
        self._guard.call(self._follower.on_end, None, ending)


@dataclass(slots=True, eq=False)
class _Collected(Collector):
    families: list[Family]

    def collect(self) -> list[Family]:
        return self.families
