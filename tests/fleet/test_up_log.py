"""The line of the log for an engine that answers, first or again."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from inferway.config import EngineSettings
from inferway.fleet.engine import Engine
from inferway.fleet.engine_facts import NEWEST_VLLM, EngineFacts, ModelCard
from inferway.fleet.outage import Outage, OutageKind, UpLog
from inferway.kv.events.stream import StreamState


@dataclass
class Stream:
    """An event stream, as far as the line needs it."""

    state: StreamState
    block_size_seen: int | None = None


def engine(state: StreamState | None, *, was_up: bool = True) -> Engine:
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
    UpLog(lambda _: 7).up(engine(None, was_up=False), follows_events=True)

    assert lines(caplog) == ["engine e serves m, with block size 16 and KV events none"]


async def test_a_version_newer_than_the_newest_known_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, first, second = UpLog(lambda _: 7), engine(None, was_up=False), engine(None, was_up=False)
    for each in (first, second):
        card = ModelCard("m", None, None, None, "vllm")
        each.facts = EngineFacts((card,), (), 16, (), f"{NEWEST_VLLM[0]}.{NEWEST_VLLM[1] + 1}.0")
        log.up(each, follows_events=True)

    named = [line for line in lines(caplog) if "is newer than" in line]
    assert len(named) == 1
    assert named[0].startswith(f"engine e: vLLM {NEWEST_VLLM[0]}.{NEWEST_VLLM[1] + 1}.0 is newer")
    assert any("is newer than" in problem for problem in first.problems())


async def test_the_newest_known_version_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    known = engine(None, was_up=False)
    card = ModelCard("m", None, None, None, "vllm")
    known.facts = EngineFacts((card,), (), 16, (), f"{NEWEST_VLLM[0]}.{NEWEST_VLLM[1]}.9")

    UpLog(lambda _: 7).up(known, follows_events=True)

    assert len(lines(caplog)) == 1


async def test_one_that_is_back_says_for_how_long_it_was_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    UpLog(lambda _: 1021).up(engine(StreamState.EXACT), follows_events=True)

    assert lines(caplog) == [
        "engine e answers again after 3 min 31 s, its cache is as it was: 1,021 blocks"
    ]


async def test_what_is_left_of_its_cache_is_said_once_its_events_show_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocks = [1021]
    log, back = UpLog(lambda _: blocks[0]), engine(StreamState.STALE)

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
    UpLog(lambda _: 0).up(engine(None), follows_events=True)

    assert lines(caplog) == ["engine e answers again after 3 min 31 s"]


async def test_nothing_is_said_after_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log, back = UpLog(lambda _: 0), engine(StreamState.STALE)
    log.up(back, follows_events=True)

    log.close()
    log.state_changed(back)

    assert lines(caplog) == []
