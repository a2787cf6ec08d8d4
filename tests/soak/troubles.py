"""What happens to the engines while they are asked: drawn with a seed, one after the other."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from tests.soak.engines import EngineProcess, Wire
from tests.soak.history import SLOW, History
from tests.soak.hosts import Cut
from tests.soak.waits import SLOWER

T = TypeVar("T")
Make = Callable[[asyncio.Event], Awaitable[None]]
_ALL_DOWN = 0.2  # share of the times that the last one may be taken
# Of what the gateway must find out by itself: for less time than that takes, and for more.
_SECONDS = (0.3, 2.0, 7.0, 20.0)
_CUTS: tuple[Cut, ...] = ("without power", "answers dropped")


class Troubles:
    """`done` counts them, `history` has when they were."""

    def __init__(
        self, engines: Sequence[EngineProcess], wires: Sequence[Wire],
        num_up: Callable[[], Awaitable[float]], seed: int, log: Path,
    ) -> None:  # fmt: skip
        """`num_up`: how many engines the gateway has found. `wires` are those of the last
        engines."""
        self.done: Counter[str] = Counter()
        without = len(engines) - len(wires)
        ends = [*(engine.address for engine in engines[:without]), *(w.address for w in wires)]
        self._names: dict[object, str] = dict(zip(engines, ends, strict=True))
        self._names |= {wire: wire.address for wire in wires}
        self.history = History(ends)
        self._num_up = num_up
        self._engines = engines
        self._wires = wires
        self._log = log
        self._rng = random.Random(f"troubles {seed}")
        self._busy: set[object] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deck: list[Make] = []

    async def make(self, stop: asyncio.Event) -> None:
        """Until `stop`; then all is well again."""
        while not stop.is_set():
            await _wait(stop, self._rng.uniform(0.2, 2.0))
            task = asyncio.create_task(self._one(stop))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.gather(*self._tasks)

    @contextmanager
    def _trouble(self, what: str, thing: EngineProcess | Wire, number: int = 1) -> Iterator[None]:
        """For as long as the block takes."""
        name = self._names[thing]
        self.done[what] += number
        self._note(f"{name} {what}, {number}")
        trouble = self.history.begins(name, what, time.time())
        try:
            yield
        finally:
            trouble.ended = time.time()
            self._note(f"{name} {what}: over")

    def _note(self, text: str) -> None:
        """For who reads the gateway's log beside it."""
        with self._log.open("a") as log:
            log.write(f"{datetime.now():%H:%M:%S.%f} {text}\n")

    async def _one(self, stop: asyncio.Event) -> None:
        # On a busy machine it takes the gateway longer to find an engine again than us to kill it.
        if await self._num_up() < 2 and self._rng.random() >= _ALL_DOWN:
            return
        if not self._deck:  # each kind in turn, so that a short run has them all
            self._deck = [
                *(self._kill, self._kill, self._ask_to_end, self._freeze, self._freeze),
                *(self._stall, self._slow_down, self._cut_off, self._cut_off),
                *(self._reset, self._reset, self._refuse, self._refuse),
            ]
            self._rng.shuffle(self._deck)
        await self._deck.pop()(stop)

    async def _kill(self, stop: asyncio.Event, sig: int = signal.SIGKILL) -> None:
        engine = self._free(self._engines)
        if engine is None:
            return
        with self._trouble("killed" if sig == signal.SIGKILL else "asked to end", engine):
            await asyncio.to_thread(engine.kill, sig)
            await _wait(stop, self._rng.uniform(0.0, 2.0))
            engine.start()
            await engine.until_it_listens()
        await _wait(stop, self._rng.uniform(2.0, 6.0))  # a life
        self._busy.discard(engine)

    async def _ask_to_end(self, stop: asyncio.Event) -> None:
        await self._kill(stop, signal.SIGTERM)

    async def _freeze(self, stop: asyncio.Event) -> None:
        """The whole process: its connections stay, and nobody reads."""
        engine = self._free(self._engines)
        if engine is None:
            return
        with self._trouble("stopped", engine):
            engine.freeze()
            await _wait(stop, self._rng.choice(_SECONDS))
            engine.thaw()
        self._busy.discard(engine)

    async def _stall(self, stop: asyncio.Event) -> None:
        """Its core alone: its API answers."""
        await self._disturb(stop, "stalled", {"stalled": True})

    async def _slow_down(self, stop: asyncio.Event) -> None:
        await self._disturb(stop, SLOW, {"slower": SLOWER})

    async def _disturb(self, stop: asyncio.Event, what: str, body: dict[str, object]) -> None:
        engine = self._free(self._engines)
        if engine is None:
            return
        with self._trouble(what, engine):
            await engine.trouble(body)
            await _wait(stop, self._rng.choice(_SECONDS))
            await engine.trouble({})
        self._busy.discard(engine)

    async def _cut_off(self, stop: asyncio.Event) -> None:
        """What is sent to its host, or by it, gets lost."""
        engine = self._free([each for each in self._engines if each.own_host is not None], 1)
        if engine is None or engine.own_host is None:
            return
        how = self._rng.choice(_CUTS)
        with self._trouble(f"cut off, {how}", engine):
            await asyncio.to_thread(engine.own_host.cut_off, how)
            await _wait(stop, self._rng.choice(_SECONDS))
            await asyncio.to_thread(engine.own_host.mend, how)
        self._busy.discard(engine)

    async def _reset(self, stop: asyncio.Event) -> None:
        del stop
        wire = self._rng.choice(self._wires)
        with self._trouble("connections reset", wire, wire.reset(self._rng.random())):
            pass

    async def _refuse(self, stop: asyncio.Event) -> None:
        wire = self._free(self._wires)
        if wire is None:
            return
        with self._trouble("connections refused", wire):
            wire.refuse()
            await _wait(stop, self._rng.uniform(0.5, 3.0))
            await wire.open()
        self._busy.discard(wire)

    def _free(self, things: Sequence[T], least: int = 2) -> T | None:
        """One that nothing happens to now; taken. Mostly one of them is left in peace."""
        free = [thing for thing in things if thing not in self._busy]
        if len(free) < (1 if self._rng.random() < _ALL_DOWN else least):
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
