"""The gate: what the director asks before an engine gets a request that wants a shape.

asked      what                                        then
unreadable, invalid, over a limit                      400, `param` at the place
in quarantine                                          400, with the reason
the model has engines with our plugin:
           no backend takes it                         400, as the engine would say
           a keyword cannot be enforced                named in `x-inferway-unenforced`; 400 with
                                                       `strict`, if the settings say so
the model has stock engines only                       passes: what these enforce is not known

Verdicts are kept by spec. Nothing here takes long on the event loop: reading a large body, verdicts
and judging answers are done in threads, or in a helper process that can be killed. What has to wait
for these is served fairly between tenants (`verdicts`, `turns`); what is known waits for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from inferway.config import StructuredSettings
from inferway.errors import (
    ChecksBusyError,
    InferwayError,
    SaturatedError,
    SpecError,
    crash_report,
    panic_as_error,
)
from inferway.gate.costs import CompileCosts
from inferway.gate.counts import GateCounts
from inferway.gate.library import Library, Trial, Verdict
from inferway.gate.quarantine import InFlight, Quarantine
from inferway.gate.shape import Shape
from inferway.gate.turns import ANYBODY, Asker, Turns
from inferway.gate.verdicts import QuarantinedError, Verdicts
from inferway.gate.warm import Warmer
from inferway.model import Column, Endpoint
from inferway_structured.grammar import Unenforced
from inferway_structured.report import in_request, keeps_all, left_free, refuse_unenforced
from inferway_structured.requests import asked as asked_in
from inferway_structured.spec import Asked
from inferway_structured.texts import Said

log = logging.getLogger("inferway.gate")

MAX_BODY_ON_LOOP = 16 * 1024  # read in 5 ms at worst: thousands of {}
MAX_IN_ONE_GO = 64  # specs that are looked at before others have a turn
MAX_SMALL_ANSWER = 64 * 1024  # characters
JUDGE_SECONDS = 2.0
_JUDGEMENTS = 2  # at a time, of small ones and of large ones
# When an engine that has failed a request is looked at: whether it is gone.
_CONFIRM_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)

_T = TypeVar("_T")


class Engines(Protocol):
    """What the gate needs of the fleet. Engines are named."""

    def has_plugin(self, engine: str) -> bool:
        """Whether it runs our structured output."""

    def is_up(self, engine: str) -> bool: ...

    def num_in_flight(self, engine: str) -> int:
        """Requests that we have sent there, whatever they ask."""


class Gate:
    """One for each director. `library` None: the extra is not installed, or checks are off; then
    requests pass, and are counted. Close it."""

    def __init__(
        self,
        settings: StructuredSettings,
        library: Library | None,
        engines: Engines,
        *,
        clock: Callable[[], float],
        trial: Trial | None = None,
        hint: str = "",
    ) -> None:
        """`clock` counts seconds. `hint`: logged once, when the first request wants what there is
        no library for. `trial`: works verdicts out where it can be killed; all of them
        if the settings say so, else those that may take long."""
        self.counts = GateCounts()
        self.quarantine = Quarantine(settings.quarantine_seconds)
        self.costs = CompileCosts()
        self.answer_bytes = settings.answer_bytes
        self.report_validity = settings.report_validity
        self.library = library
        self.trial = trial
        self._hint = hint
        self._refuses_unenforced = settings.refuse_unenforced
        self._engines = engines
        self._clock = clock
        self.warmer: Warmer | None = None
        self._in_flight = InFlight()
        self.verdicts: Verdicts | None = None
        if library is not None:
            self.verdicts = Verdicts(
                *(library, trial, self.quarantine, self.costs, clock),
                tries_all=settings.trial_compile,
            )
        self._tries_all = settings.trial_compile
        # an answer may keep a helper busy; that must not hold up requests
        self._judges = ThreadPoolExecutor(2 * _JUDGEMENTS, thread_name_prefix="judges")
        self._small_judgements = Turns(_JUDGEMENTS, seconds=JUDGE_SECONDS)
        self._large_judgements = Turns(_JUDGEMENTS, seconds=JUDGE_SECONDS)
        self._timers: set[asyncio.TimerHandle] = set()
        self._tasks: set[asyncio.Task[object]] = set()

    async def close(self) -> None:
        """Ends what is under way."""
        for timer in self._timers:
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.warmer is not None:
            await self.warmer.close()
        if self.verdicts is not None:
            self.verdicts.close()
        self._judges.shutdown(wait=False, cancel_futures=True)
        for closing in (self.trial, self.library):
            if closing is not None:
                await asyncio.to_thread(closing.close)

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
        """`fields` of a body of that size, which may go to one of `endpoints`; `is_echoed`: the
        answer begins with the prompt. None if no shape is asked for, or none is checked. Raises
        SpecError, ChecksBusyError, or SaturatedError when too many wait."""
        if self.verdicts is None:
            self._pass_by(path, fields, body_bytes)
            return None
        try:
            if body_bytes <= MAX_BODY_ON_LOOP:
                asked = asked_in(path, fields)
            else:
                asked = await self.verdicts.read(asker, asked_in, path, fields)
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
            shape = await self._shape(asked, endpoints, asker)
            shape.can_be_judged = not is_echoed
            outcome = "checked"
        except QuarantinedError as e:
            outcome = "quarantined"
            raise e.error from None
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
                asked = asked_in(path, fields)
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
        self, asked: Sequence[Asked], endpoints: Sequence[Endpoint], asker: Asker
    ) -> Shape:
        assert self.verdicts is not None
        for each in asked:
            self.verdicts.refuse_in_quarantine(each.spec.key, each)
        if len(asked) > 1:
            self.verdicts.refuse_in_quarantine(_together(asked), asked[0])
        for_us = any(self._engines.has_plugin(endpoint.engine) for endpoint in endpoints)
        kept: list[Asked] = []
        unenforced: list[Unenforced] = []
        for number, each in enumerate(asked, 1):
            try:
                found = await self._examined(each, asker, for_us=for_us)
            except SpecError as e:
                if not each.may_be_free:
                    raise
                each, found = each.freed(e), ()
            kept.append(each)
            unenforced += (left_free(each),) if each.free else found
            await _breathe(number)
        return Shape(self, kept, unenforced if for_us else None, asker)

    async def _examined(self, asked: Asked, asker: Asker, *, for_us: bool) -> Sequence[Unenforced]:
        """What engines with the plugin do not enforce. Raises SpecError."""
        assert self.verdicts is not None
        verdict = await self.verdicts.of(asked, asker, tries=for_us or self._tries_all)
        if not for_us:
            return ()
        assert verdict is not None
        if isinstance(verdict, SpecError):
            raise in_request(asked, verdict) from None
        if self._refuses_unenforced:
            refuse_unenforced(asked, verdict.unenforced)
        return verdict.unenforced

    async def explain(self, asked: Asked, asker: Asker = ANYBODY) -> dict[str, Any]:
        """What would become of it, keyword by keyword: its JSON. Raises ChecksBusyError,
        SaturatedError."""
        assert self.library is not None
        assert self.verdicts is not None
        found: Verdict | SpecError | None = None
        refused: SpecError | None = None
        try:
            found = await self.verdicts.of(asked, asker, tries=True)
        except SpecError as e:
            refused = e
        except QuarantinedError as e:
            found = e.error
        told = await self.verdicts.read(
            *(asker, self.library.explain, asked, refused, found, self._refuses_unenforced)
        )
        return {"place": asked.place, **told}

    # --------------------------------------------------------------------- while an engine has it

    def has_plugin(self, engine: str) -> bool:
        return self._engines.has_plugin(engine)

    def is_proven(self, key: str) -> bool:
        return self.quarantine.is_proven(key)

    def missing_ms(self, asked: Sequence[Asked], endpoints: Sequence[Endpoint]) -> Column | None:
        """What each endpoint would still have to compile; None if that is next to nothing."""
        keys = [each.spec.key for each in asked]
        return self.costs.missing_ms(keys, endpoints, self._engines.has_plugin)

    def sent(self, asked: Sequence[Asked], endpoint: Endpoint) -> None:
        """It goes there now."""
        self._in_flight.sent(endpoint.engine, _together(asked))
        if not self._engines.has_plugin(endpoint.engine):
            return
        for each in asked:
            is_first = self.costs.see(endpoint.engine, each.spec.key)
            if is_first and self.warmer is not None:
                self.warmer.tell(endpoint, each)

    def left(self, asked: Sequence[Asked], engine: str) -> None:
        """It is no longer there."""
        self._in_flight.over(engine, _together(asked))

    def answered(self, asked: Sequence[Asked]) -> None:
        """It was answered to its end."""
        for each in asked:
            self.quarantine.answered(each.spec.key)
        if len(asked) > 1:
            self.quarantine.answered(_together(asked))

    def failed(self, asked: Sequence[Asked], engine: str, now: float) -> None:
        """It failed there. If the engine turns out to be lost, and nothing else was there, the
        spec is to blame."""
        key = _together(asked)
        others = self._engines.num_in_flight(engine)
        if self._in_flight.was_alone(engine, key, others + 1, now):
            self._confirm(engine, key, _CONFIRM_SECONDS)

    def failed_beside(self, engine: str) -> None:
        """A request that asks for no shape has failed there."""
        self._in_flight.failed_beside(engine, self._clock())

    @property
    def num_suspected(self) -> int:
        """Losses of engines that may yet turn out to be a shape's fault."""
        return len(self._timers)

    def _confirm(self, engine: str, key: str, waits: Sequence[float]) -> None:
        def look() -> None:
            self._timers.discard(timer)
            if not self._engines.is_up(engine):
                self.costs.forget(engine)
                self.quarantine.strike(key, self._clock())
                log.warning(
                    "engine %s was lost while it had only one request with a shape, %s", engine, key
                )
            elif len(waits) > 1:
                self._confirm(engine, key, waits[1:])

        timer = asyncio.get_running_loop().call_later(waits[0], look)
        self._timers.add(timer)

    # ------------------------------------------------------------------------ when it is answered

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task of ours."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "a fault of the gateway kept it from telling what an answer keeps of its shape: %s",
                crash_report(error),
            )

    async def judge(
        self, asked: Sequence[Asked], said: Sequence[Said] | None, asker: Asker = ANYBODY
    ) -> bool | None:
        """Whether what was said has the shape. Counts it."""
        valid = await self._judged(asked, said, asker)
        self.counts.answered(valid)
        return valid

    async def _judged(
        self, asked: Sequence[Asked], said: Sequence[Said] | None, asker: Asker
    ) -> bool | None:
        if said is None or self.library is None:
            return None
        work = self.spawn(self._judged_in_turn(self.library, asked, said, asker))
        done, _ = await asyncio.wait([work], timeout=JUDGE_SECONDS)
        return work.result() if done and not work.cancelled() and not work.exception() else None

    async def _judged_in_turn(
        self, library: Library, asked: Sequence[Asked], said: Sequence[Said], asker: Asker
    ) -> bool | None:
        is_small = sum([len(each.text) for each in said]) <= MAX_SMALL_ANSWER and not any(
            library.is_costly(each.spec) for each in asked
        )
        turns = self._small_judgements if is_small else self._large_judgements
        try:
            async with turns.turn(asker):
                return await asyncio.get_running_loop().run_in_executor(
                    self._judges, keeps_all, asked, said, library.keeps
                )
        except (SaturatedError, RuntimeError):  # too many wait, or we are closed
            return None


async def _breathe(number: int) -> None:
    """What is known is known at once; a thousand of it is not."""
    if number % MAX_IN_ONE_GO == 0:
        await asyncio.sleep(0)


def _together(asked: Sequence[Asked]) -> str:
    """One key for all that a request asks."""
    if len(asked) == 1:
        return asked[0].spec.key
    return "+".join(sorted(each.spec.key for each in asked))
