"""Engines that an operator takes out: no new requests, and first their warm prefixes to others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from inferway.config import ServeSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_client import EngineClient
from inferway.fleet.hand_over import HandOver, HandOverState, Progress, why_none
from inferway.metrics import Family, counter, gauge
from inferway.model import Endpoint
from inferway.openai_api.requests import COMPLETION
from inferway.routing.director import Director
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.warm_prefixes import WarmPrefixes
from inferway.tasks import Tasks

LEG_SECONDS = 30.0  # that one leg of a move may take

_TOKENS = "tokens"

log = logging.getLogger("inferway.admin")


class HandsOver(Protocol):
    """Other processes, which have the prompts of recent requests, and hand over what is warm."""

    def drain(self, engine: str, seconds: float) -> None:
        """Hand over what the engine holds, for so long at most."""

    def resume(self, engine: str) -> None:
        """Hand over no more of it."""

    def move_streams(self, engine: str, seconds: float | None) -> None:
        """After so many seconds have other engines go on with its streams; None: never."""

    def progress(self, engine: str) -> Progress | None:
        """Return what has become of it, in all of them; None if it was not asked for."""


class Draining:
    """`drain` and `resume` engines; `close` stops what is handed over."""

    def __init__(
        self,
        settings: ServeSettings,
        director: Director,
        client: EngineClient,
        standing: OutlierDetection,
        warm: WarmPrefixes,
        worth: Callable[[str], float],
        on_change: Callable[[], None] | None = None,
        others: HandsOver | None = None,
    ) -> None:
        """`warm` observes the director's requests, unless the settings are against it;
        `worth`: of an engine's cache, in tokens. `on_change`: who is drained has changed.
        `others`: who hands over in place of this process."""
        self.standing = standing
        self.worth = worth
        self.on_change = on_change or _nothing
        self.others = others
        # has other engines go on with what one streams, and returns with how many answers
        self.moves: Callable[[str], int] | None = None
        self.since: dict[str, float] = {}  # by drained engine, by `time.monotonic`
        self._moving: dict[str, asyncio.TimerHandle] = {}  # by engine
        self._director = director
        self._client = client
        self._warm = warm
        self._seconds = settings.kv_transfer.hand_over_seconds  # 0: no prompts are kept
        self._margin = settings.kv_transfer.lease_margin_seconds
        self._of: dict[str, Progress] = {}  # by engine, of the last time
        self._tasks: dict[str, Tasks] = {}  # by engine
        self._past: Counter[tuple[str, str]] = Counter()  # counts of earlier times

    def drain(
        self, engine: Engine, seconds: float | None = None, streams_after: float | None = None
    ) -> None:
        """Give the engine no new requests, and let it hand over for so long at most. If it does so
        already, that goes on as it was. `streams_after`: so many seconds later, other engines go on
        with what it still streams; None: it ends its answers itself."""
        name, last = engine.name, self.progress(engine.name)
        self.standing.drained.add(name)
        self.since.setdefault(name, time.monotonic())
        self.on_change()
        self.move_streams(name, streams_after)
        if last is not None and last.is_running:
            log.info("engine %s is drained already, and hands over its warm prefixes", name)
            return
        self._forget(name)
        given = self._seconds if seconds is None else seconds
        why = self._why_none(engine, given)
        if why is not None:
            self._of[name] = Progress(HandOverState.NONE, why)
            log.info("engine %s is drained; it hands over nothing: %s", name, why)
            return
        if self.others is not None:
            self.others.drain(name, given)
            return
        ends_at = self._director.clock() + given
        self._of[name] = progress = Progress(HandOverState.RUNNING, ends_at=ends_at)
        log.info(
            "engine %s is drained; it hands over its warm prefixes for %g s at most", name, given
        )
        tasks = self._tasks[name] = Tasks(log, f"engine {name} hands over no more, by our fault")
        handing = HandOver(engine, self._director, self._ask, progress, self._margin)
        tasks.spawn(handing.run(self._warm.prefixes()))

    async def _ask(self, endpoint: Endpoint, body: bytes, request_id: str) -> tuple[int, bytes]:
        headers = [*endpoint.headers, (b"x-request-id", request_id.encode())]
        return await self._client.post(endpoint.url, COMPLETION, body, headers, LEG_SECONDS)

    async def resume(self, engine: Engine) -> None:
        """Give the engine new requests; what it was handing over stays with it."""
        tasks = self._tasks.pop(engine.name, None)
        if tasks is not None:
            await tasks.close()
        self._forget(engine.name)
        self.move_streams(engine.name, None)
        if self.others is not None:
            self.others.resume(engine.name)
        self.standing.drained.discard(engine.name)
        self.since.pop(engine.name, None)
        self.on_change()
        log.info("engine %s gets requests again", engine.name)

    def move_streams(self, engine: str, seconds: float | None) -> None:
        """After so many seconds have other engines go on with what this one streams; None: never,
        whatever was asked for before."""
        if self.others is not None:
            self.others.move_streams(engine, seconds)
            return
        timer = self._moving.pop(engine, None)
        if timer is not None:
            timer.cancel()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._moving[engine] = loop.call_later(seconds, self._move, engine)

    def _move(self, engine: str) -> None:
        del self._moving[engine]
        number = 0 if self.moves is None else self.moves(engine)
        log.info("engine %s is drained; other engines go on with %d of its streams", engine, number)

    def progress(self, engine: str) -> Progress | None:
        """Return what has become of an engine's warm prefixes; None if it is not drained."""
        found = None if self.others is None else self.others.progress(engine)
        return self._of.get(engine) if found is None else found

    def all_progress(self) -> dict[str, Progress]:
        """Return what has become of the warm prefixes of drained engines, as of now."""
        return {name: replace(progress) for name, progress in self._of.items()}

    def told(self, engine: Engine) -> dict[str, Any] | None:
        """Return what /admin/engines shows of it; None if the engine is not drained."""
        progress = self.progress(engine.name)
        if progress is None or engine.name not in self.standing.drained:
            return None
        left = progress.ends_at - self._director.clock() if progress.is_running else 0.0
        return {
            "state": progress.state,
            "why": progress.why or None,
            "handed_over": progress.handed_over,
            "left": progress.left,
            "failed": progress.failed,
            "skipped": progress.skipped,
            "tokens": progress.tokens,
            "seconds_left": round(max(0.0, left), 3),
        }

    async def close(self) -> None:
        """Stop what is handed over. Blocks of which only one leg was asked for are kept by their
        engine until their lease ends."""
        for timer in self._moving.values():
            timer.cancel()
        for tasks in self._tasks.values():
            await tasks.close()

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of it."""
        counts = self._past.copy()
        for name, progress in self._of.items():
            counts.update(_counts(name, progress))
        tokens = {(name,): number for (name, what), number in counts.items() if what == _TOKENS}
        outcomes = {key: number for key, number in counts.items() if key[1] != _TOKENS}
        yield counter(
            "hand_over_prefixes",
            "Warm prefixes of a drained engine, by outcome: another engine has fetched them"
            " (handed-over), or has them already or they are gone (skipped), or has not got them"
            " (failed).",
            ["engine", "outcome"],
            outcomes,
        )
        yield counter(
            "hand_over_tokens",
            "Tokens of warm prefixes that other engines have fetched from the drained engine.",
            ["engine"],
            tokens,
        )
        yield gauge(
            "hand_over_left",
            "Warm prefixes that the drained engine has not handed over.",
            ["engine"],
            {(name,): progress.left for name, progress in self._of.items()},
        )
        yield gauge(
            "warm_prefixes",
            "Recent prompts that are kept as token ids, for an engine that will be drained.",
            value=len(self._warm),
        )
        yield gauge(
            "warm_prefix_bytes",
            "Bytes of the recent prompts that are kept as token ids.",
            value=self._warm.num_bytes,
        )

    def _forget(self, engine: str) -> None:
        progress = self._of.pop(engine, None)
        if progress is not None:
            self._past.update(_counts(engine, progress))

    def _why_none(self, engine: Engine, seconds: float) -> str | None:
        if not self._seconds:
            return "kv_transfer.hand_over_seconds is 0"
        if not seconds:
            return "it is given 0 s"
        return why_none(self._director, engine)


def _counts(engine: str, progress: Progress) -> dict[tuple[str, str], int]:
    """What is counted of it for good."""
    counts = {
        "handed-over": progress.handed_over,
        "failed": progress.failed,
        "skipped": progress.skipped,
        _TOKENS: progress.tokens,
    }
    return {(engine, what): number for what, number in counts.items()}


def _nothing() -> None:
    """Nobody wants to know."""
