"""The seam for what watches: what looks at requests and answers, counts them, or has numbers on
/metrics, and decides nothing.

A gateway has a list of extensions: its own (`app`), and those of installed packages (ENTRY_POINTS;
docs/extensions.md has an example). It calls of each only the methods that it has of its own
(`methods`), so that one that counts answers costs nothing while a request is decided. Answers
that have ended are put aside (`Tap`), and shown to extensions together.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec

from inferway.config import ServeSettings
from inferway.errors import ClientGoneError, ConfigError, RequestError
from inferway.fleet.fleet import Fleet
from inferway.kv.index.protocol import Index
from inferway.metrics import Family
from inferway.model import Alarm
from inferway.routing.journey import Routed
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.record import Record
from inferway.scheduling.plugin import RequestListener
from inferway.scheduling.scheduling import Scheduling

log = logging.getLogger("inferway")

ENTRY_POINTS = "inferway.extensions"
MOST_WAITING = 64  # answers: what is done for one takes 20 to 40 µs, and others wait meanwhile
# Paths that a load balancer, Kubernetes or Prometheus asks again and again.
PROBES = frozenset({"/health", "/ready", "/metrics", "/ping"})
_KUBE = b"kube-probe/"

CLIENT_GONE = 499  # the status of an answer whose client had gone: nginx's number for it

OURS = "inferway"  # the distribution whose extensions tests hold to what they promise


class EndedAnswer(msgspec.Struct):
    """An answer that has ended, of whichever frontend."""

    client: str  # the client's address without its port; empty where it is not known
    method: str
    path: str  # of the request, without its query, of any length
    user_agent: bytes  # the request's header, of any length; empty without one
    request_id: str
    traceparent: bytes | None  # the span that the answer belongs to; None: it is not known
    status: int  # HTTP's; 0 or CLIENT_GONE if the client has gone before there was one
    outcome: str  # as scheduling.plugin.RequestOutcome has it; empty: the status says it all
    at: float  # the Unix time of its end
    seconds: float  # from the complete request to its end
    body_bytes: int | None  # of the answer; None: they did not pass here
    record: Record | None  # what the request's journey has found out; None: there was none
    span: Any = None  # the request's telemetry.tracing.RequestSpan; None: there is none


def is_probe(path: str, user_agent: bytes) -> bool:
    """Return whether the client is a probe or a scraper, which asks every few seconds how we are,
    or for our numbers."""
    return path in PROBES or user_agent.startswith(_KUBE)


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a request that `error` has kept from coming as far as an engine."""
    if isinstance(error, (ClientGoneError, CancelledError)):
        return "client_gone"
    return "refused" if isinstance(error, RequestError) else "error"


class Tap:
    """The answers that have ended and that extensions have not seen yet: they see many at once, and
    not while a client waits for the next answer."""

    def __init__(self, extensions: Sequence[Extension]) -> None:
        """`extensions` may become more until the first answer."""
        self._extensions = extensions
        self._waiting: list[EndedAnswer] = []

    def add(self, answer: EndedAnswer) -> None:
        """Take an answer that has ended. With MOST_WAITING extensions see all."""
        waiting = self._waiting
        waiting.append(answer)
        if len(waiting) >= MOST_WAITING:
            self.drain()

    def drain(self) -> None:
        """Show extensions what waits: called each second, and before their figures are read."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for extension in self._extensions:
            extension.on_answers(waiting)

    def flush(self) -> None:
        """Drain, and let extensions do what they have put aside."""
        self.drain()
        for extension in self._extensions:
            extension.flush()


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of a gateway that an extension may read, and does not change."""

    settings: ServeSettings
    fleet: Fleet
    clock: Callable[[], float]  # that a Record's times are of
    index: Index
    standing: OutlierDetection
    scheduling: Scheduling
    picks: bool = False  # it says to a proxy where requests go, and forwards none
    process: Literal["alone", "hub", "worker"] = "alone"  # a hub has workers to answer requests
    drain: Callable[[], None] = lambda: None  # shows extensions the answers that wait (Tap)

    @property
    def is_worker(self) -> bool:
        """True if another process answers admins, and writes files."""
        return self.process == "worker"


class Snapshot(NamedTuple):
    """A part of what an extension of one process knows, for the same extension of another."""

    data: bytes
    until: int = 0  # the number that the next snapshot begins behind; 0: each one has everything


class Extension:
    """Each method has a default that does nothing. All are called on the event loop: none of them
    may wait, or take longer than some microseconds for each request."""

    __slots__ = ()

    name: ClassVar[str] = ""  # of one with a snapshot: the same in all processes, and no other's

    async def start(self, parts: Any, /) -> None:
        """Called before the gateway takes requests. `parts` (http.extension_parts.ExtensionParts)
        is what answers may be made of. Raises ConfigError."""

    async def listen(self) -> None:
        """Called once the gateway knows its engines: open ports of its own. Raises ConfigError."""

    async def stop(self) -> None:
        """End the answers that would not end by themselves, and close ports of its own; called
        first when the gateway stops."""

    async def close(self) -> None:
        """Called once the last answer has ended, if `start` was."""

    def on_request(self, routed: Routed, seconds: float) -> RequestListener | None:
        """A request was decided by its prompt, in so many seconds. Return who is told what becomes
        of it; None: nobody."""

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        """Answers have ended, one way or another, in this order; called with all of the last
        second, or with MOST_WAITING."""

    def flush(self) -> None:
        """Called each second, and at the end: what was put aside is to be done now."""

    def families(self) -> Iterable[Family]:
        """Return its metric families, with the numbers of now; called for each scrape."""
        return ()

    def routes(self) -> Mapping[str, Any]:
        """Return its paths, each with its http.extension_parts.Route; one that ends with `/` stands
        for all below it. Called after `start`."""
        return {}

    def alarms(self) -> Iterable[Alarm]:
        """Return what should not be so, with its cure: for the page and /admin/alarms."""
        return ()

    def snapshot(self, since: int) -> Snapshot | None:  # noqa: ARG002
        """Return what the process that answers admins needs to show what this one knows; None: it
        needs nothing. Called when somebody looks. `since`: the `until` of the last snapshot that
        the other process has taken; 0: it has taken none."""
        return None

    def merge(self, parts: Sequence[bytes]) -> None:
        """Take the newest snapshots of all other processes, in place of those before, or where they
        have numbers, behind those."""

    def needs_snapshots(self) -> bool:
        """Return whether it needs the snapshots of other processes each second, and not only for a
        request below /admin/."""
        return False

    def has(self, method: str) -> bool:
        """Return whether it has the method of its own."""
        return getattr(type(self), method) is not getattr(Extension, method)


def snapshots(extensions: Iterable[Extension], since: Mapping[str, int]) -> dict[str, Snapshot]:
    """Return the snapshots of those that have one, by their names. `since`: by the same names."""
    found = {
        each.name: each.snapshot(since.get(each.name, 0))
        for each in extensions
        if each.has("snapshot")
    }
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}


def merge(extensions: Iterable[Extension], told: Sequence[Mapping[str, Snapshot]]) -> None:
    """Hand the snapshots of other processes to the extensions of their names."""
    for each in extensions:
        if each.has("merge"):
            each.merge([parts[each.name].data for parts in told if each.name in parts])


def methods(extensions: Iterable[Extension], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the methods of that name, of those that have one of their own."""
    return tuple(getattr(each, name) for each in extensions if each.has(name))


def installed(core: Core) -> Sequence[Extension]:
    """Return the extensions of installed packages: their entry points are called with `core`, and
    return one or several, or None where the settings need none. Raises ConfigError for an entry
    point that cannot be loaded, fails, or returns something else."""
    found: list[Extension] = []
    for entry in entry_points(group=ENTRY_POINTS):
        distribution = entry.dist.name if entry.dist else "a package"
        where = f"entry point {entry.name!r} of {distribution}"
        try:
            made = entry.load()(core)
        except Exception as e:
            raise ConfigError(f"{where}: {entry.value} fails: {type(e).__name__}: {e}") from e
        several = made if isinstance(made, Sequence) else [] if made is None else [made]
        for each in several:
            if not isinstance(each, Extension):
                raise ConfigError(
                    f"{where}: {entry.value} returns a {type(each).__name__}, not an Extension "
                    "(inferway.extension)"
                )
        if distribution == OURS:
            found += several
        elif several:
            log.info("the extension %r watches", entry.name)
            found += [_Installed(each, entry.name) for each in several]
    return found


class _Installed(Extension):
    """An extension of another package: where it fails, requests do not, and it is not called
    again."""

    __slots__ = ("_extension", "_has_failed", "name")

    def __init__(self, extension: Extension, name: str) -> None:
        self._extension = extension
        self.name = name  # type: ignore[misc]  # each has its own
        self._has_failed = False

    def has(self, method: str) -> bool:
        return self._extension.has(method)

    async def start(self, parts: Any, /) -> None:
        try:
            await self._extension.start(parts)
        except Exception as e:
            raise ConfigError(f"extension {self.name!r} cannot start: {e}") from e

    async def listen(self) -> None:
        try:
            await self._extension.listen()
        except Exception as e:
            raise ConfigError(f"extension {self.name!r} cannot listen: {e}") from e

    async def stop(self) -> None:
        try:
            await self._extension.stop()
        except Exception:
            self._fails()

    async def close(self) -> None:
        try:
            await self._extension.close()
        except Exception:
            self._fails()

    def on_request(self, routed: Routed, seconds: float) -> None:
        """Call the extension. The listener that it may return is not used: the data path would call
        it."""
        self._call("on_request", routed, seconds)

    def on_answers(self, answers: Sequence[EndedAnswer], /) -> None:
        self._call("on_answers", answers)

    def flush(self) -> None:
        self._call("flush")

    def families(self) -> Iterable[Family]:
        return list(self._call("families") or ())

    def routes(self) -> Mapping[str, Any]:
        return self._call("routes") or {}

    def alarms(self) -> Iterable[Alarm]:
        return list(self._call("alarms") or ())

    def snapshot(self, since: int) -> Snapshot | None:
        found = self._call("snapshot", since)
        return found if isinstance(found, Snapshot) else None

    def merge(self, parts: Sequence[bytes]) -> None:
        self._call("merge", parts)

    def needs_snapshots(self) -> bool:
        return bool(self._call("needs_snapshots"))

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._has_failed:
            return None
        try:
            return getattr(self._extension, method)(*arguments)
        except Exception:
            self._fails()
            return None

    def _fails(self) -> None:
        self._has_failed = True
        log.exception("the extension %r has failed, and is not called again", self.name)
