"""Requests that wait at an engine which has fallen silent go to other engines.

the answer            what is done
has not begun         its request is sent to the next engine of its decision that is not silent
is streamed           another engine goes on with it (http/continued.py)
cannot go elsewhere   it waits. If other engines serve its model, it ends with an error when it has
                      waited for `timeouts.silent_engine` in the silence

The engine's late answers are not read: their connections are closed, which is how vLLM learns to
stop computing them once it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inferway.errors import SilentEngineError
from inferway.fleet.engine import Engine
from inferway.fleet.outage import Outage
from inferway.http.ends import BodySource
from inferway.http.forward import Forwarding
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.upstream.pool import Pool

LOOK_SECONDS = 1.0  # between two looks at what still waits there

log = logging.getLogger("inferway.forward")


@dataclass(slots=True)
class SilentEngines:
    """Hears of outages; `close` ends it. `sources`: the sources of all answers that are under way,
    whose requests go through `pool`. `has_others`: whether other engines serve what one serves."""

    standing: OutlierDetection
    sources: Callable[[], Iterable[BodySource]]
    pool: Pool
    has_others: Callable[[Engine], bool]
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)  # by engine

    def hear(self, engine: Engine) -> None:
        """An outage of the engine has begun, is of another kind now, or is over."""
        outage = engine.outage
        if outage is None:
            self.standing.ends(engine.name)
            self._forget(engine.name)
            return
        now = self.pool.time()
        self.standing.begins(engine.name, now, is_silent=outage.is_silence)
        # New connections that are refused later on say nothing of the old ones, which still wait.
        if outage.is_silence and engine.name not in self._timers:
            self._move(engine, outage, 0.0)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _forget(self, engine: str) -> None:
        timer = self._timers.pop(engine, None)
        if timer is not None:
            timer.cancel()

    def _move(self, engine: Engine, outage: Outage, waited: float) -> None:
        """Again and again, until nothing is left there. A request that was just decided for the
        engine may still come."""
        loop, seconds = self.pool.loop, self.pool.timeouts.silent_engine
        error = SilentEngineError(engine.name, f"engine {engine.name} {outage.words(loop.time())}")
        moved = left = 0
        # A client that could not wait until the next look waits no longer.
        begun = loop.time() + LOOK_SECONDS - seconds if self.has_others(engine) else -math.inf
        for source in [each for each in self.sources() if isinstance(each, Forwarding)]:
            may_wait = max(outage.since, source.sent_at) > begun
            is_moved = source.engine_is_silent(error, may_wait=may_wait)
            moved += is_moved is True
            left += is_moved is False
        if moved or (left and not waited):
            log.warning(
                "engine %s is silent: other engines answer %d of its requests in its place;"
                " %d can go nowhere else",
                *(engine.name, moved, left),
            )
        if left or waited < 2 * LOOK_SECONDS:
            self._timers[engine.name] = loop.call_later(
                LOOK_SECONDS, self._move, engine, outage, waited + LOOK_SECONDS
            )
        else:
            self._timers.pop(engine.name, None)
