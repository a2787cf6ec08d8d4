"""What happens to the engines while they are asked: drawn with a seed, one after the other."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from tests.soak.engines import EngineProcess, Wire

T = TypeVar("T")
_ALL_DOWN = 0.2  # share of the times that the last one may be taken


class Troubles:
    """`done` counts them."""

    def __init__(
        self, engines: Sequence[EngineProcess], wires: Sequence[Wire],
        num_up: Callable[[], Awaitable[float]], seed: int, log: Path,
    ) -> None:  # fmt: skip
        """`num_up`: how many engines the gateway has found."""
        self.done: Counter[str] = Counter()
        self._num_up = num_up
        self._engines = engines
        self._wires = wires
        self._log = log
        self._rng = random.Random(f"troubles {seed}")
        self._busy: set[object] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def make(self, stop: asyncio.Event) -> None:
        """Until `stop`; then all is well again."""
        while not stop.is_set():
            await _wait(stop, self._rng.uniform(0.2, 2.0))
            task = asyncio.create_task(self._one(stop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    def _happens(self, what: str, port: int, number: int = 1) -> None:
        self.done[what] += number
        self._note(f"{port} {what}, {number}")

    def _note(self, text: str) -> None:
        """For who reads the gateway's log beside it."""
        with self._log.open("a") as log:
            log.write(f"{datetime.now():%H:%M:%S.%f} {text}\n")

    async def _one(self, stop: asyncio.Event) -> None:
        # On a busy machine it takes the gateway longer to find an engine again than us to kill it.
        if await self._num_up() < 2 and self._rng.random() >= _ALL_DOWN:
            return
        choice = self._rng.choice(
            [self._kill, self._kill, self._ask_to_end, self._freeze, self._reset, self._refuse]
        )
        await choice(stop)

    async def _kill(self, stop: asyncio.Event, sig: int = signal.SIGKILL) -> None:
        engine = self._free(self._engines)
        if engine is None:
            return
        self._happens("killed" if sig == signal.SIGKILL else "asked to end", engine.port)
        await asyncio.to_thread(engine.kill, sig)
        await _wait(stop, self._rng.uniform(0.0, 2.0))
        engine.start()
        await engine.until_it_listens()
        self._note(f"{engine.port} listens again")
        await _wait(stop, self._rng.uniform(2.0, 6.0))  # a life
        self._busy.discard(engine)

    async def _ask_to_end(self, stop: asyncio.Event) -> None:
        await self._kill(stop, signal.SIGTERM)

    async def _freeze(self, stop: asyncio.Event) -> None:
        """For shorter and for longer than the gateway's patience (world.CONFIG)."""
        engine = self._free(self._engines)
        if engine is None:
            return
        self._happens("stopped", engine.port)
        engine.freeze()
        await _wait(stop, self._rng.choice((0.3, 2.0, 7.0)))
        engine.thaw()
        self._note(f"{engine.port} goes on")
        self._busy.discard(engine)

    async def _reset(self, stop: asyncio.Event) -> None:
        del stop
        wire = self._rng.choice(self._wires)
        self._happens("connections reset", wire.port, wire.reset(self._rng.random()))

    async def _refuse(self, stop: asyncio.Event) -> None:
        wire = self._free(self._wires)
        if wire is None:
            return
        self._happens("connections refused", wire.port)
        wire.refuse()
        await _wait(stop, self._rng.uniform(0.5, 3.0))
        await wire.open()
        self._note(f"{wire.port} lets in again")
        self._busy.discard(wire)

    def _free(self, things: Sequence[T]) -> T | None:
        """One that nothing happens to now; taken. Mostly one of them is left in peace."""
        free = [thing for thing in things if thing not in self._busy]
        if len(free) < (1 if self._rng.random() < _ALL_DOWN else 2):
            return None
        thing = self._rng.choice(free)
        self._busy.add(thing)
        return thing


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    """Shorter if all is over."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
