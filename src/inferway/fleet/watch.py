"""Hears of the engines, by asking each what it is (discovery), then for its load, again and again
(scraper), and by what it says no more. An engine that does not answer is a warning in the log,
once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from inferway.config import ServeSettings
from inferway.errors import UpstreamError, UpstreamTimeoutError
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.fleet.engine_facts import (
    METRICS,
    NoEngineError,
    ask_models,
    discover,
)
from inferway.fleet.engine_states import EngineStates
from inferway.fleet.liveness import PATIENT_SECONDS
from inferway.fleet.outage import Outage, OutageKind, down_words, duration
from inferway.fleet.scraper import Scraper, Work
from inferway.metrics import Family
from inferway.openai_api.requests import COMPLETION
from inferway.tasks import Tasks

if TYPE_CHECKING:
    from inferway.fleet.fleet import Fleet

log = logging.getLogger("inferway.fleet")

STOOD_STILL_SECONDS = 1.0  # that this process was away for, between two looks at the engines
TRY_SECONDS = 60.0  # that the answer to a try is waited for
REDISCOVER_SECONDS = 10.0  # how often an engine is asked for its models again


class Watch:
    """Tells the fleet what it hears of the engines (`Fleet.told`, `is_down`, `loaded`). By default
    it need not be told who comes and goes, and is not asked to look at anybody."""

    async def start(self) -> None:
        """Learn the state of every engine once. Raises ConfigError."""

    def go_on(self) -> None:
        """Follow the engines from now on."""

    async def close(self) -> None:
        """Stop following the engines."""

    async def come(self, engines: Sequence[Engine]) -> None:
        """Follow these engines as well; learn the state of each once before this returns."""

    def leave(self, engine: Engine) -> None:
        """Stop following the engine."""

    def suspect(self, name: str) -> None:
        """Learn at once the state of the engine of that name."""

    def stir(self) -> None:
        """Look at the engines soon: one of them may have got something to do."""

    def cut_off(self, url: str) -> None:
        """Take note that the engine there has closed a connection: it may have ended."""

    def families(self) -> Iterable[Family]:
        """Return what /metrics shows of how they are heard of."""
        return ()


class EngineWatch(Watch):
    """Asks the engines themselves."""

    def __init__(self, fleet: Fleet, settings: ServeSettings) -> None:
        self._fleet = fleet
        self._client = fleet.client
        self._settings = settings
        self.scraper = Scraper(
            fleet.engines,
            self._ask,
            self._after_round,
            settings.scrape_seconds,
            work_of=self._work_of if settings.scrape_seconds is None else None,
            is_stirred=fleet.table.hears_of_all,
        )
        self._silence = SilenceWatch(fleet, fleet.client, self.scraper.ask_soon)
        self._states = EngineStates(fleet, fleet.client, fleet.look_soon)

    async def start(self) -> None:
        if self._settings.scoring:
            self._fleet.prober.open()
        await asyncio.gather(*(self._rediscover(engine) for engine in self._fleet.engines))

    def go_on(self) -> None:
        self._spread_rediscovery()
        self.scraper.start()

    async def close(self) -> None:
        await self.scraper.close()
        await self._silence.close()
        await self._states.close()

    async def come(self, engines: Sequence[Engine]) -> None:
        await asyncio.gather(*(self._rediscover(engine) for engine in engines))
        for engine in engines:
            self.scraper.add(engine)

    def leave(self, engine: Engine) -> None:
        self.scraper.remove(engine)
        self._states.forget(engine)

    def suspect(self, name: str) -> None:
        self.scraper.suspect(name)

    def stir(self) -> None:
        self.scraper.stir()

    def cut_off(self, url: str) -> None:
        for engine in self._fleet.engines:
            if engine.url == url:
                engine.facts_age.asked = None
        self.scraper.hurry(url)

    def families(self) -> Iterable[Family]:
        return self.scraper.families()

    def _spread_rediscovery(self) -> None:
        """Over the time in which each has one, as if some had been looked at earlier."""
        now, engines = asyncio.get_running_loop().time(), self._fleet.engines
        for number, engine in enumerate(engines):
            engine.looked = now - REDISCOVER_SECONDS * number / len(engines)

    async def _ask(self, engine: Engine, suspected: bool) -> bool:
        engine.liveness.is_asked(asyncio.get_running_loop().time())
        has_answered = await self._ask_what_is_due(engine, suspected)
        if has_answered:
            self._owes_nothing(engine)
        return has_answered

    async def _ask_what_is_due(self, engine: Engine, suspected: bool) -> bool:
        if engine.is_stalled:
            return await self._scrape(engine)
        # what was away may have been started anew, as something else
        away = not engine.healthy or engine.is_cut_off
        now = asyncio.get_running_loop().time()
        if suspected or away:
            engine.looked = now
            return await self._rediscover(engine)
        if now - engine.looked > REDISCOVER_SECONDS:
            engine.looked = now
            engine.facts_age.has_worked |= self.scraper.work_of is None  # nobody has looked
            if engine.facts_age.are_due(now):
                return await self._rediscover(engine)
            return await self._look(engine)
        return await self._scrape(engine)

    async def _rediscover(self, engine: Engine) -> bool:
        """Asks what the engine is. Returns whether it answered."""
        asked = asyncio.get_running_loop().time()
        try:
            facts, metrics = await discover(
                *(self._client, engine.url, engine.headers, engine.facts),
                heard=partial(self._heard, engine),
            )
        except UpstreamError as e:
            engine.facts_age.asked = None
            self._unanswered(engine, e)
            return False
        self._owes_nothing(engine)  # while the gateway makes ready for it
        engine.facts_age.told(asked, is_same=facts == engine.facts)
        await self._fleet.told(engine, facts)
        self._loaded(engine, metrics)
        return True

    async def _look(self, engine: Engine) -> bool:
        """Asks the engine whether it is well, and serves what it did. Returns whether it
        answered."""
        try:
            models, findings = await ask_models(
                *(self._client, engine.url, engine.headers), partial(self._heard, engine)
            )
        except UpstreamError as e:
            self._unanswered(engine, e)
            return False
        is_same = engine.facts is not None and models == engine.facts.models and not findings
        return await (self._scrape(engine) if is_same else self._rediscover(engine))

    async def _scrape(self, engine: Engine) -> bool:
        path = METRICS if engine.facts is None else engine.facts.load_path
        try:
            metrics = await self._client.metrics(engine.url, path, engine.headers)
        except UpstreamError as e:
            self._unanswered(engine, e)
            return False
        if not engine.healthy and not engine.is_stalled:
            self._fleet.is_up(engine)
        self._loaded(engine, metrics)
        return True

    def _loaded(self, engine: Engine, metrics: str) -> None:
        self._fleet.loaded(engine, metrics)
        self._states.loaded(engine)

    def _heard(self, engine: Engine) -> None:
        """It has answered one of several questions, and is asked the next."""
        self._owes_nothing(engine)
        engine.liveness.is_asked(asyncio.get_running_loop().time())

    def _owes_nothing(self, engine: Engine) -> None:
        now = asyncio.get_running_loop().time()
        was_out = engine.outage is not None
        engine.liveness.has_answered(now, self._silence.awake, was_out=was_out)

    def _unanswered(self, engine: Engine, error: UpstreamError) -> None:
        """A question got no answer. Silence of an engine that is well is `SilenceWatch`'s to judge;
        what breaks a connection tells that it is gone at once; a refusal while it scales is one."""
        if self._states.refused(engine, error):
            self._owes_nothing(engine)
            return
        engine.failures += 1
        kind = _kind_of(error)
        if engine.healthy and kind is OutageKind.SILENT:
            return
        live, now = engine.liveness, asyncio.get_running_loop().time()
        since = now if live.asked is None else live.asked
        is_refused = _has_number(error, _REFUSED)
        outage = Outage(kind, since, live.answered, str(error), is_refused)
        if engine.healthy or not engine.warned:
            engine.warned = True
            log.warning("%s", down_words(engine.name, engine.url, outage))
        if kind is not OutageKind.SILENT:
            live.asked = None  # it owes no answer: the host has said that there is nobody
        self._fleet.is_down(engine, outage)

    def _work_of(self, engine: Engine, since: float) -> Work:
        """As `Scraper` has it. Blocks that it stores or drops are work, whoever has sent it."""
        if engine.suspension is not None:
            return Work.UNKNOWN  # requests wait until it goes on, which is not to be missed
        table, is_well = self._fleet.table, engine.healthy and not engine.failures
        is_idle = is_well and table.is_idle(engine)
        if is_idle and not engine.has_told_since(since):
            return Work.NONE
        engine.facts_age.has_worked = True
        is_known = is_idle or (is_well and not table.has_others(engine))
        return Work.KNOWN if is_known else Work.UNKNOWN

    def _after_round(self, now: float) -> None:
        for engine in self.scraper.idle:
            self._fleet.table.note_same_load(engine, now)
        self._fleet.forget_those_who_left(now)
        self._fleet.table.age(now, self.scraper.interval)
        self._silence.look(now, self.scraper.pace)


# What a connection says of a host that does not answer, as one without power or network does.
_NO_HOST = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT})
_REFUSED = frozenset({errno.ECONNREFUSED})


def _kind_of(error: UpstreamError) -> OutageKind:
    if isinstance(error, UpstreamTimeoutError):
        return OutageKind.SILENT
    if isinstance(error, NoEngineError | StatusError):
        return OutageKind.INVALID
    return OutageKind.SILENT if _has_number(error, _NO_HOST) else OutageKind.UNREACHABLE


def _has_number(error: UpstreamError, numbers: frozenset[int]) -> bool:
    """Return whether the system has given one of these reasons for the error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in numbers:
            return True
        cause = cause.__cause__
    return False


NOT_FOLLOWED = (
    "scoring is off, and nobody has asked for scores yet; they are followed from the first request"
    " for scores on, or from the start with follow_events: always, publish, state_dir or heal"
)


def needs_events(settings: ServeSettings) -> bool:
    """Return whether events are followed before anybody asks for scores.

    Where prompts are not looked at (`scoring: false`), no request is routed, recorded or explained
    by what engines hold. What is left are scores, which hardly anybody asks such a gateway for."""
    return (
        settings.scoring
        or settings.follow_events == "always"
        or settings.publish is not None
        or settings.state_dir is not None
        or settings.heal > 0
    )


class SilenceWatch:
    """Finds the engines that say nothing any more, by the rules of `liveness`. One whose core
    computes nothing is asked for a token, once at a time, until one comes. `look` again and again,
    `close` it when done."""

    def __init__(self, fleet: Fleet, client: EngineClient, ask: Callable[[Engine], None]) -> None:
        """`ask` has an engine asked at once how it is: whether others answer, too."""
        self._fleet = fleet
        self._client = client
        self._ask = ask
        self._looked = self._awake = 0.0
        self._tries = Tasks(log, "an engine was not tried, by a fault of the gateway")

    @property
    def awake(self) -> float:
        """Since when this process goes on, by the loop's clock."""
        return self._awake

    async def close(self) -> None:
        await self._tries.close()

    def look(self, now: float, interval: float) -> None:
        """Judge every engine. `interval`: seconds that are meant to be between two looks."""
        if now - self._looked > interval + STOOD_STILL_SECONDS:
            self._awake = now
        self._looked = now
        for engine in list(self._fleet.engines):
            if engine.healthy:
                self._judge(engine, now)
            elif engine.is_stalled:
                self._try(engine, now)
            elif engine.outage is not None and not engine.outage.is_silence:
                engine.liveness.comes(now)  # it may be started anew

    def _judge(self, engine: Engine, now: float) -> None:
        live, awake = engine.liveness, self._awake
        if live.is_silent(now, awake):
            assert live.asked is not None
            since = max(live.asked, awake)
            slowest = live.answers.seconds(now)
            error = f"no answer for {now - since:.1f} s; its slowest of late took {slowest:.1f} s"
            self._give_up(engine, Outage(OutageKind.SILENT, since, live.answered, error), now)
            return
        works = self._has_work(engine)
        expected = self._expected(engine) if works else 0.0
        self._note_progress(engine, now, expected)
        live.has_work(now, works=works)
        if not works:
            return
        if not live.is_quiet(now, awake, expected):
            return
        since = live.quiet_since(awake)
        if live.is_stalled(now, awake, expected):
            what = "no token came" if live.has_generated else "it has not computed a token yet"
            error = f"{what} for {duration(now - since)}, though it has requests"
            self._give_up(engine, Outage(OutageKind.STALLED, since, live.progressed, error), now)
        else:
            self._try(engine, now)

    def _give_up(self, engine: Engine, outage: Outage, now: float) -> None:
        if not self._is_witnessed(engine, outage.since) and now - outage.since < PATIENT_SECONDS:
            return
        engine.warned = True
        log.warning("%s", down_words(engine.name, engine.url, outage))
        self._fleet.is_down(engine, outage)

    def _is_witnessed(self, late: Engine, since: float) -> bool:
        """Whether another engine has answered since; if none has, all are asked."""
        others = [each for each in self._fleet.engines if each.healthy and each is not late]
        if any((each.liveness.answered or 0.0) > since for each in others):
            return True
        for other in others:
            self._ask(other)
        return False

    def _note_progress(self, engine: Engine, now: float, expected: float | None) -> None:
        live, awake = engine.liveness, self._awake
        if engine.load is not live.load:
            before = live.load
            live.has_told(engine.load, expected)
            if before is None or before.generated is None:
                return  # what an engine tells first is no progress
            if engine.load.computed != before.computed:
                generated = engine.load.generated != before.generated
                live.has_progressed(now, awake, generated=generated)
        elif live.progressed is not None and engine.has_told_since(live.progressed):
            live.has_progressed(now, awake, generated=False)

    def _expected(self, engine: Engine) -> float | None:
        """Seconds that its prompts should take; None: it has some that nobody here knows."""
        return (
            None if self._fleet.table.has_others(engine) else self._fleet.expected_seconds(engine)
        )

    def _has_work(self, engine: Engine) -> bool:
        """Whether its core has something to do, and shows that it does it. What waits there may
        wait for something else, as for a grammar or another engine's blocks: a try tells. A
        suspended engine need not show anything."""
        load = engine.load
        if engine.suspension is not None:
            return False
        if load.generated is None or engine.liveness.takes_no_tries:
            return False
        return bool(load["running"] or load["waiting"]) or self._fleet.table.has_requests(engine)

    # tries

    def _try(self, engine: Engine, now: float) -> None:
        if engine.liveness.tried is None:
            engine.liveness.tried = now
            self._tries.spawn(self._ask_for_token(engine))

    async def _ask_for_token(self, engine: Engine) -> None:
        live, loop = engine.liveness, asyncio.get_running_loop()
        try:
            status = await self._token_status(engine)
        except UpstreamError:
            return  # how its API is, others find out
        finally:
            live.tried = None
        if status >= 500:
            return
        live.takes_no_tries = status != 200
        live.has_answered_try(loop.time())
        if engine.is_stalled:
            self._fleet.is_up(engine)

    async def _token_status(self, engine: Engine) -> int:
        model = next((card.name for card in engine.base_models), "")
        body = msgspec.json.encode({"model": model, "prompt": "1", "max_tokens": 1})
        status, _ = await self._client.post(
            *(engine.url, COMPLETION, body, engine.headers), seconds=TRY_SECONDS
        )
        return status
