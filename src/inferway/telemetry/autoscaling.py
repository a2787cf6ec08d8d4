"""Signals for autoscaling: how many engines of each model are wanted for the SLO, why, and what
each engine's cache is worth.

A model here is what engines serve, adapters aside. The numbers are of this gateway's requests:
those of several gateways add up. Workers of one gateway know of each other's requests, and say the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set

import numpy as np

from inferway.config import SloSettings
from inferway.errors import NoEndpointError
from inferway.extension import Extension
from inferway.fleet.fleet import Fleet
from inferway.metrics import Family, gauge
from inferway.model import Candidates
from inferway.scheduling.expected_ttft.engines_wanted import (
    EnginesWanted,
    Serving,
    Slo,
    WantedEstimator,
)
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.telemetry.cache_worth import CacheWorth

_MODEL = ["model"]
_NEVER_MS = 1e12


class Autoscaling(Extension):
    """An extension that looks at the fleet whenever its families are asked for. `clock` is the
    director's; `drained` are the names of engines that get no new requests."""

    def __init__(
        self,
        slo: SloSettings,
        fleet: Fleet,
        plugins: Sequence[ExpectedTtft],
        worth: CacheWorth,
        drained: Set[str],
        clock: Callable[[], float],
    ) -> None:
        self._slo = Slo(
            None if slo.ttft_seconds is None else slo.ttft_seconds * 1000,
            None if slo.itl_seconds is None else slo.itl_seconds * 1000,
            slo.share,
            slo.ahead_seconds,
        )
        self._fleet = fleet
        self._plugin = plugins[0] if plugins and slo.is_any else None
        self._worth = worth
        self._drained = drained
        self.clock = clock
        self._estimators: dict[str, WantedEstimator] = {}
        if self._plugin is not None:
            self._plugin.watch_demand(self._slo.ttft_ms or _NEVER_MS)

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        yield from self._worth.families_of([engine.name for engine in self._fleet.engines])
        found = {(model,): wanted for model, wanted in self.wanted().items()}
        yield gauge(
            "engines_wanted",
            "Engines that this gateway's requests need for the SLO, not rounded; with several"
            " gateways, their sum counts.",
            _MODEL,
            {key: wanted.engines for key, wanted in found.items()},
        )
        yield gauge(
            "engines_wanted_for",
            "Engines that this gateway's requests need for one limit: the first token (ttft), the"
            " tokens behind it (itl), or KV blocks (kv).",
            ["model", "limit"],
            {
                (model, limit): number
                for (model,), wanted in found.items()
                for limit, number in wanted.by_limit.items()
            },
        )
        yield gauge(
            "engines_busy",
            "Share of their time that the model's engines are busy with requests, from 0 to 1.",
            _MODEL,
            {key: wanted.busy for key, wanted in found.items()},
        )
        yield gauge(
            "engines_busy_at_slo",
            "Share of their time that the model's engines may be busy while the SLO is held, as"
            " learned.",
            _MODEL,
            {key: wanted.busy_at_slo for key, wanted in found.items()},
        )
        yield gauge(
            "slo_out_of_reach",
            "Share of requests that are late even on an engine with nothing else to do, from 0 to"
            " 1.",
            _MODEL,
            {key: wanted.out_of_reach for key, wanted in found.items()},
        )

    def wanted(self) -> dict[str, EnginesWanted]:
        """Return what is wanted of each model of which enough is known."""
        if self._plugin is None:
            return {}
        now, by_model = self.clock(), self._by_model()
        found: dict[str, EnginesWanted] = {}
        try:
            table = self._fleet.table.everyone()
        except NoEndpointError:
            return {}
        for name, engines in by_model.items():
            estimator = self._estimators.setdefault(name, WantedEstimator(self._slo))
            serving = _serving(table, engines, self._plugin)
            wanted = estimator.look(self._plugin.learning, serving, now)
            if wanted is not None:
                found[name] = wanted
        for name in self._estimators.keys() - by_model.keys():
            del self._estimators[name]
        return found

    def _by_model(self) -> dict[str, set[str]]:
        """The engines that get requests, by the first name of what they serve."""
        by_model: dict[str, set[str]] = {}
        for engine in self._fleet.engines:
            if engine.healthy and engine.name not in self._drained and engine.base_models:
                by_model.setdefault(engine.base_models[0].name, set()).add(engine.name)
        return by_model


def _serving(table: Candidates, engines: Set[str], plugin: ExpectedTtft) -> Serving:
    """Return how these engines are, as far as requests have had a choice of them."""
    slots = plugin.slots.names()
    known = [
        (row, each.engine, slots[each.name])
        for row, each in enumerate(table.endpoints)
        if each.engine in engines and each.name in slots
    ]
    rows = [row for row, _, _ in known]
    return Serving(
        np.array([slot for _, _, slot in known], np.intp),
        len({engine for _, engine, _ in known}),
        float(table.in_flight[rows].sum()),
        float(table.others[rows].sum()),
        float(table.kv_usage[rows].mean()) if rows else 0.0,
    )
