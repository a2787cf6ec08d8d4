"""The states of engines, what people are told of an outage, and the line of the log for an engine
that answers."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from inferway.config import EjectionSettings, EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import NEWEST_VLLM, EngineFacts, ModelCard
from inferway.fleet.outage import (
    EngineStanding,
    Outage,
    OutageKind,
    UpLog,
    count_states,
    down_words,
    effect,
    outage_words,
    page_of,
    since,
    since_words,
    state_of,
    steps,
)
from inferway.kv.events.stream import StreamState
from inferway.routing.limits.outlier_detection import Affected, OutlierDetection

UNIX = 1_795_957_062.0  # 2026-11-29 12:57:42 UTC
FROZEN = Outage(OutageKind.SILENT, 1000.0, 998.0, "no answer for 4.1 s")


def test_since_when_is_a_time_of_day_and_a_span() -> None:
    assert since_words(UNIX - 12, UNIX) == "since 12:57:30 UTC (12 s)"
    assert since_words(UNIX - 13 * 3600, UNIX) == "since 2026-11-28 23:57:42 UTC (13 h)"


def test_what_is_wrong_is_said_with_since_when_and_what_was_heard_last() -> None:
    assert outage_words(FROZEN, 1012.0, UNIX) == (
        "does not answer since 12:57:30 UTC (12 s): no answer for 4.1 s"
    )


@pytest.mark.parametrize(
    ("affected", "said"),
    [
        (Affected(), "no request has been hurt"),
        (Affected(moved=3), "0 requests failed, 3 moved to other engines"),
        (Affected(moved=0, failed=1), "1 request failed, 0 moved to other engines"),
    ],
)
def test_what_it_means_for_requests(affected: Affected, said: str) -> None:
    assert effect(affected) == said


@pytest.mark.parametrize("kind", OutageKind)
def test_each_kind_has_two_steps_and_a_page(kind: OutageKind) -> None:
    told = steps(kind, "http://e:1")

    assert told.startswith("(1) ")
    assert told.count("(2) ") == 1
    assert "{" not in told
    assert page_of(kind).startswith("https://")


def test_the_log_says_what_to_do_when_an_engine_goes_out() -> None:
    line = down_words("e", "http://e:1", FROZEN)

    assert line.startswith("engine e does not answer: no answer for 4.1 s; it gets no requests")
    assert "curl -m 5 http://e:1/health" in line


def engine(name: str = "e", *, kind: OutageKind | None = None, **fields: Any) -> Engine:
    outage = None if kind is None else Outage(kind, 90.0, None, "refused")
    settings = EngineSettings(url="http://e:1", name=name)
    return Engine(settings, (), outage=outage, up_since=50.0, **fields)


def test_an_outage_has_the_state_of_its_kind_and_begins_when_it_began() -> None:
    standing = OutlierDetection()
    for kind in OutageKind:
        out = engine(kind=kind)

        assert state_of(out, standing, 100.0) == kind.value
        assert since(out, standing, {}, 100.0) == 90.0


def test_one_that_is_well_is_ready_since_it_came_up() -> None:
    well = engine(healthy=True)

    assert state_of(well, OutlierDetection(), 100.0) is EngineStanding.READY
    assert since(well, OutlierDetection(), {}, 100.0) == 50.0


def test_one_that_has_not_answered_yet_is_unheard() -> None:
    assert state_of(engine(), OutlierDetection(), 100.0) is EngineStanding.UNHEARD


def test_one_that_is_drained_is_so_whether_it_answers_or_not() -> None:
    standing = OutlierDetection(drained={"e"})
    out = engine(kind=OutageKind.SILENT)

    assert state_of(out, standing, 100.0) is EngineStanding.DRAINED
    assert since(out, standing, {"e": 70.0}, 100.0) == 70.0


def test_one_that_fails_is_ejected_since_it_was_put_out() -> None:
    standing = OutlierDetection(EjectionSettings(failures=2, seconds=5.0))
    for now in (80.0, 81.0):
        standing.failed("e", now)
    failing = engine(healthy=True)

    assert state_of(failing, standing, 82.0) is EngineStanding.EJECTED
    assert since(failing, standing, {}, 82.0) == 81.0
    standing.failed("e", 87.0)  # its try, too
    assert since(failing, standing, {}, 88.0) == 81.0


def test_every_state_is_counted_without_any_engine_too() -> None:
    assert count_states([], OutlierDetection(), 0.0) == dict.fromkeys(EngineStanding, 0)
    counts = count_states([engine(healthy=True), engine("f")], OutlierDetection(), 0.0)
    assert (counts[EngineStanding.READY], counts[EngineStanding.UNHEARD]) == (1, 1)


@dataclass
class Stream:
    """An event stream, as far as the line needs it."""

    state: StreamState
    block_size_seen: int | None = None


def logged(state: StreamState | None, *, was_up: bool = True) -> Engine:
    facts = EngineFacts((ModelCard("m", None, None, None),), (), 16, ())
    out = Outage(OutageKind.SILENT, asyncio.get_running_loop().time() - 211, None, "no answer")
    made = Engine(EngineSettings(url="http://e:1", name="e"), (), facts, outage=out)
    made.up_since = 1.0 if was_up else None
    stream: Any = Stream(state) if state is not None else None
    made.followed = [] if stream is None else [stream]
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inferway.fleet")


async def test_the_first_answer_says_what_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    UpLog(lambda _: 7).up(logged(None, was_up=False), follows_events=True)

    assert lines(caplog) == ["engine e serves m, with block size 16 and KV events none"]


async def test_a_version_newer_than_the_newest_known_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, first, second = UpLog(lambda _: 7), logged(None, was_up=False), logged(None, was_up=False)
    for each in (first, second):
        card = ModelCard("m", None, None, None, "vllm")
        each.facts = EngineFacts((card,), (), 16, (), f"{NEWEST_VLLM[0]}.{NEWEST_VLLM[1] + 1}.0")
        log.up(each, follows_events=True)

    named = [line for line in lines(caplog) if "is newer than" in line]
    assert len(named) == 1
    assert named[0].startswith(f"engine e: vLLM {NEWEST_VLLM[0]}.{NEWEST_VLLM[1] + 1}.0 is newer")
    assert any("is newer than" in problem for problem in first.problems())


async def test_the_newest_known_version_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    known = logged(None, was_up=False)
    card = ModelCard("m", None, None, None, "vllm")
    known.facts = EngineFacts((card,), (), 16, (), f"{NEWEST_VLLM[0]}.{NEWEST_VLLM[1]}.9")

    UpLog(lambda _: 7).up(known, follows_events=True)

    assert len(lines(caplog)) == 1


async def test_one_that_is_back_says_for_how_long_it_was_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    UpLog(lambda _: 1021).up(logged(StreamState.EXACT), follows_events=True)

    assert lines(caplog) == [
        "engine e answers again after 3 min 31 s, its cache is as it was: 1,021 blocks"
    ]


async def test_what_is_left_of_its_cache_is_said_once_its_events_show_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocks = [1021]
    log, back = UpLog(lambda _: blocks[0]), logged(StreamState.STALE)

    log.up(back, follows_events=True)
    log.state_changed(back)
    assert lines(caplog) == []
    blocks[0] = 0
    back.followed[0].state = StreamState.EXACT  # type: ignore[misc]
    log.state_changed(back)
    log.state_changed(back)

    assert lines(caplog) == ["engine e answers again after 3 min 31 s, cache empty"]


async def test_one_without_events_says_nothing_of_its_cache(
    caplog: pytest.LogCaptureFixture,
) -> None:
    UpLog(lambda _: 0).up(logged(None), follows_events=True)

    assert lines(caplog) == ["engine e answers again after 3 min 31 s"]


async def test_nothing_is_said_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log, back = UpLog(lambda _: 0), logged(StreamState.STALE)
    log.up(back, follows_events=True)

    log.close()
    log.state_changed(back)

    assert lines(caplog) == []
