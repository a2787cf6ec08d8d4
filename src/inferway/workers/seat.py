"""A worker's place, whatever process has it: starts one, tells it all, and starts the next one."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable

from inferway.workers.link import Link, pair
from inferway.workers.messages import Message, Ready

HANG_SECONDS = 10.0  # without an answer: it is replaced
MOST_BACKOFF_SECONDS = 10.0  # between two processes that end soon
KILL_SECONDS = 5.0  # beyond the time that running answers have

log = logging.getLogger("inferway")

# Tells a new worker all that it must know.
Tell = Callable[["Seat", Link], Awaitable[None]]


class Seat:
    """`keep` it until `leave`. `heard` gets what the worker says, `ended` is called when a process
    of it has ended."""

    def __init__(
        self,
        place: int,
        memory: int,
        tell: Tell,
        heard: Callable[[Seat, Message], None],
        ended: Callable[[Seat], None],
    ) -> None:
        """`place`: among the processes that share the columns in `memory`."""
        self.place = place
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.hears = False  # what all workers are told
        self.ready = asyncio.Event()
        self.gave_up = asyncio.Event()  # it has ended before it was ready for the first time
        self._memory = memory
        self._tell = tell
        self._heard = heard
        self._ended = ended
        self._answered = 0.0  # by the loop's clock
        self._is_leaving = False

    def send(self, message: Message) -> None:
        """Send it, unless the worker does not hear yet, or not any more."""
        if self.hears and self.link is not None:
            self.link.send(message)

    async def keep(self) -> None:
        """Have a process in the seat, one after the other."""
        backoff, loop = 0.0, asyncio.get_running_loop()
        has_been_ready = False
        while not self._is_leaving:
            began = loop.time()
            status = await self._run()
            has_been_ready = has_been_ready or self.ready.is_set()
            self.ready.clear()
            if self._is_leaving:
                return
            if not has_been_ready:
                self.gave_up.set()
                return
            log.warning("worker %d has ended, %s; another one is started", self.place, _why(status))
            is_soon = loop.time() - began < MOST_BACKOFF_SECONDS
            backoff = min(2 * backoff + 0.1, MOST_BACKOFF_SECONDS) if is_soon else 0.0
            await asyncio.sleep(backoff)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if there is one."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def leave(self) -> None:
        """Let the process end what it does, and start no other."""
        self._is_leaving = True
        self.signal(signal.SIGTERM)

    async def left(self, seconds: float) -> None:
        """Wait for the process to end after `leave`, so long at most; then kill it."""
        process = self.process
        if process is None:
            return
        try:
            async with asyncio.timeout(seconds + KILL_SECONDS):
                await process.wait()
        except TimeoutError:
            log.error("worker %d did not end, and is killed", self.place)
            process.kill()
            await process.wait()

    def kill_if_it_hangs(self) -> None:
        """Kill a process that does not answer, or does not read; `keep` starts another one."""
        if self.link is None or self.process is None or not self.ready.is_set():
            return
        silent = asyncio.get_running_loop().time() - self._answered
        if self.link.is_stuck or silent > HANG_SECONDS:
            log.error("worker %d has not answered for %.0f s, and is killed", self.place, silent)
            self.process.kill()

    async def _run(self) -> int:
        ours, theirs = pair()
        self.link = link = Link(self._says, _nothing)
        with theirs:
            self.process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "inferway.cli.worker"),
                *(str(theirs.fileno()), str(self._memory)),
                pass_fds=[theirs.fileno(), self._memory],
                start_new_session=True,  # a terminal's Ctrl-C is told once, by the hub
            )
        await link.open(ours)
        telling = asyncio.ensure_future(self._tell(self, link))
        try:
            return await process.wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            self.hears, self.link, self.process = False, None, None
            link.close()
            self._ended(self)

    def _says(self, message: Message) -> None:
        self._answered = asyncio.get_running_loop().time()
        if isinstance(message, Ready):
            self.ready.set()
        else:
            self._heard(self, message)


def _why(status: int) -> str:
    return f"with status {status}" if status >= 0 else f"by signal {-status}"


def _nothing() -> None:
    """Its process has ended, which `_run` waits for."""
