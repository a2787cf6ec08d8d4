"""Pictures to all readers of the page, twice a second at most, and nothing while there are none.

A reader that does not read gets nothing more until it has: what it missed is not kept, it gets the
whole picture then. The server closes the connection of one that reads nothing for long
(timeouts.idle_stream).

MOST_READERS may be open, and no client keeps others out: when all places are taken, a new reader of
a host with few readers gets the place of a reader of the host with the most."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from inferway.errors import QueueFullError
from inferway.http.guesses import network_of
from inferway.tasks import Tasks
from inferway_console.page.pictures import Picture, Pictures

INTERVAL_SECONDS = 0.5
MOST_READERS = 64
_SHARE = 20  # of the time, at most one part in so many goes into pictures ...
_MOST_SECONDS = 5.0  # ... unless they would come more rarely than this
_log = logging.getLogger("inferway.page")


class Answer(Protocol):
    """The answer to one reader (http.responder.Responder)."""

    @property
    def client(self) -> str: ...
    def write(self, chunk: bytes) -> None: ...
    def end(self, chunk: bytes = b"") -> None: ...


class Reader:
    """A reader of the page: the source of an answer's body (http.ends.BodySource)."""

    def __init__(self, hub: LiveHub, answer: Answer) -> None:
        self._hub = hub
        self.answer = answer
        self.network = network_of(answer.client)
        self._is_paused = False
        self._has_whole = False

    def show(self, picture: Picture) -> None:
        """Send it, unless the one before is not read yet."""
        if self._is_paused:
            self._has_whole = False
            return
        event = picture.changes if self._has_whole else picture.whole
        self._has_whole = True
        self.answer.write(event)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def client_gone(self) -> None:
        self._hub.leave(self)


class LiveHub:
    """The readers of the page's live stream. `interval` in seconds."""

    def __init__(
        self,
        pictures: Pictures,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pictures = pictures
        self._interval = interval
        self._clock = clock
        self._readers: dict[Reader, None] = {}  # the newest is last
        self._picture: Picture | None = None  # the last one, while there are readers
        self._tasks = Tasks(_log, "the page's live stream ended by a fault of the gateway")
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._readers)

    def check_room(self, client: str) -> None:
        """Raises QueueFullError if all places are taken, and no other host has more readers than
        the client's host would have."""
        if self._is_closed or (self._is_full and self._giving_way(network_of(client)) is None):
            raise QueueFullError(
                f"{MOST_READERS} pages are open on this gateway, the most that may be; close one"
            )

    def join(self, answer: Answer) -> Reader:
        """Return the source of the answer. The last picture is shown at once, the next when it is
        there."""
        reader = Reader(self, answer)
        gives_way = self._giving_way(reader.network) if self._is_full else None
        if gives_way is not None:
            self.leave(gives_way)
            gives_way.answer.end()
        self._readers[reader] = None
        if self._picture is not None:
            reader.show(self._picture)
        if not self._tasks.running:
            self._tasks.spawn(self._run())
        return reader

    @property
    def _is_full(self) -> bool:
        return len(self._readers) >= MOST_READERS

    def _giving_way(self, network: str) -> Reader | None:
        """The newest reader of the host with the most readers; None if `network` would have more
        than that host then."""
        places = Counter(reader.network for reader in self._readers)
        [(heaviest, most)] = places.most_common(1)
        if most <= places[network] + 1:
            return None
        return next(each for each in reversed(self._readers) if each.network == heaviest)

    def leave(self, reader: Reader) -> None:
        self._readers.pop(reader, None)

    async def close(self) -> None:
        """End all answers."""
        self._is_closed = True
        await self._tasks.close()
        for reader in [*self._readers]:
            self.leave(reader)
            reader.answer.end()

    async def _run(self) -> None:
        try:
            while self._readers:
                begun = self._clock()
                self._picture = await self._pictures.take()
                for reader in [*self._readers]:
                    reader.show(self._picture)
                rest = min(_SHARE * (self._clock() - begun), _MOST_SECONDS)
                await asyncio.sleep(max(self._interval, rest))
        finally:
            self._picture = None
