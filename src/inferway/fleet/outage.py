"""The state of an engine, and since when; why it gets no requests because of what it lets us hear;
and what people are told of it: what is wrong, what that means for requests, what to do first, and
what is left of its cache when it answers again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from inferway.kv.events.stream import StreamState
from inferway.routing.limits.circuit_breaker import BreakerState
from inferway.routing.limits.outlier_detection import Affected, OutlierDetection

if TYPE_CHECKING:
    from inferway.fleet.engine import Engine

SETTLE_SECONDS = 5.0  # that an engine's events may take to show what its cache holds
_UNSETTLED = (StreamState.STALE, StreamState.REPAIRING)

log = logging.getLogger("inferway.fleet")


class OutageKind(StrEnum):
    """The sign by which an engine counts as out."""

    UNREACHABLE = "unreachable"  # the connection is refused, or lost
    SILENT = "silent"  # its API takes what it is asked, and does not answer
    STALLED = "stalled"  # its API answers, and its core computes nothing
    INVALID = "invalid"  # it answers, but not as an engine does


ALERTS = "https://github.com/inferway/inferway/blob/main/docs/alerts.md"


class _OutageText(NamedTuple):
    """What people are told of an outage of a kind: by logs, /ready, the page and the doctor."""

    words: str
    steps: tuple[str, str]  # to be taken first; the first is a command where one helps
    place: str  # in the page of alerts


_SAID = {
    OutageKind.UNREACHABLE: _OutageText(
        "cannot be reached",
        (
            "see whether the process runs (kubectl get pod, systemctl status); if not, its log says"
            " why it ended: start it",
            "if it runs, try from this machine: curl -m 5 {url}/health; host, port or a firewall"
            " are wrong",
        ),
        "inferwayenginedown",
    ),
    OutageKind.SILENT: _OutageText(
        "does not answer",
        (
            "try from this machine: curl -m 5 {url}/health; if that hangs too, ask its node (ping,"
            " kubectl get node)",
            "if the node answers, the process stands still: see where (py-spy dump, dmesg), and"
            " restart it",
        ),
        "inferwayenginesilent",
    ),
    OutageKind.STALLED: _OutageText(
        "answers, but computes nothing",
        (
            "look at the GPUs (nvidia-smi; dmesg for Xid errors) and at the end of the engine's"
            " log",
            "restart it: its API answers, and nothing is computed behind it",
        ),
        "inferwayenginestalled",
    ),
    OutageKind.INVALID: _OutageText(
        "answers, but not as an engine does",
        (
            "see what answers there: curl -m 5 {url}/v1/models",
            "correct the URL in the list of engines, or the engine's API key (api_key_env)",
        ),
        "inferwayenginedown",
    ),
}
WORDS = {kind: said.words for kind, said in _SAID.items()}


class Outage(msgspec.Struct, frozen=True):
    """An outage of one engine. Times in seconds, by `time.monotonic`, which is the loop's clock and
    the same in all processes of a machine."""

    kind: OutageKind
    since: float  # the first sign of it: when what is unanswered was asked, or it last computed
    heard: float | None  # when it last answered, or computed; None: it has not been heard yet
    error: str  # the last one, as who reads it needs it
    is_refused: bool = False  # its connections were: its process has ended, and its cache with it

    @property
    def is_silence(self) -> bool:
        """True if requests at the engine wait in vain, although no connection breaks."""
        return self.kind in (OutageKind.SILENT, OutageKind.STALLED)

    def told(self, newer: Outage) -> Outage:
        """Return the same outage with what is heard of the engine now: it began when it began."""
        is_refused = self.is_refused or newer.is_refused
        return msgspec.structs.replace(
            self, kind=newer.kind, error=newer.error, is_refused=is_refused
        )

    def words(self, now: float) -> str:
        """Return what is wrong, and for how long, in one sentence without a name."""
        return f"{WORDS[self.kind]}, since {duration(now - self.since)}: {self.error}"


def duration(seconds: float) -> str:
    """Return a time span as people say it: `4 s`, `3 min 31 s`, `2 h 5 min`, `3 d 4 h`."""
    left = max(0, round(seconds))
    for unit, size, part, part_size in _UNITS:
        if left >= size:
            rest = left % size // part_size
            return f"{left // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{left} s"


_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))


def steps(kind: OutageKind, url: str) -> str:
    """Return the first two steps. `url`: the engine's, or that of one of them."""
    first, second = _SAID[kind].steps
    return f"(1) {first}; (2) {second}".format(url=url)


def page_of(kind: OutageKind) -> str:
    """Return the address of the section that says more."""
    return f"{ALERTS}#{_SAID[kind].place}"


def effect(affected: Affected) -> str:
    """Return what an outage means for requests, so far."""
    if not affected.failed and not affected.moved:
        return "no request has been hurt"
    requests = "request" if affected.failed == 1 else "requests"
    return f"{affected.failed:,} {requests} failed, {affected.moved} moved to other engines"


def since_words(since: float, now: float) -> str:
    """Return since when, as a time of day and as a span. Both are Unix times."""
    at, today = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(now, UTC)
    day = "" if at.date() == today.date() else f"{at:%Y-%m-%d} "
    return f"since {day}{at:%H:%M:%S} UTC ({duration(now - since)})"


def outage_words(outage: Outage, now: float, unix: float) -> str:
    """Return what is wrong and since when, without a name. `now`: by `time.monotonic`, at the Unix
    time `unix`."""
    since = since_words(unix - (now - outage.since), unix)
    return f"{WORDS[outage.kind]} {since}: {outage.error}"


def down_words(name: str, url: str, outage: Outage) -> str:
    """Return the line of the log for an engine that has just gone out."""
    return (
        f"engine {name} {WORDS[outage.kind]}: {outage.error}; it gets no requests, and those that"
        f" it has go to others; the gateway asks it again. What to do: {steps(outage.kind, url)}"
        f" ({page_of(outage.kind)})"
    )


class UpLog:
    """Logs once for each time that an engine answers: first what it serves, and after an outage how
    long that was and what is left of its cache. `num_blocks`: how many blocks an engine is believed
    to hold."""

    def __init__(self, num_blocks: Callable[[Engine], int]) -> None:
        self._num_blocks = num_blocks
        # Those that are back, and whose events do not show yet what they hold.
        self._unsettled: dict[str, tuple[Outage, float, asyncio.TimerHandle]] = {}
        self._newer: set[str | None] = set()  # versions that the log has named

    def up(self, engine: Engine, *, follows_events: bool) -> None:
        """Log, now or once its events settle, that the engine answers. `outage` is still set."""
        self._name_newer(engine)
        if engine.up_since is None or engine.outage is None:
            log.info("%s", _serves(engine, follows_events=follows_events))
            return
        outage, now = engine.outage, time.monotonic()
        if not engine.streams or _is_settled(engine):
            self._say(engine, outage, now)
            return
        if (known := self._unsettled.pop(engine.name, None)) is not None:
            known[2].cancel()
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

    def _say(self, engine: Engine, outage: Outage, now: float) -> None:
        cache, blocks = "", self._num_blocks(engine)
        if engine.streams and not _is_settled(engine):
            cache = "; what its cache holds is being found out"
        elif engine.streams:
            cache = f", its cache is as it was: {blocks:,} blocks" if blocks else ", cache empty"
        out = duration(now - outage.since)
        log.info("engine %s answers again after %s%s", engine.name, out, cache)


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


class EngineStanding(StrEnum):
    """The states of an engine; it is in one of them. Those that an outage puts it in have the names
    of `OutageKind`."""

    READY = "ready"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    STALLED = "stalled"
    INVALID = "invalid"
    UNHEARD = "unheard"  # it has not been asked to the end yet
    ASLEEP = "asleep"  # this and the next two: it is well, and suspended (`Suspension`)
    PAUSED = "paused"
    SCALING = "scaling"
    EJECTED = "ejected"  # it has failed too often
    DRAINED = "drained"  # by an operator, whether it answers or not


def state_of(engine: Engine, standing: OutlierDetection, now: float) -> EngineStanding:
    """Return the engine's state. `now`: by the clock of the failover, as in `since`."""
    if engine.name in standing.drained:
        return EngineStanding.DRAINED
    if not engine.healthy:
        outage = engine.outage
        return EngineStanding.UNHEARD if outage is None else EngineStanding(outage.kind.value)
    if engine.suspension is not None:
        return EngineStanding(engine.suspension.value)
    if standing.state(engine.name, now) is not BreakerState.CLOSED:
        return EngineStanding.EJECTED
    return EngineStanding.READY


def since(
    engine: Engine, standing: OutlierDetection, drained_since: Mapping[str, float], now: float
) -> float | None:
    """Return when the engine came into its state, by `time.monotonic`; None if that is not
    known."""
    state = state_of(engine, standing, now)
    if state is EngineStanding.DRAINED:
        return drained_since.get(engine.name)
    if state is EngineStanding.EJECTED:
        return standing.breakers[engine.name].since
    if engine.outage is not None:
        return engine.outage.since
    return engine.up_since if engine.suspension is None else engine.suspended_since


def count_states(
    engines: Iterable[Engine], standing: OutlierDetection, now: float
) -> dict[EngineStanding, int]:
    """Return how many engines are in each state; every state is there."""
    found = Counter(state_of(engine, standing, now) for engine in engines)
    return {state: found[state] for state in EngineStanding}
