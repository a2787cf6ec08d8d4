"""Sees which engines are suspended (`routing.limits.suspension`), whoever has told them to be.

what is seen        by what                                               of which engines
it sleeps           vllm:engine_sleep_state, scraped with its load        all
it is paused        GET /is_sleeping, beside each scrape: true of a       those that have the path:
                    paused engine, too (0.32)                             vLLM's development mode
it scales           the 503 of whatever it is asked                       all
weights changed     another count of finished `update_weights`, scraped   all

An engine without these signs is not suspended as far as anybody can tell; a request there waits in
the engine. /is_sleeping is answered by the engine's core, after its current step. So nothing waits
for that answer, and its delay is no silence of the engine's.

vLLM publishes AllBlocksCleared for what it drops, but only with its next step, which comes with the
next request. So what is believed of a cache is dropped here once it is known to be gone: at level 1
and 2 of sleep, and with new weights. A pause may keep the cache (`clear_cache=false`), and so may
level 0 of sleep: the events tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from inferway.errors import UpstreamError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.routing.limits.suspension import WORDS, Suspension, refusal
from inferway.tasks import Tasks
from inferway_structured.decoding import UNREADABLE

if TYPE_CHECKING:
    from inferway.fleet.fleet import Fleet

IS_SLEEPING = "/is_sleeping"

log = logging.getLogger("inferway.fleet")


class _IsSleeping(msgspec.Struct):
    is_sleeping: bool


@dataclass(slots=True)
class _Seen:
    """What was seen of one engine."""

    is_asked: bool = False
    updates: float | None = None  # of its weights; None: it has not told yet
    cleared: int = 0  # events that said so, as of then


class EngineStates:
    """Tells the fleet which engines are suspended. `close` it when done."""

    def __init__(
        self, fleet: Fleet, client: EngineClient, look_soon: Callable[[Engine], None]
    ) -> None:
        """`look_soon` has an engine asked at once what it is."""
        self._fleet = fleet
        self._client = client
        self._look_soon = look_soon
        self._seen: dict[str, _Seen] = {}
        self._tasks = Tasks(log, "an engine was not asked whether it is paused, by our fault")

    async def close(self) -> None:
        await self._tasks.close()

    def forget(self, engine: Engine) -> None:
        """Forget an engine that has left."""
        self._seen.pop(engine.name, None)
        self._fleet.suspend(engine, None)

    def loaded(self, engine: Engine) -> None:
        """Take over the load that the engine has just told, and have it asked the rest."""
        seen = self._seen.setdefault(engine.name, _Seen())
        if engine.facts is None or not engine.facts.tells_state:
            self._judge(engine, seen, None)
        elif not seen.is_asked:
            seen.is_asked = True
            self._tasks.spawn(self._ask(engine, seen))

    def refused(self, engine: Engine, error: UpstreamError) -> bool:
        """Return whether an engine that was well has answered that it scales: it is well."""
        if not engine.healthy or not isinstance(error, StatusError):
            return False
        if refusal(error.answered, error.body) is not Suspension.SCALING:
            return False
        self._tell(engine, Suspension.SCALING)
        return True

    async def _ask(self, engine: Engine, seen: _Seen) -> None:
        computes_nothing: bool | None = None
        try:
            raw = await self._client.get(engine.url, IS_SLEEPING, engine.headers)
            computes_nothing = msgspec.json.decode(raw, type=_IsSleeping).is_sleeping
        except StatusError as e:
            if self.refused(engine, e):
                return
        except UpstreamError:
            return  # how its API is, others find out
        except UNREADABLE:
            pass
        finally:
            seen.is_asked = False
        if self._seen.get(engine.name) is seen:
            self._judge(engine, seen, computes_nothing)

    def _judge(self, engine: Engine, seen: _Seen, computes_nothing: bool | None) -> None:
        load = engine.load
        state = suspension(is_asleep=load.is_asleep, computes_nothing=computes_nothing)
        self._tell(engine, state)
        is_gone = state is Suspension.ASLEEP and load.has_dropped_cache
        if seen.updates is not None and load.weight_updates > seen.updates:
            log.info("engine %s has new weights", engine.name)
            # what has been stored since an event that said so is of the new weights
            is_gone |= _num_cleared(engine) == seen.cleared
        if is_gone and self._fleet.table.num_blocks(engine):
            for subscriber in engine.subscribers:
                subscriber.cleared()
        seen.updates, seen.cleared = load.weight_updates, _num_cleared(engine)

    def _tell(self, engine: Engine, state: Suspension | None) -> None:
        before = engine.suspension
        if state is before:
            return
        self._fleet.suspend(engine, state)
        if state is not None:
            for model in engine.proofs:
                self._fleet.prober.leave(engine, model)
            log.info(
                "engine %s %s: no requests go there until that is over", engine.name, WORDS[state]
            )
            return
        log.info("engine %s is suspended no more: it gets requests again", engine.name)
        self._fleet.probe_again(engine)
        if before is Suspension.SCALING:
            self._look_soon(engine)  # it has other ranks now


def _num_cleared(engine: Engine) -> int:
    """Return how often its cache has been dropped, as its events and this module told."""
    return sum([subscriber.blocks.stats.cleared for subscriber in engine.subscribers])


def suspension(*, is_asleep: bool, computes_nothing: bool | None) -> Suspension | None:
    """Return what an engine is that is not scaling. `is_asleep`: as its metrics tell;
    `computes_nothing`: as /is_sleeping tells; None: it does not. /is_sleeping is right where both
    differ: a sleep of level 0 that /resume ends stays in the metrics."""
    if computes_nothing is False or not (is_asleep or computes_nothing):
        return None
    return Suspension.ASLEEP if is_asleep else Suspension.PAUSED
