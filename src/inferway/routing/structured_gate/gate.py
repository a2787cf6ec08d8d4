"""The gate: what the director asks before an engine gets a request that wants a shape.

asked      what                                        then
unreadable, invalid, over a limit                      400, `param` at the place
in quarantine                                          400, with the reason
the model has engines with our plugin:
           no backend takes it                         400, as the engine would say
           a keyword cannot be enforced                named in `x-inferway-unenforced`; 400 with
                                                       `strict`, if the settings say so
the model has stock engines only                       passes: what these enforce is not known

Nothing here takes long on the event loop: bodies, shapes and answers are looked at by
`inferway_structured.verdicts`, and what has to wait there is served fairly between tenants
(`turns`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from inferway.config import StructuredSettings
from inferway.errors import (
    ChecksBusyError,
    InferwayError,
    QuarantinedError,
    SaturatedError,
    SpecError,
    crash_report,
    panic_as_error,
)
from inferway.model import Column, Endpoint
from inferway.routing.structured_gate.costs import CompileCosts
from inferway.routing.structured_gate.counts import GateCounts
from inferway.routing.structured_gate.quarantine import InFlight, Quarantine
from inferway.routing.structured_gate.shape import Shape
from inferway.routing.structured_gate.turns import FairTurns
from inferway.routing.structured_gate.warm import Warmer
from inferway_structured.requests import key_of_fields, parse_constraints
from inferway_structured.spec import OutputConstraint
from inferway_structured.turns import ANYBODY, Asker
from inferway_structured.verdict_store import VerdictStore
from inferway_structured.verdicts import MAX_BODY_ON_LOOP, Library, Verdicts, quarantined

log = logging.getLogger("inferway.gate")

# When an engine that has failed a request is looked at: whether it is gone.
_CONFIRM_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)


class Engines(Protocol):
    """The part of the fleet that the gate needs. Engines are known by their names."""

    def has_plugin(self, engine: str) -> bool:
        """Return whether the engine runs our structured output."""

    def is_up(self, engine: str) -> bool: ...

    def num_in_flight(self, engine: str) -> int:
        """Return how many requests we have sent there, whatever they ask."""


class Gate:
    """The checks that the director makes of a shape before an engine gets the request. Each
    director has one, which must be closed."""

    def __init__(
        self,
        settings: StructuredSettings,
        library: Library | None,
        engines: Engines,
        *,
        clock: Callable[[], float],
        hint: str = "",
        on_judged: Callable[[str, bool], None] | None = None,
        store: VerdictStore | None = None,
    ) -> None:
        """`library` None: the extra is not installed; then requests pass, and are counted. `clock`
        counts seconds. `hint` is logged once, when the first request wants what there is no
        library for. `on_judged`: as `Quarantine` tells. `store`: keeps verdicts for the next
        start."""
        self.counts = GateCounts()
        self.quarantine = Quarantine(settings.quarantine_seconds, clock, tell=on_judged)
        self.costs = CompileCosts()
        self.answer_bytes = settings.answer_bytes
        self.report_validity = settings.report_validity
        self._refuses_unenforced = settings.refuse_unenforced
        self.warmer: Warmer | None = None
        self.verdicts: Verdicts | None = None
        if library is not None:
            self.verdicts = Verdicts(
                library,
                quarantine_seconds=settings.quarantine_seconds,
                tries_all=settings.trial_compile,
                make_turns=FairTurns,
                took=self.costs.took,
                store=store,
                clock=clock,
            )
        self._hint = hint
        self._engines = engines
        self._clock = clock
        self._in_flight = InFlight()
        self._timers: set[asyncio.TimerHandle] = set()

    async def close(self) -> None:
        """End what is under way."""
        for timer in self._timers:
            timer.cancel()
        if self.warmer is not None:
            await self.warmer.close()
        if self.verdicts is not None:
            await self.verdicts.close()

    # ------------------------------------------------------------------ before an engine sees it

    async def check(
        self,
        path: str,
        fields: Mapping[str, Any],
        body_bytes: int,
        endpoints: Sequence[Endpoint],
        *,
        is_echoed: bool = False,
        asker: Asker = ANYBODY,
    ) -> Shape | None:
        """Return the shape that a request asks for; None if it asks for none, or none is checked.
        `fields` are those of a body of that size, which may go to one of `endpoints`; `is_echoed`:
        the answer begins with the prompt. Raises SpecError, ChecksBusyError, or SaturatedError when
        too many wait."""
        if self.verdicts is None:
            self._pass_by(path, fields, body_bytes)
            return None
        key = key_of_fields(path, fields)
        try:
            asked = await self.verdicts.read_request(
                asker, key, parse_constraints, path, fields, num_bytes=body_bytes
            )
        except SpecError:
            self.counts.asked("unreadable", "refused")
            raise
        except SaturatedError:
            self.counts.asked("unread", "busy")
            raise
        if not asked:
            return None
        started, outcome = self._clock(), "refused"
        kind = asked[0].spec.kind
        try:
            shape = await self._shape(self.verdicts, key, asked, endpoints, asker)
            shape.can_be_judged = not is_echoed
            outcome = "checked"
        except QuarantinedError:
            outcome = "quarantined"
            raise
        except (ChecksBusyError, SaturatedError):
            outcome = "busy"
            raise
        except InferwayError:
            raise
        except BaseException as e:
            log.error(
                "a request's shape could not be checked, and the request passes: %s",
                crash_report(panic_as_error(e)),
            )
            outcome = "unchecked"
            return None
        finally:
            self.counts.asked(kind, outcome)
            self.counts.waited += self._clock() - started
        return shape

    def _pass_by(self, path: str, fields: Mapping[str, Any], body_bytes: int) -> None:
        """Counts it. What it asks is not worth a thread."""
        kind = "unread"
        if body_bytes <= MAX_BODY_ON_LOOP:
            try:
                asked = parse_constraints(path, fields)
            except SpecError:
                kind = "unreadable"
            else:
                if not asked:
                    return
                kind = asked[0].spec.kind
        self.counts.asked(kind, "unchecked")
        if self._hint and kind != "unread":
            log.info("%s", self._hint)
            self._hint = ""

    async def _shape(
        self,
        verdicts: Verdicts,
        key: bytes | None,
        asked: Sequence[OutputConstraint],
        endpoints: Sequence[Endpoint],
        asker: Asker,
    ) -> Shape:
        for each in asked:
            self._refuse_in_quarantine(each.spec.key, each)
        self._refuse_in_quarantine(_together(asked), asked[0])
        for_us = any(self._engines.has_plugin(endpoint.engine) for endpoint in endpoints)
        kept, unenforced = await verdicts.examine(
            asked,
            asker,
            key=key,
            compiles=for_us,
            refuses_unenforced=self._refuses_unenforced,
        )
        return Shape(self, verdicts, kept, unenforced if for_us else None, asker)

    def _refuse_in_quarantine(self, key: str, asked: OutputConstraint) -> None:
        if (refused := self._refusal(key, asked)) is not None:
            raise refused

    def _refusal(self, key: str, asked: OutputConstraint) -> QuarantinedError | None:
        why = self.quarantine.refusal(key)
        return None if why is None else quarantined(asked, why)

    async def explain(
        self, verdicts: Verdicts, asked: OutputConstraint, asker: Asker = ANYBODY
    ) -> dict[str, Any]:
        """Return what would become of the shape, keyword by keyword, as JSON. Raises
        ChecksBusyError or SaturatedError."""
        refused = self._refusal(asked.spec.key, asked)
        return await verdicts.explain(
            asked, asker, refuses_unenforced=self._refuses_unenforced, refused=refused
        )

    # --------------------------------------------------------------------- while an engine has it

    def has_plugin(self, engine: str) -> bool:
        return self._engines.has_plugin(engine)

    def is_proven(self, key: str) -> bool:
        return self.quarantine.is_proven(key)

    def missing_ms(
        self, asked: Sequence[OutputConstraint], endpoints: Sequence[Endpoint]
    ) -> Column | None:
        """Return what each endpoint would still have to compile, in milliseconds; None if that is
        next to nothing."""
        keys = [each.spec.key for each in asked]
        return self.costs.missing_ms(keys, endpoints, self._engines.has_plugin)

    def sent(self, asked: Sequence[OutputConstraint], endpoint: Endpoint) -> None:
        """Note that a request with these specs goes to the endpoint now."""
        self._in_flight.sent(endpoint.engine, _together(asked))
        if not self._engines.has_plugin(endpoint.engine):
            return
        for each in asked:
            is_first = self.costs.see(endpoint.engine, each.spec.key)
            if is_first and self.warmer is not None:
                self.warmer.tell(endpoint, each)

    def left(self, asked: Sequence[OutputConstraint], engine: str) -> None:
        """Note that a request with these specs is no longer at the engine."""
        self._in_flight.over(engine, _together(asked))

    def answered(self, asked: Sequence[OutputConstraint]) -> None:
        """Note that an engine has answered these specs to the end."""
        for each in asked:
            self.quarantine.answered(each.spec.key)
        if len(asked) > 1:
            self.quarantine.answered(_together(asked))

    def failed(self, asked: Sequence[OutputConstraint], engine: str, now: float) -> None:
        """Note that a request with these specs failed at the engine. If the engine turns out to be
        lost, and nothing else was there, the spec is to blame."""
        key = _together(asked)
        others = self._engines.num_in_flight(engine)
        if self._in_flight.was_alone(engine, key, others + 1, now):
            self._confirm(engine, key, _CONFIRM_SECONDS)

    def failed_beside(self, engine: str) -> None:
        """Note that a request that asks for no shape has failed at the engine."""
        self._in_flight.failed_beside(engine, self._clock())

    @property
    def num_suspected(self) -> int:
        """The number of losses of engines that may yet turn out to be a shape's fault."""
        return len(self._timers)

    def _confirm(self, engine: str, key: str, waits: Sequence[float]) -> None:
        def look() -> None:
            self._timers.discard(timer)
            if not self._engines.is_up(engine):
                self.costs.forget(engine)
                self.quarantine.strike(key)
                log.warning(
                    "engine %s was lost while it had only one request with a shape, %s", engine, key
                )
            elif len(waits) > 1:
                self._confirm(engine, key, waits[1:])

        timer = asyncio.get_running_loop().call_later(waits[0], look)
        self._timers.add(timer)


def _together(asked: Sequence[OutputConstraint]) -> str:
    """Return one key for all that a request asks."""
    if len(asked) == 1:
        return asked[0].spec.key
    return "+".join(sorted(each.spec.key for each in asked))
