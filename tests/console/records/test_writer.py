"""What the ring gets is written within a second, and a disk that fails costs no request."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from inferway.config import EngineSettings, RecordSettings, ServeSettings
from inferway.fleet.engine import Engine
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.scheduling.load import scheduling_of
from inferway_console.records.files import FleetLine
from inferway_console.records.fleet_lines import FleetLines
from inferway_console.records.reader import Recorded, RecordReader
from inferway_console.records.record import RequestRecord
from inferway_console.records.recorder import Recorder
from inferway_console.records.ring import RecordRing
from inferway_console.records.writer import RecordFiles, RecordWriter


class Engines:
    """The part of the fleet that is looked at."""

    def __init__(self, *names: str) -> None:
        self.engines = [
            Engine(EngineSettings(url=f"http://{name}", name=name), (), healthy=True)
            for name in names
        ]


def lines(fleet: Engines, standing: OutlierDetection | None = None) -> FleetLines:
    scheduling = scheduling_of(ServeSettings(engines=[]))
    return FleetLines(fleet, standing or OutlierDetection(), scheduling)  # type: ignore[arg-type]


def writer(path: Path, recorder: Recorder) -> RecordWriter:
    files = RecordFiles(RecordSettings(directory=str(path)))
    return RecordWriter(files, recorder, lines(Engines("a", "b")))


def test_changes_of_the_fleet_are_told_once() -> None:
    fleet, standing = Engines("a", "b"), OutlierDetection()
    told = lines(fleet, standing)

    def events(at: float) -> list[tuple[str, str]]:
        return [(line.event, line.engine) for line in told.changes(at) if line.event != "costs"]

    assert events(1.0) == [("joined", "a"), ("joined", "b")]
    assert events(2.0) == []
    standing.drained.add("a")
    fleet.engines[1].healthy = False
    assert events(3.0) == [("drained", "a"), ("down", "b")]
    standing.drained.clear()
    fleet.engines[1].healthy = True
    assert events(4.0) == [("undrained", "a"), ("up", "b")]
    standing.ejected.add("b")
    assert events(5.0) == [("ejected", "b")]
    standing.ejected.clear()
    del fleet.engines[0]
    assert events(6.0) == [("back", "b"), ("left", "a")]


async def test_what_is_new_is_written_once(tmp_path: Path) -> None:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    recorder.ring.append(RequestRecord(id="before", at=0.0))
    made = writer(tmp_path, recorder)
    made.start()
    recorder.ring.append(RequestRecord(id="one", at=1.0))
    await made.write()
    await made.write()
    recorder.ring.append(RequestRecord(id="two", at=2.0))
    await made.close()

    found = list(RecordReader(tmp_path))

    assert [each.record.id for each in found if isinstance(each, Recorded)] == ["one", "two"]
    joined = [each for each in found if isinstance(each, FleetLine) and each.event == "joined"]
    assert [line.engine for line in joined] == ["a", "b"]


async def test_a_disk_that_fails_ends_it_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    made = writer(tmp_path, recorder)
    (tmp_path / "secret").unlink()
    tmp_path.rmdir()
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            recorder.ring.append(RequestRecord(id=f"r{number}", at=0.0))
            if not made.failed:
                await made.write()
        await made.close()

    assert len(caplog.messages) == 1
    assert "no longer recorded" in caplog.messages[0]
    assert not recorder.keeps_keys
    assert len(recorder.ring) == 3


async def test_closing_waits_for_what_is_being_written(tmp_path: Path) -> None:
    recorder = Recorder(RecordRing(), lambda: 0.0)
    made = writer(tmp_path, recorder)
    for number in range(2_000):
        recorder.ring.append(RequestRecord(id=f"r{number}", at=0.0))
    made.start()
    await asyncio.sleep(0)
    await made.close()

    reader = RecordReader(tmp_path)
    assert len([each for each in reader if isinstance(each, Recorded)]) == 2_000
    assert not reader.damaged
    assert os.listdir(tmp_path)
