"""The line of the log for an engine that answers: what it serves when it does so first, and after
an outage how long that was and what is left of its cache."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from inferway.fleet.engine import Engine
from inferway.fleet.outage import Outage, back_words, cache_words
from inferway.kv.events.stream import StreamState

SETTLE_SECONDS = 5.0  # that an engine's events may take to show what its cache holds

_UNSETTLED = (StreamState.STALE, StreamState.REPAIRING)

log = logging.getLogger("inferway.fleet")


class UpLog:
    """Logs once for each time. `num_blocks`: how many an engine is believed to hold."""

    def __init__(self, num_blocks: Callable[[Engine], int]) -> None:
        self._num_blocks = num_blocks
        # Those that are back, and whose events do not show yet what they hold.
        self._unsettled: dict[str, tuple[Outage, float, asyncio.TimerHandle]] = {}
        self._newer: set[str | None] = set()  # versions that the log has named

    def up(self, engine: Engine, *, follows_events: bool) -> None:
        """The engine answers, first or again. What it was before is in it still."""
        self._name_newer(engine)
        if engine.up_since is None or engine.outage is None:
            log.info("%s", _serves(engine, follows_events=follows_events))
            return
        outage, now = engine.outage, time.monotonic()
        if not engine.streams or _is_settled(engine):
            self._say(engine, outage, now)
            return
        self._forget(engine)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(SETTLE_SECONDS, self._settled, engine)
        self._unsettled[engine.name] = outage, now, timer

    def _name_newer(self, engine: Engine) -> None:
        newer = None if engine.facts is None else engine.facts.newer_than_known
        if engine.facts is not None and newer is not None:
            if engine.facts.version not in self._newer:
                log.warning("engine %s: %s", engine.name, newer)
            self._newer.add(engine.facts.version)

    def state_changed(self, engine: Engine) -> None:
        """The state of one of the engine's event streams is another now."""
        if engine.name in self._unsettled and _is_settled(engine):
            self._settled(engine)

    def close(self) -> None:
        """Say no more."""
        for _, _, timer in self._unsettled.values():
            timer.cancel()
        self._unsettled.clear()

    def _settled(self, engine: Engine) -> None:
        outage, now, timer = self._unsettled.pop(engine.name)
        timer.cancel()
        self._say(engine, outage, now)

    def _forget(self, engine: Engine) -> None:
        known = self._unsettled.pop(engine.name, None)
        if known is not None:
            known[2].cancel()

    def _say(self, engine: Engine, outage: Outage, now: float) -> None:
        blocks = self._num_blocks(engine) if engine.streams else None
        cache = cache_words(blocks, is_certain=_is_settled(engine))
        log.info("%s", back_words(engine.name, outage, now, cache))


def _is_settled(engine: Engine) -> bool:
    return all(stream.state not in _UNSETTLED for stream in engine.streams)


def _serves(engine: Engine, *, follows_events: bool) -> str:
    events = ", ".join(source.endpoint for source in engine.sources) or "none"
    if not follows_events:
        events = "that are not followed"
    size = engine.block_size or "unknown (give block_size=N)"
    words = f"engine {engine.name} serves {', '.join(engine.model_names)}, with block size {size}"
    words += f" and KV events {events}"
    hands = engine.kv_transfer
    if hands is not None:
        words += f"; it hands over KV blocks by {hands.connector}: {hands.role}"
    return words
