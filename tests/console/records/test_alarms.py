"""What the console adds to the alarms."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.recorders import in_front_of, records_of

from inferway.config import RecordSettings
from inferway_console.console import LEAST_SHARE, RECENT_SECONDS, breaker_alarms, file_alarms
from inferway_console.records.breakers import LEAST_REQUESTS, Breaker
from inferway_console.records.differences import DifferenceKind
from inferway_console.records.record import RequestRecord
from inferway_console.records.records import Records

NOW = 100_000.0


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[Records]:
    """Those of a gateway that records."""
    async with in_front_of(records=RecordSettings(directory=str(tmp_path / "records"))) as front:
        yield records_of(front.gateway)


def plant(records: Records, lost: int, of: int, *, requests: int = 20, at: float = NOW) -> None:
    """A time in the prompts of `m` that costs so many of so many tokens."""
    found = records.watch.breakers
    found.breakers["m", DifferenceKind.TIME, 0] = Breaker(requests, lost, at, 12, 16)
    found.tokens["m"] = of
    found.tokens["another"] = 10**9


async def test_a_cache_breaker_that_costs_a_twentieth_is_an_alarm_with_its_cure(
    records: Records,
) -> None:
    plant(records, 1_000, of=int(1_000 / LEAST_SHARE))

    (alarm,) = breaker_alarms(records.watch.breakers, NOW)

    assert alarm.level == "warn"
    assert "20 prompts of m" in alarm.evidence
    assert "5.0% of its prompt tokens" in alarm.evidence
    assert alarm.cure


@pytest.mark.parametrize(
    ("lost", "requests", "later"),
    [(990, 20, 0.0), (10_000, LEAST_REQUESTS - 1, 0.0), (10_000, 20, RECENT_SECONDS + 1)],
    ids=["costs little", "seen twice", "is over"],
)
async def test_another_cache_breaker_is_none(
    records: Records, lost: int, requests: int, later: float
) -> None:
    plant(records, lost, of=20_000, requests=requests)

    assert [*breaker_alarms(records.watch.breakers, NOW + later)] == []


async def test_a_recording_that_has_stopped_is_an_alarm(records: Records) -> None:
    writer = records.writer
    assert writer is not None
    await writer.write()
    await writer._try(writer._files.close)
    shutil.rmtree(writer.directory)
    records.ring.append(RequestRecord(id="r", at=0.0))
    await writer.write()

    (alarm,) = file_alarms(writer)

    assert (alarm.level, alarm.subject) == ("warn", "record")
    assert alarm.evidence == (
        f"requests are no longer recorded in {writer.directory}: No such file or directory"
    )
    assert "restart the gateway" in alarm.cure
