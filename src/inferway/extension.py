"""The seam for what watches: what looks at requests and answers, counts them, or has numbers on
/metrics, and decides nothing.

A gateway has a list of extensions: its own (`app`), and those of installed packages (ENTRY_POINTS;
docs/extensions.md has an example). It calls of each only the methods that it has of its own
(`methods`), so that one that counts answers costs nothing while a request is decided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, ClassVar, Protocol

from inferway.config import ServeSettings
from inferway.errors import ConfigError
from inferway.fleet.fleet import Fleet
from inferway.metrics import Family
from inferway.routing.journey import Routed
from inferway.routing.record import Record
from inferway.scheduling.plugin import RequestListener

log = logging.getLogger("inferway")

ENTRY_POINTS = "inferway.extensions"


class EndedAnswer(Protocol):
    """An answer that has ended (http.responder.Responder, ext_proc.noted.Noted)."""

    @property
    def client(self) -> str:
        """The client's address without its port; empty where it is not known."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """The request's path without its query, of any length."""

    @property
    def user_agent(self) -> bytes:
        """The request's header, of any length; empty without one."""

    @property
    def request_id(self) -> str: ...
    @property
    def traceparent(self) -> bytes | None:
        """The span that the answer belongs to (W3C trace context); None if it is not known."""

    @property
    def status(self) -> int:
        """The HTTP status; 0 or CLIENT_GONE if the client has gone before there was one."""

    @property
    def outcome(self) -> str:
        """How it ended, in the words of scheduling.plugin.RequestOutcome; empty: the status says
        it all."""

    @property
    def seconds(self) -> float:
        """The time since the request was complete."""

    @property
    def body_bytes(self) -> int | None:
        """The bytes of the answer's body; None if they did not pass here."""

    @property
    def record(self) -> Record | None:
        """What the request's journey has found out; None if it has made none."""

    @property
    def span(self) -> Any:
        """The request's telemetry.tracing.RequestSpan; None if it has none."""


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of a gateway that an extension may read, and does not change."""

    settings: ServeSettings
    fleet: Fleet
    clock: Callable[[], float]  # that a Record's times are of


class Extension:
    """Each method has a default that does nothing. All are called on the event loop: none of them
    may wait, or take longer than some microseconds for each request."""

    __slots__ = ()

    name: ClassVar[str] = ""  # of one with a snapshot: the same in all processes, and no other's

    async def start(self) -> None:
        """Called before the gateway takes requests."""

    async def close(self) -> None:
        """Called once the last answer has ended, if `start` was."""

    def on_request(self, routed: Routed, seconds: float) -> RequestListener | None:
        """A request was decided by its prompt, in so many seconds. Return who is told what becomes
        of it; None: nobody."""

    def on_answer(self, answer: EndedAnswer, /) -> None:
        """An answer has ended, one way or another; `answer` is to be read at once."""

    def flush(self) -> None:
        """Called each second, and at the end: what was put aside is to be done now."""

    def families(self) -> Iterable[Family]:
        """Return its metric families, with the numbers of now; called for each scrape."""
        return ()

    def snapshot(self) -> bytes | None:
        """Return what the process that answers admins needs to show what this one knows; None: it
        needs nothing. Called when somebody looks."""
        return None

    def merge(self, parts: Sequence[bytes]) -> None:
        """Take the newest snapshots of all other processes, in place of those before."""

    def has(self, method: str) -> bool:
        """Return whether it has the method of its own."""
        return getattr(type(self), method) is not getattr(Extension, method)


def snapshots(extensions: Iterable[Extension]) -> dict[str, bytes]:
    """Return the snapshots of those that have one, by their names."""
    found = {each.name: each.snapshot() for each in extensions if each.has("snapshot")}
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}


def merge(extensions: Iterable[Extension], told: Sequence[Mapping[str, bytes]]) -> None:
    """Hand the snapshots of other processes to the extensions of their names."""
    for each in extensions:
        if each.has("merge"):
            each.merge([parts[each.name] for parts in told if each.name in parts])


def methods(extensions: Iterable[Extension], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the methods of that name, of those that have one of their own."""
    return tuple(getattr(each, name) for each in extensions if each.has(name))


def installed(core: Core) -> Sequence[Extension]:
    """Return the extensions of installed packages: their entry points are called with `core`, and
    return one, or None where the settings need none. Raises ConfigError for an entry point that
    cannot be loaded, fails, or returns something else."""
    found: list[Extension] = []
    for entry in entry_points(group=ENTRY_POINTS):
        where = f"entry point {entry.name!r} of {entry.dist.name if entry.dist else 'a package'}"
        try:
            made = entry.load()(core)
        except Exception as e:
            raise ConfigError(f"{where}: {entry.value} fails: {type(e).__name__}: {e}") from e
        if made is None:
            continue
        if not isinstance(made, Extension):
            raise ConfigError(
                f"{where}: {entry.value} returns a {type(made).__name__}, not an Extension "
                "(inferway.extension)"
            )
        log.info("the extension %r watches", entry.name)
        found.append(_Installed(made, entry.name))
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

    async def start(self) -> None:
        try:
            await self._extension.start()
        except Exception as e:
            raise ConfigError(f"extension {self.name!r} cannot start: {e}") from e

    async def close(self) -> None:
        try:
            await self._extension.close()
        except Exception:
            self._fails()

    def on_request(self, routed: Routed, seconds: float) -> None:
        """Call the extension. The listener that it may return is not used: the data path would call
        it."""
        self._call("on_request", routed, seconds)

    def on_answer(self, answer: EndedAnswer, /) -> None:
        self._call("on_answer", answer)

    def flush(self) -> None:
        self._call("flush")

    def families(self) -> Iterable[Family]:
        return list(self._call("families") or ())

    def snapshot(self) -> bytes | None:
        found = self._call("snapshot")
        return found if isinstance(found, bytes) else None

    def merge(self, parts: Sequence[bytes]) -> None:
        self._call("merge", parts)

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
