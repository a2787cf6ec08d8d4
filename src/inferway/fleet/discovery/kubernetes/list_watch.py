"""One kind of object, listed and then watched for good.

list  -> everything, as of a version
watch -> changes since then, until the server ends it; then watch again from the last version
      expired (410)      list again at once: what was missed cannot be had otherwise
      connection broken  list again: who answers now may be a server that was restarted, whose
                         versions are lower, and a watch from one in the future would be silent
      429, 5xx           wait, as long as the server says, else twice as long each time
      401                read the token again
      403                say what is missing, and go on asking: somebody may grant it
      404                the kind is not installed: there are none of it; look again now and then

What is known stays known meanwhile: a cluster that cannot be asked is no reason to drop engines.

What a real server does (extproc.md, section 5): a watch is one JSON object a line, cut into chunks
anywhere; a resource version that is too old is an answer 200 with one event ERROR of code 410; what
no longer matches the selector is DELETED; a BOOKMARK carries a version and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from inferway.errors import InferwayError, WireError
from inferway.fleet.discovery.kubernetes.api import ApiError, ApiServer
from inferway.fleet.discovery.kubernetes.objects import Object
from inferway_structured.decoding import UNREADABLE

log = logging.getLogger("inferway.kubernetes")

WATCH_SECONDS = 240  # at least; up to half as long again, so that not all end together
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
NOT_INSTALLED_PAUSE = 60.0
MAX_LINE_BYTES = 8 << 20  # etcd itself takes objects of 1.5 MiB


class Event(msgspec.Struct):
    """One line of a Kubernetes watch."""

    type: str
    object: dict[str, Any]


_EVENT = msgspec.json.Decoder(Event)


class Expired(WireError):
    """The resource version is too old to watch from; the objects must be listed again."""


class WatchError(WireError):
    """The server ended the watch with another error."""


@dataclass(slots=True)
class WatchDecoder:
    """Decodes a watch's bytes, cut anywhere, into events."""

    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events whose lines are complete now. Raises WireError for a line that is no
        event."""
        self._rest += chunk
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if len(rest) > MAX_LINE_BYTES:
            raise WireError(f"a watch's line is over {MAX_LINE_BYTES} bytes")
        for line in lines:
            if line.strip():
                try:
                    yield _EVENT.decode(line)
                except UNREADABLE as e:
                    raise WireError(f"a watch's line is no event: {e}") from e


@dataclass(slots=True)
class Mirror:
    """The objects that exist, by namespace and name, as of `version`."""

    version: str = ""
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)

    def replace(self, items: list[Object], version: str) -> None:
        """Take what a list has said in the place of everything."""
        self.objects = {_key(item): item for item in items}
        self.version = version

    def apply(self, event: Event) -> bool:
        """Apply an event. Return whether what there is has changed. Raises Expired or
        WatchError."""
        if event.type == "ERROR":
            raise _error(event.object)
        self.version = event.object["metadata"]["resourceVersion"]
        if event.type == "BOOKMARK":
            return False
        key = _key(event.object)
        if event.type == "DELETED":
            return self.objects.pop(key, None) is not None
        self.objects[key] = event.object
        return True


def _key(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _error(status: Object) -> WireError:
    code, reason = status.get("code"), status.get("reason")
    kind = Expired if code == 410 or reason in ("Expired", "Gone") else WatchError
    return kind(f"{code} {reason}: {status.get('message')}")


@dataclass(slots=True)
class ListWatch:
    """`changed` is told all there is, whenever that has changed."""

    server: ApiServer
    path: str  # /api/v1/namespaces/NAME/pods
    changed: Callable[[list[Object]], None]
    selector: str = ""
    optional: bool = False  # of a kind that need not be installed
    watch_seconds: int = WATCH_SECONDS
    random: Random = field(default_factory=Random)
    sleep: Callable[[float], object] = asyncio.sleep
    synced: bool = False  # has been listed once
    _mirror: Mirror = field(default_factory=Mirror)
    _pause: float = 0.0
    _warned: str = ""

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        listed = False
        while True:
            try:
                if not listed:
                    await self._list()
                    listed = True
                await self._watch()
                self._pause = 0.0
            except Expired as e:
                log.info("following %s ended: %s; it is listed anew", self.path, e)
                listed = False
            except InferwayError as e:
                listed = False
                await self._wait(e)

    async def _list(self) -> None:
        items, version = await self.server.list(self.path, self.selector)
        self._mirror.replace(list(items), version)
        self.synced = True
        if self._warned:
            log.info("the API server answers again for %s", self.path)
            self._warned = ""
        self._tell()

    async def _watch(self) -> None:
        lines, mirror = WatchDecoder(), self._mirror
        seconds = self.watch_seconds + self.random.randint(0, self.watch_seconds // 2)
        async for chunk in self.server.watch(self.path, self.selector, mirror.version, seconds):
            changed = False
            try:
                for event in lines.feed(chunk):
                    changed |= mirror.apply(event)
            finally:
                if changed:
                    self._tell()

    def _tell(self) -> None:
        self.changed(list(self._mirror.objects.values()))

    async def _wait(self, error: InferwayError) -> None:
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
        pause = self._pause * (0.5 + self.random.random() / 2)
        code = error.answered if isinstance(error, ApiError) else 0
        if isinstance(error, ApiError):
            pause = error.again_in or pause
        if code == 401:
            self.server.access.renew()
        if code == 404 and self.optional:
            self._mirror.replace([], "")
            if not self.synced:
                self.synced = True
                self._tell()
            pause = NOT_INSTALLED_PAUSE
        else:
            self._warn(error, code)
        await self.sleep(pause)  # type: ignore[misc]

    def _warn(self, error: InferwayError, code: int) -> None:
        """Once for each way in which it fails."""
        words = str(error)
        if words == self._warned:
            return
        self._warned = words
        cure = ""
        if code == 403:
            cure = "; its service account must be allowed to get, list and watch them (deploy/)"
        level = logging.INFO if self.optional else logging.WARNING
        log.log(level, "%s%s; what is known stays, and it is asked again", words, cure)
