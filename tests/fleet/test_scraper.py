"""One scraper for all engines: its turns, and that nobody is delayed by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

import pytest

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.scraper import (
    AT_ONCE,
    IDLE_SECONDS,
    SECONDS_PER_ENGINE,
    SLOW_SECONDS,
    TOGETHER,
    Scraper,
    Work,
    WorkOf,
    idle_interval_of,
    interval_of,
)
from inferway.upstream.pool import IDLE_KEEP_ALIVE_SECONDS

Answer = Callable[[Engine], Awaitable[bool]]


def engines(count: int) -> list[Engine]:
    return [
        Engine(EngineSettings(url=f"http://e{n}", name=f"e{n}"), (), healthy=True)
        for n in range(count)
    ]


class Asked:
    """Writes down who is asked. `answer` says what comes of it."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.names: list[str] = []
        self.suspected: list[str] = []
        self.rounds = 0
        self._answer = answer
        self._changed = asyncio.Event()

    async def ask(self, engine: Engine, suspected: bool) -> bool:
        self.names.append(engine.name)
        if suspected:
            self.suspected.append(engine.name)
        self._changed.set()
        return await self._answer(engine) if self._answer else True

    def after_round(self, _: float) -> None:
        self.rounds += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def scraping(
    asked: Asked,
    fleet: list[Engine],
    interval: float = 0.01,
    work_of: WorkOf | None = None,
    *,
    is_stirred: bool = False,
) -> AsyncIterator[Scraper]:
    scraper = Scraper(fleet, asked.ask, asked.after_round, interval, work_of, is_stirred)
    scraper.start()
    try:
        yield scraper
    finally:
        await scraper.close()


def idle_are(names: Collection[str]) -> WorkOf:
    return lambda engine, _: Work.NONE if engine.name in names else Work.UNKNOWN


async def never(_: Engine) -> bool:
    await asyncio.Event().wait()
    return True


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.2), (100, 0.2), (1_000, 2.0)])
def test_the_interval_grows_with_the_fleet(count: int, seconds: float) -> None:
    assert interval_of(count) == pytest.approx(seconds)


@pytest.mark.parametrize(("count", "seconds"), [(1, 3.0), (1_000, 3.0), (5_000, 10.0)])
def test_the_pause_of_idle_engines_is_no_shorter_than_that_of_others(
    count: int, seconds: float
) -> None:
    assert idle_interval_of(count) == pytest.approx(seconds)


def test_an_idle_engine_is_asked_before_its_connection_is_closed() -> None:
    assert IDLE_SECONDS < IDLE_KEEP_ALIVE_SECONDS


def test_silent_engines_alone_cannot_fill_all_slots() -> None:
    assert AT_ONCE / SLOW_SECONDS > 1 / SECONDS_PER_ENGINE


async def test_every_engine_has_its_turn_in_each_round() -> None:
    asked = Asked()

    async with scraping(asked, engines(3)):
        await asked.until(lambda: len(asked.names) >= 6)

    assert asked.names[:6] == ["e0", "e1", "e2"] * 2


async def test_turns_are_spread_over_the_interval() -> None:
    asked, loop = Asked(), asyncio.get_running_loop()
    begun = loop.time()

    async with scraping(asked, engines(4 * TOGETHER), interval=0.2):
        await asked.until(lambda: len(asked.names) == 4 * TOGETHER)

    assert loop.time() - begun >= 0.14  # three quarters of it, and timers may be a little early


async def test_a_few_turns_are_taken_together() -> None:
    asked = Asked()

    async with scraping(asked, engines(TOGETHER + 1), interval=60.0):
        await asked.until(lambda: len(asked.names) == TOGETHER)

    assert asked.names == [f"e{n}" for n in range(TOGETHER)]


async def test_an_engine_that_does_not_answer_delays_no_other() -> None:
    async def answer(engine: Engine) -> bool:
        return await never(engine) if engine.name == "e1" else True

    asked = Asked(answer)

    async with scraping(asked, engines(3)) as scraper:
        await asked.until(lambda: asked.rounds >= 5)

    assert asked.names.count("e1") == 1
    assert asked.names.count("e0") >= 5
    assert scraper.turns["e1"].passed_over >= 4
    assert scraper.turns["e1"].answered is None


async def test_more_silent_engines_than_slots_delay_the_others_only_once() -> None:
    async def answer(engine: Engine) -> bool:
        return True if engine.name == "e0" else await never(engine)

    asked = Asked(answer)

    async with scraping(asked, engines(AT_ONCE + 10)):
        await asked.until(lambda: asked.names.count("e0") >= 3)

    assert len(set(asked.names)) == AT_ONCE + 10


async def test_an_engine_that_is_away_is_not_asked_each_round() -> None:
    fleet = engines(2)
    fleet[1].healthy = False
    asked = Asked()

    async with scraping(asked, fleet):
        await asked.until(lambda: asked.rounds >= 5)

    assert asked.names.count("e1") == 1


async def test_an_engine_under_suspicion_is_asked_at_once() -> None:
    asked = Asked()

    last = f"e{TOGETHER}"

    async with scraping(asked, engines(TOGETHER + 1), interval=60.0) as scraper:
        await asked.until(lambda: len(asked.names) == TOGETHER)
        scraper.suspect(last)
        await asked.until(lambda: asked.suspected == [last])

    assert asked.names[TOGETHER:] == [last]


async def test_a_suspicion_during_a_question_leads_to_another_one() -> None:
    held = asyncio.Event()

    async def answer(_: Engine) -> bool:
        await held.wait()
        return True

    asked = Asked(answer)

    async with scraping(asked, engines(1), interval=60.0) as scraper:
        await asked.until(lambda: asked.names == ["e0"])
        scraper.suspect("e0")
        held.set()
        await asked.until(lambda: asked.suspected == ["e0"])

    assert asked.names == ["e0", "e0"]


async def test_a_suspicion_before_the_start_is_not_lost() -> None:
    asked = Asked()
    scraper = Scraper(engines(1), asked.ask, asked.after_round, 0.01)
    scraper.suspect("e0")

    scraper.start()
    await asked.until(lambda: asked.suspected == ["e0"])
    await scraper.close()

    assert asked.names[0] == "e0"


async def test_an_error_of_ours_is_told_and_the_engine_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_: Engine) -> bool:
        raise ValueError("broken")

    asked = Asked(answer)

    async with scraping(asked, engines(1)):
        await asked.until(lambda: len(asked.names) >= 3)

    assert "engine e0 could not be asked how it is" in caplog.text


async def test_answers_are_counted_and_timed() -> None:
    asked = Asked()

    async with scraping(asked, engines(1)) as scraper:
        await asked.until(lambda: asked.rounds >= 3)

    turn = scraper.turns["e0"]
    assert turn.answers >= 3
    assert turn.answered is not None
    assert 0 <= turn.took < 20


async def test_an_idle_engine_is_asked_ever_more_seldom() -> None:
    asked = Asked()

    async with scraping(asked, engines(2), work_of=idle_are({"e0"})):
        await asked.until(lambda: asked.rounds >= 30)

    assert asked.names.count("e0") < asked.names.count("e1") / 2


async def test_an_engine_that_is_idle_no_more_has_its_turn_in_the_next_round() -> None:
    asked, idle = Asked(), {"e0"}

    async with scraping(asked, engines(2), work_of=idle_are(idle)) as scraper:
        await asked.until(lambda: scraper.turns["e0"].pause > 0.5)
        left_out = [engine.name for engine in scraper.idle]
        idle.clear()
        before, rounds = asked.names.count("e0"), asked.rounds
        await asked.until(lambda: asked.rounds >= rounds + 4)

    assert left_out in (["e0"], [])  # it may just be asked
    assert asked.names.count("e0") >= before + 3


async def test_an_engine_whose_connection_has_ended_has_its_turn_in_the_next_round() -> None:
    asked = Asked()

    async with scraping(asked, engines(1), work_of=idle_are({"e0"})) as scraper:
        await asked.until(lambda: scraper.turns["e0"].pause > 0.5)
        before, rounds = len(asked.names), asked.rounds
        scraper.hurry("http://e0")
        await asked.until(lambda: len(asked.names) > before)

    assert asked.rounds - rounds < 10


async def test_an_engine_that_owes_an_answer_is_not_taken_for_idle() -> None:
    held = asyncio.Event()

    async def answer(_: Engine) -> bool:
        if len(asked.names) > 3:
            await held.wait()
        return True

    asked = Asked(answer)
    async with scraping(asked, engines(1), work_of=idle_are({"e0"})) as scraper:
        await asked.until(lambda: scraper.turns["e0"].passed_over >= 5)
        left_out = list(scraper.idle)

    assert left_out == []


async def test_an_engine_whose_work_is_known_is_asked_in_each_round_and_its_pause_stays() -> None:
    asked, work = Asked(), Work.NONE

    async with scraping(asked, engines(1), work_of=lambda *_: work) as scraper:
        turn = scraper.turns["e0"]
        await asked.until(lambda: turn.pause > 0.5)
        work, rounds, before = Work.KNOWN, asked.rounds, len(asked.names)
        await asked.until(lambda: asked.rounds >= rounds + 5)
        pause, times = turn.pause, len(asked.names) - before

    assert times >= 4
    assert pause > 0.5


@asynccontextmanager
async def resting(
    asked: Asked, number: int, work: dict[str, Work], *, is_stirred: bool = True
) -> AsyncIterator[Scraper]:
    """Engines that have been idle for long; `work`: what they have to do from then on."""
    fleet = engines(number)
    async with scraping(
        *(asked, fleet, 0.01, lambda engine, _: work.get(engine.name, Work.NONE)),
        is_stirred=is_stirred,
    ) as scraper:
        await asked.until(lambda: all(turn.pause > 1 for turn in scraper.turns.values()))
        before = asked.rounds
        await asked.until(lambda: asked.rounds > before)
        yield scraper


async def rounds_in(asked: Asked, seconds: float) -> int:
    before = asked.rounds
    await asyncio.sleep(seconds)
    return asked.rounds - before


async def test_rounds_are_left_out_while_all_engines_rest() -> None:
    asked = Asked()
    async with resting(asked, 3, {}):
        number = await rounds_in(asked, 0.5)

    assert number <= 2


async def test_no_round_is_left_out_where_nothing_would_stir() -> None:
    asked, loop = Asked(), asyncio.get_running_loop()
    async with resting(asked, 1, {}, is_stirred=False):
        begun, before = loop.time(), asked.rounds
        await asked.until(lambda: asked.rounds >= before + 6)

    assert loop.time() - begun < 4  # and not one a second


async def test_no_round_is_left_out_while_an_engine_works() -> None:
    asked, work = Asked(), dict[str, Work]()
    async with resting(asked, 2, work) as scraper:
        work["e1"] = Work.KNOWN
        scraper.stir()
        before = asked.names.count("e1")
        await asked.until(lambda: asked.names.count("e1") >= before + 20)
        left_alone = [engine.name for engine in scraper.idle]

    assert left_alone == ["e0"]


@pytest.mark.parametrize("what", ["stir", "suspect", "hurry", "add"])
async def test_what_may_be_news_of_an_engine_ends_the_rest(what: str) -> None:
    asked, loop = Asked(), asyncio.get_running_loop()
    async with resting(asked, 1, {}) as scraper:
        stirring: dict[str, Callable[[], None]] = {
            "stir": scraper.stir,
            "suspect": lambda: scraper.suspect("e0"),
            "hurry": lambda: scraper.hurry("http://e0"),
            "add": lambda: scraper.add(engines(2)[1]),
        }
        begun = loop.time()
        for _ in range(6):
            before = asked.rounds
            stirring[what]()
            await asked.until(lambda before=before: asked.rounds > before)  # type: ignore[misc]

    assert loop.time() - begun < 4  # and not one a second


@pytest.mark.parametrize("answers", [True, False])
async def test_an_answer_that_shows_work_ends_the_rest(answers: bool) -> None:
    loop, work, times = asyncio.get_running_loop(), dict[str, Work](), list[float]()

    async def answer(engine: Engine) -> bool:
        if is_resting:
            work[engine.name] = Work.UNKNOWN
            times.append(loop.time())
            return answers
        return True

    asked, is_resting = Asked(answer), False
    async with resting(asked, 1, work):
        is_resting = True
        await asked.until(lambda: len(times) >= 2)

    assert times[1] - times[0] < 0.8  # the next round at a whole second is one later
