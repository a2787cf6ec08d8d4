"""One thread writes all journals, so that nobody waits for a disk.

The event loop hands over bytes and goes on. If the disk is too slow or full, the journal ends
there for this run: what was written until then is a good beginning.

Nothing is synced but when a journal is closed. A crash of the process costs what came within
GATHER_SECONDS, one of the machine what the kernel had not written yet (about half a minute). At
the next start the engine's replay brings it, from wherever the journal ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from inferway.fleet.journal.journal_files import create, journal_name, write_all

log = logging.getLogger("inferway.journal")

GATHER_SECONDS = 0.05  # what comes within it is written at once
MAX_QUEUED_BYTES = 64 * 1024 * 1024
CLOSE_SECONDS = 10.0  # how long the end waits for a disk that does not answer


Step = Callable[[], object]


class Tail:
    """The file at the end of one holder's journal, and what is to be done with it. Its methods
    are the writer's thread's; once it has failed, they do nothing."""

    def __init__(self, directory: Path, engine: str) -> None:
        self.engine = engine
        self.failed = False  # read by everybody
        self.queue: deque[bytes | Step] = deque()
        self.gathered = bytearray()  # not in the queue yet; the event loop's
        self._directory = directory
        self._file: int | None = None

    def begin(self, number: int) -> None:
        """Begin the next file, with nothing in it. The one before it is closed and synced."""
        self.close()
        if not self.failed:
            self._file = create(self._directory / journal_name(number))

    def write(self, data: bytes) -> None:
        if self._file is not None:
            write_all(self._file, data)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                os.fdatasync(file)
            finally:
                os.close(file)


class Writer:
    """`add` a tail, then `write` and `do` on the event loop; what they hand over is done in order,
    tail by tail, until `remove`. `close` at the end."""

    def __init__(
        self, max_queued_bytes: int = MAX_QUEUED_BYTES, close_seconds: float = CLOSE_SECONDS
    ) -> None:
        self._max_queued_bytes = max_queued_bytes
        self._close_seconds = close_seconds
        self._is_stuck = False  # the disk did not answer; nobody waits for it again
        self._tails: dict[Tail, None] = {}
        self._put_bytes = 0  # the event loop's
        self._taken_bytes = 0  # the thread's
        self._gathering: list[Tail] = []  # those that have gathered something; the event loop's
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, tail: Tail) -> None:
        self._tails[tail] = None

    async def remove(self, tail: Tail) -> None:
        """Write the rest, and close the file; a disk that does not answer is left alone."""
        self.do(tail, tail.close)
        try:
            async with asyncio.timeout(0 if self._is_stuck else self._close_seconds):
                await self.flush(tail)
        except TimeoutError:
            self._is_stuck = True
            log.error("engine %s: the disk does not take the end of its journal", tail.engine)
        self._tails.pop(tail, None)

    def write(self, tail: Tail, data: bytes) -> bool:
        """Take bytes to be written. Return False if there is no room, and nothing was taken."""
        if self._put_bytes + len(data) - self._taken_bytes > self._max_queued_bytes:
            return False
        self._put_bytes += len(data)
        gathered = tail.gathered
        if not gathered:
            if not self._gathering:
                asyncio.get_running_loop().call_later(GATHER_SECONDS, self._hand_over)
            self._gathering.append(tail)
        gathered += data
        return True

    def do(self, tail: Tail, step: Step) -> None:
        """Do a step after all that was handed over for that tail before."""
        _enqueue_gathered(tail)
        tail.queue.append(step)
        self._wake.set()

    async def flush(self, tail: Tail) -> None:
        """Return when its file has all that was handed over."""
        if tail not in self._tails:
            return
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self.do(tail, partial(_resolve, loop, done))
        await done

    async def close(self) -> None:
        """Write what was handed over, and stop the thread. It may be called twice."""
        self._hand_over()
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 0 if self._is_stuck else self._close_seconds)

    def _hand_over(self) -> None:
        """What has been gathered goes to the thread."""
        gathering, self._gathering = self._gathering, []
        for tail in gathering:
            _enqueue_gathered(tail)
        self._wake.set()

    # the thread

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            stopping = self._stopping  # once it is set, it wakes us again
            for tail in list(self._tails):
                self._drain(tail)
            if stopping:
                return

    def _drain(self, tail: Tail) -> None:
        while tail.queue:
            item = tail.queue.popleft()
            if isinstance(item, bytes):
                self._taken_bytes += len(item)
                item = partial(tail.write, item)
            self._try(tail, item)

    def _try(self, tail: Tail, step: Step) -> None:
        try:
            step()
        except OSError as e:
            if tail.failed:
                return
            tail.failed = True
            with suppress(OSError):
                tail.close()
            log.error(
                "engine %s: its journal ends here for this run: %s; the next start goes on from "
                "there if the engine still can",
                tail.engine,
                e,
            )


def _enqueue_gathered(tail: Tail) -> None:
    if tail.gathered:
        tail.queue.append(bytes(tail.gathered))
        tail.gathered.clear()


def _resolve(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    def resolve() -> None:
        if not done.done():
            done.set_result(None)

    with suppress(RuntimeError):  # nobody has waited for so long: the loop is closed
        loop.call_soon_threadsafe(resolve)
