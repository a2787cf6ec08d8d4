"""The place of a worker, whatever process has it: starts one, tells it all, and starts the next
one."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from inferway.cluster.bus.link import Link, pair
from inferway.cluster.bus.messages import AskWorker, Message, Wanted, WorkerAnswer
from inferway.errors import ConfigError
from inferway.tasks import Tasks, happens_within

ANSWER_SECONDS = 2.0  # to an `AskWorker`
START_SECONDS = 120.0  # for a worker, with its tokenizers
HANG_LOOKS = 10  # without an answer: it is replaced
START_LOOKS = 120  # without being ready: the same
MOST_BACKOFF_SECONDS = 10.0  # between two processes that end soon
KILL_SECONDS = 5.0  # beyond the time that running answers have
LAST_WORDS_SECONDS = 1.0  # for what a process had said before it ended

log = logging.getLogger("inferway")


class Seat:
    """`keep` it until `leave`. `heard` gets what the process says, `ended` is called when it has
    ended, and has been heard to its last word."""

    def __init__(
        self,
        place: int,
        memory: int,
        tell: Callable[[Seat, Link], Awaitable[None]],
        heard: Callable[[Seat, Message], None],
        ended: Callable[[Seat], None],
    ) -> None:
        """`place`: from 1 on. `memory`: the file of the columns that all processes share. `tell`
        tells a new process all that it must know."""
        self.place = place
        self.name = f"worker {place}"
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.hears = False  # what all workers are told
        self.ready = asyncio.Event()
        self._is_told = asyncio.Event()  # whether the first process was ready, or has given up
        self._gave_up = False
        self._memory = memory
        self._tell = tell
        self._heard = heard
        self._ended = ended
        self._looks = 0  # since it has said anything
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[WorkerAnswer]] = {}  # that are waited for
        self._leaving = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def send(self, message: Message) -> None:
        """Send it, unless the process does not hear yet, or not any more."""
        if self.hears and self.link is not None:
            self.link.send(message)

    async def ask(self, wanted: Wanted, **about: Any) -> WorkerAnswer | None:
        """Return the answer of the process; None if it is not ready, ends, or gives none in
        time."""
        if not self.ready.is_set():
            return None
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self.send(AskWorker(wanted, number, **about))
            await asyncio.wait([answer], timeout=ANSWER_SECONDS)
        finally:
            del self._answers[number]
        return answer.result() if answer.done() and not answer.cancelled() else None

    def hears_all(self) -> None:
        """Send the process from now on what all workers are told."""
        self.hears = True

    async def started(self) -> None:
        """Return when the process is ready. Raises ConfigError if it cannot, or takes too
        long."""
        if not await happens_within(self._is_told, START_SECONDS):
            raise ConfigError(f"{self.name} was not ready within {START_SECONDS:g} s")
        if self._gave_up:
            raise ConfigError(f"{self.name} ended before it was ready; its log says why")

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if there is one."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def leave(self) -> None:
        """Let the process end what it does, and start no other. It may be called twice: a second
        signal would cut the answers that run."""
        if not self._leaving.is_set():
            self._leaving.set()
            self.signal(signal.SIGTERM)

    async def left(self, seconds: float) -> None:
        """Wait for the process to end after `leave`, so long at most; then kill it."""
        if not await happens_within(self._empty, seconds + KILL_SECONDS):
            log.error("%s did not end, and is killed", self.name)
            self.signal(signal.SIGKILL)
            await self._empty.wait()

    def look(self) -> None:
        """Kill a process that does not answer, does not read, or is not ready in time; `keep`
        starts another one. Look once a second, and ask it for an answer before. Looks are counted,
        not seconds: a hub that was stopped for a while has not heard what was said meanwhile."""
        if self.link is None or self.process is None:
            return
        self._looks += 1
        most = HANG_LOOKS if self.ready.is_set() else START_LOOKS
        if self.link.is_stuck or self._looks > most:
            log.error("%s has not answered for %d s, and is killed", self.name, self._looks)
            self.signal(signal.SIGKILL)

    async def keep(self) -> None:
        """Have a process in the seat, one after the other."""
        self._empty.clear()
        backoff, loop = 0.0, asyncio.get_running_loop()
        try:
            while not self._leaving.is_set():
                began, status = loop.time(), await self._run()
                self.ready.clear()
                if not self._is_told.is_set() and status >= 0:  # a signal is not its doing
                    self._gave_up = True  # it says why itself
                    self._is_told.set()
                if self._leaving.is_set() or self._gave_up:
                    return
                log.warning("%s has ended, %s; another one is started", self.name, _why(status))
                is_soon = loop.time() - began < MOST_BACKOFF_SECONDS
                backoff = min(2 * backoff + 0.1, MOST_BACKOFF_SECONDS) if is_soon else 0.0
                await happens_within(self._leaving, backoff)
        finally:
            self._empty.set()

    async def _run(self) -> int:
        """Have one process in the seat, until it has ended. Returns its status."""
        ours, theirs = pair()
        try:
            with theirs:
                self.process = process = await self._process(theirs)
        except OSError as e:  # the machine has no room for it
            ours.close()
            log.error("%s could not be started: %s", self.name, e)
            return 1
        self._looks, lost = 0, asyncio.Event()
        if self._leaving.is_set():  # meanwhile
            self.signal(signal.SIGTERM)
        self.link = link = Link()
        link.listen(self._says)
        link.when_lost(lost.set)
        await link.open(ours)
        telling = Tasks(log, f"{self.name} was not told all, by a fault of the gateway")
        telling.spawn(self._tell(self, link))
        try:
            status = await process.wait()
            await happens_within(lost, LAST_WORDS_SECONDS)
            return status
        finally:
            await telling.close()
            self.signal(signal.SIGKILL)  # nobody would look after it
            self.hears, self.link, self.process = False, None, None
            link.close()
            for answer in self._answers.values():
                answer.cancel()
            self._ended(self)

    async def _process(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        files = [theirs.fileno(), self._memory]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "inferway.cli.worker", *map(str, files)),
            pass_fds=files,
            start_new_session=True,  # a terminal's Ctrl-C is told once, by the hub
        )

    def _says(self, message: Message) -> None:
        self._looks = 0
        if not isinstance(message, WorkerAnswer) or message.wanted is Wanted.ALIVE:
            self._heard(self, message)
        elif message.wanted is Wanted.START:
            self.ready.set()
            self._is_told.set()
        else:
            answer = self._answers.get(message.number)
            if answer is not None and not answer.done():
                answer.set_result(message)


def _why(status: int) -> str:
    return f"with status {status}" if status >= 0 else f"by signal {-status}"
