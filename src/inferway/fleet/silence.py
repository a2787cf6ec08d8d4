"""Finds the engines that say nothing any more, by the rules of `liveness`. One whose core computes
nothing is asked for a token, once at a time, until one comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from inferway.errors import UpstreamError
from inferway.fleet.engine import Engine
from inferway.fleet.http_client import post
from inferway.fleet.liveness import PATIENT_SECONDS
from inferway.fleet.outage import Outage, OutageKind, duration
from inferway.fleet.outage_words import down_words
from inferway.openai_api.requests import COMPLETION
from inferway.tasks import Tasks

if TYPE_CHECKING:
    from inferway.fleet.fleet import Fleet

STOOD_STILL_SECONDS = 1.0  # that this process was away for, between two looks at the engines
TRY_SECONDS = 60.0  # that the answer to a try is waited for

log = logging.getLogger("inferway.fleet")


class SilenceWatch:
    """`open` it, then `look` again and again, `close` it when done."""

    def __init__(self, fleet: Fleet, ask: Callable[[Engine], None]) -> None:
        """`ask` has an engine asked at once how it is: whether others answer, too."""
        self._fleet = fleet
        self._ask = ask
        self._session: aiohttp.ClientSession | None = None
        self._looked = self._awake = 0.0
        self._tries = Tasks(log, "an engine was not tried, by a fault of the gateway")

    @property
    def awake(self) -> float:
        """Since when this process goes on, by the loop's clock."""
        return self._awake

    def open(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._looked = self._awake = asyncio.get_running_loop().time()

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
        wait for something else, as for a grammar or another engine's blocks: a try tells."""
        load = engine.load
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
        assert self._session is not None
        headers = engine.http_headers
        status, _ = await post(
            *(self._session, engine.url, COMPLETION, body), headers=headers, seconds=TRY_SECONDS
        )
        return status
