"""One kind of object, followed for good.

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
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from inferway.discovery.kubernetes.api import ApiError, ApiServer
from inferway.discovery.kubernetes.objects import Object
from inferway.discovery.kubernetes.stream import Expired, Lines, Mirror
from inferway.errors import InferwayError

log = logging.getLogger("inferway.kubernetes")

WATCH_SECONDS = 240  # at least; up to half as long again, so that not all end together
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
NOT_INSTALLED_PAUSE = 60.0


@dataclass(slots=True)
class Follower:
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
        """Until cancelled."""
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
        lines, mirror = Lines(), self._mirror
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
