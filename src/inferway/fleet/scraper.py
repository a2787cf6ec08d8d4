"""Asks every engine again and again how it is: one task, whatever their number.

Each engine has its turn once an interval, a few of them together, evenly spread over it. One whose
last question is unanswered is passed over, and one that is away is asked no sooner than
AWAY_SECONDS after the last time, so that a slow or dead engine delays nobody. At most AT_ONCE are
asked at a time; who has not answered for SLOW_SECONDS is not counted any more. So even if all fall
silent at once, turns come as often as they must: AT_ONCE / SLOW_SECONDS is more than
1 / SECONDS_PER_ENGINE.

The interval, unless it is given: 2 ms for each engine, of which asking it takes about an eighth,
and 200 ms at least. Then engines that are idle have fewer turns: each time one of them is asked and
has got nothing since, the pause to its next turn doubles, up to `idle_interval_of` the fleet. Its
first request, or whatever else `work_of` tells of, gives it a turn in the next round. Afterwards
the pause is as long as before, unless it did what nobody here knew of.

While all engines have such long pauses, rounds come at whole seconds, when the process wakes for
other things as well, or an interval after something has stirred: a request, an event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from prometheus_client.core import SummaryMetricFamily

from inferway.errors import crash_report
from inferway.fleet.engine import Engine
from inferway.metrics import Family, counter, gauge
from inferway.tasks import Nap, next_multiple

_ENGINE = ["engine"]  # labels

LEAST_SECONDS = 0.2
SECONDS_PER_ENGINE = 0.002
AWAY_SECONDS = 0.5
# Engines close connections that were unused for five seconds, and we do so after four: a kept one
# is cheap to ask by, and its end tells at once that the engine has gone.
IDLE_SECONDS = 3.0
SLOW_SECONDS = 0.5
AT_ONCE = 256
TOGETHER = 8  # turns; waking up for each of them takes twice the CPU time
REST_SECONDS = 1.0  # between two rounds, or a little longer, while all pauses are so long

log = logging.getLogger("inferway.fleet")

# (engine, whether a request has just failed there) -> whether it answered
Ask = Callable[[Engine, bool], Awaitable[bool]]


class Work(Enum):
    """The work that an engine has, as far as is known without asking it."""

    NONE = auto()
    KNOWN = auto()  # this gateway has sent it, or events have told of it
    UNKNOWN = auto()  # more than that, or nobody knows


# (engine, when it last answered) -> what it had to do then, or has got since
WorkOf = Callable[[Engine, float], Work]


def interval_of(num_engines: int) -> float:
    """Return the seconds between two turns of an engine, of so many."""
    return max(LEAST_SECONDS, num_engines * SECONDS_PER_ENGINE)


def idle_interval_of(num_engines: int) -> float:
    """Return the most seconds between two turns of an engine that is idle, of so many."""
    return max(interval_of(num_engines), IDLE_SECONDS)


@dataclass(slots=True, eq=False)
class ScrapeTurn:
    """An engine's place in the round. Times in seconds, by the loop's clock."""

    engine: Engine
    asked: float = float("-inf")  # when it last was
    answered: float | None = None  # when it last did
    answers: int = 0
    took: float = 0.0  # all answers together
    pause: float = 0.0  # that it has until its next turn while it is idle; 0: it was busy
    work: Work = Work.UNKNOWN  # as of the last round
    passed_over: int = 0  # turns that came while a question was unanswered
    task: asyncio.Task[None] | None = None
    slot: asyncio.TimerHandle | None = None  # it counts among those AT_ONCE until then
    suspected: bool = False  # to be asked at once


@dataclass(slots=True)
class Scraper:
    """`start`, then `close`. `after_round` is called after each round, with the time. `work_of`:
    which engines are to have fewer turns; None: none. `is_stirred`: `stir` is called whenever
    `work_of` may have something new to tell, so that rounds may be left out."""

    engines: Sequence[Engine]  # at the start; then `add` and `remove`
    ask: Ask
    after_round: Callable[[float], None]
    given_interval: float | None = None  # None: by the number of engines
    work_of: WorkOf | None = None
    is_stirred: bool = False
    lag: float = 0.0  # seconds: how late the latest turn of the last round began
    pace: float = 2 * REST_SECONDS  # seconds, at most, that were to lie between the last two rounds
    turns: dict[str, ScrapeTurn] = field(default_factory=dict)  # by the engine's name
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _task: asyncio.Task[None] | None = None
    _nap: Nap = field(default_factory=Nap)
    _is_resting: bool = False  # the next round comes later than an interval from now

    def __post_init__(self) -> None:
        self.turns = {engine.name: ScrapeTurn(engine) for engine in self.engines}

    @property
    def interval(self) -> float:
        """The seconds between two turns of an engine."""
        return self.given_interval or interval_of(len(self.turns))

    @property
    def idle(self) -> Iterator[Engine]:
        """The engines that are left out of rounds because they are idle, and owe no answer."""
        for turn in self.turns.values():
            if turn.work is Work.NONE and turn.task is None:
                yield turn.engine

    def families(self) -> Iterator[Family]:
        """Yield what /metrics shows of how loads come to be known."""
        turns = {(name,): turn for name, turn in self.turns.items()}
        yield gauge(
            "scrape_interval_seconds",
            "Seconds between two scrapes of the load of an engine that is not idle, as planned.",
            value=self.interval,
        )
        yield gauge(
            "scrape_lag_seconds",
            "Seconds by which scrapes of engines came later than planned, at worst, in the last"
            " round.",
            value=self.lag,
        )
        took = SummaryMetricFamily(
            "inferway_scrape_seconds",
            "Seconds that the engine took to answer a scrape of its load.",
            labels=_ENGINE,
        )
        for key, turn in turns.items():
            took.add_metric(key, turn.answers, turn.took)
        yield took
        yield counter(
            "scrapes_passed_over",
            "Scrapes of the engine's load that were left out because it had not"
            " answered the one before.",
            _ENGINE,
            {key: turn.passed_over for key, turn in turns.items()},
        )
        now = time.monotonic()  # which is the loop's clock, too
        yield gauge(
            "engine_load_age_seconds",
            "Seconds since the engine last reported its load.",
            _ENGINE,
            {
                key: max(0.0, now - turn.answered)
                for key, turn in turns.items()
                if turn.answered is not None
            },
        )

    def add(self, engine: Engine) -> None:
        """Ask the engine from the next round on, instead of another of its name."""
        self.turns[engine.name] = ScrapeTurn(engine)
        self.stir()

    def remove(self, engine: Engine) -> None:
        """Ask the engine no more, and do not wait for its answer."""
        turn = self.turns.get(engine.name)
        if turn is None or turn.engine is not engine:
            return
        del self.turns[engine.name]
        turn.suspected = False
        if turn.task is not None:
            turn.task.cancel()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        tasks = [turn.task for turn in self.turns.values()]
        running = [task for task in (self._task, *tasks) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def suspect(self, name: str) -> None:
        """Ask an engine at once where a request has just failed, or as soon as it has answered."""
        turn = self.turns.get(name)
        if turn is None:
            return  # it has left meanwhile
        turn.suspected = True
        self.stir()
        self.ask_soon(turn.engine)

    def ask_soon(self, engine: Engine) -> None:
        """Ask an engine at once, unless it owes an answer."""
        turn = self.turns.get(engine.name)
        if turn is not None and self._task is not None and turn.task is None:
            self._begin(turn, counted=False)

    def stir(self) -> None:
        """Have a round within an interval: an engine may be idle no more."""
        if self._is_resting:
            self._is_resting = False
            self._nap.wake_at(asyncio.get_running_loop().time() + self.interval)

    def hurry(self, url: str) -> None:
        """Give the engine at `url` a turn in the next round, however idle it is."""
        for turn in self.turns.values():
            if turn.engine.url == url and turn.pause:
                turn.pause = self.interval
        self.stir()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            began = loop.time()
            worst, turns = 0.0, self._turns_of_a_round(began)
            step = self.interval / max(1, len(turns))
            for first in range(0, max(1, len(turns)), TOGETHER):
                if first:
                    await asyncio.sleep(max(0.0, due - loop.time()))
                together = turns[first : first + TOGETHER]
                await self._take(together)
                late = loop.time() - due
                worst = max(worst, late)
                # what is lost is lost
                due += step * max(1, len(together)) + (late if late > self.interval else 0.0)
            if self._are_all_at_rest(began):
                await self._rest()
                due = loop.time()
                self.pace = 2 * REST_SECONDS
            else:
                await asyncio.sleep(max(0.0, due - loop.time()))
                self.pace = self.interval
            self.lag = worst
            self.after_round(loop.time())

    def _turns_of_a_round(self, now: float) -> list[ScrapeTurn]:
        """All turns, but for those of idle engines whose pause is not over."""
        if self.work_of is None:
            return list(self.turns.values())
        turns = []
        for turn in self.turns.values():
            since = None if turn.task is not None else turn.answered
            turn.work = Work.UNKNOWN if since is None else self.work_of(turn.engine, since)
            if turn.work is Work.UNKNOWN:
                turn.pause = 0.0
            elif turn.work is Work.NONE and not self._is_due(turn, now):
                continue
            turns.append(turn)
        return turns

    def _is_due(self, turn: ScrapeTurn, now: float) -> bool:
        """Whether an idle engine's pause is over; then its next one is longer."""
        longest = idle_interval_of(len(self.turns))
        turn.pause = turn.pause or min(longest, 2 * self.interval)
        if now - turn.asked < turn.pause - max(self.interval / 2, turn.pause / 8):
            return False
        turn.pause = min(longest, 2 * turn.pause)
        return True

    def _are_all_at_rest(self, began: float) -> bool:
        """Whether nothing is known that the next round must not wait for. `began`: when the last
        one did."""
        if self.work_of is None or not self.is_stirred or self.interval >= REST_SECONDS:
            return False
        for turn in self.turns.values():
            is_slow = turn.task is not None and turn.asked < began
            since = turn.answered if turn.task is None else turn.asked
            if turn.pause < REST_SECONDS or is_slow or since is None:
                return False
            if self.work_of(turn.engine, since) is not Work.NONE:
                return False
        return True

    async def _rest(self) -> None:
        """Until the next round after one that has found all at rest."""
        self._is_resting = True
        soonest = asyncio.get_running_loop().time() + 0.8 * REST_SECONDS
        await self._nap.sleep_until(next_multiple(soonest, REST_SECONDS))
        self._is_resting = False

    async def _take(self, turns: Sequence[ScrapeTurn]) -> None:
        for turn in turns:
            if self.turns.get(turn.engine.name) is turn:  # else it has left meanwhile
                await self._take_one(turn)

    async def _take_one(self, turn: ScrapeTurn) -> None:
        if turn.task is not None:
            turn.passed_over += 1
            return
        now = asyncio.get_running_loop().time()
        if not turn.engine.healthy and now - turn.asked < AWAY_SECONDS:
            return
        await self._slots.acquire()
        if turn.task is not None:  # a request has failed there meanwhile
            self._slots.release()
            return
        self._begin(turn, counted=True)

    def _begin(self, turn: ScrapeTurn, *, counted: bool) -> None:
        loop = asyncio.get_running_loop()
        turn.asked = loop.time()
        if counted:
            turn.slot = loop.call_later(SLOW_SECONDS, self._free_slot, turn)
        turn.task = asyncio.create_task(self._ask(turn))

    def _free_slot(self, turn: ScrapeTurn) -> None:
        if turn.slot is not None:
            turn.slot.cancel()
            turn.slot = None
            self._slots.release()

    def _stir_for(self, turn: ScrapeTurn) -> None:
        """This engine has just told whether it may rest as well, or has not answered."""
        since = turn.answered
        if not self._is_resting or self.work_of is None or since is None:
            return
        if self.work_of(turn.engine, since) is not Work.NONE:
            self.stir()

    async def _ask(self, turn: ScrapeTurn) -> None:
        suspected, turn.suspected = turn.suspected, False
        try:
            if await self.ask(turn.engine, suspected):
                turn.answered = asyncio.get_running_loop().time()
                turn.answers += 1
                turn.took += turn.answered - turn.asked
            self._stir_for(turn)
        except Exception as e:
            log.error(
                "engine %s could not be asked how it is, by a fault of the gateway: %s",
                turn.engine.name,
                crash_report(e),
            )
        finally:
            turn.task = None
            self._free_slot(turn)
        if turn.suspected:
            self._begin(turn, counted=False)
