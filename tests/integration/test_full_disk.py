"""A disk that is full while requests are recorded ends the recording, and no request."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.integration.conftest import StartFleet, until
from tests.integration.recorders import records_of

from inferway.config import RecordSettings
from inferway_console.records.reader import Recorded, RecordReader

SIZE = 128 * 1024  # bytes of the file system


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here: that is root's")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(disk: Path) -> None:
    """Leave no room."""
    with pytest.raises(OSError, match="No space left"):
        (disk / "rest").write_bytes(bytes(2 * SIZE))


async def alarms(answer: aiohttp.ClientResponse) -> AsyncIterator[list[dict[str, Any]]]:
    """As the page hears of them."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield msgspec.json.decode(line.removeprefix(b"data: ")).get("alarms") or []


async def test_a_full_disk_ends_the_recording_and_no_request(
    start_fleet: StartFleet, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = disk / "records"
    fleet = await start_fleet(1, records=RecordSettings(directory=str(directory)))
    writer = records_of(fleet.gateway).writer
    assert writer is not None
    words = Random(1)

    async def asked() -> int:
        text = " ".join(str(words.random()) for _ in range(60))
        return (await fleet.chat(text)).status

    async def is_recorded() -> bool:
        files = [*directory.glob("*.gz")]
        return await asked() == 200 and sum(file.stat().st_size for file in files) > 1_000

    async def has_ended() -> bool:
        assert await asked() == 200
        return bool(writer.failed)

    await until(is_recorded, 60)
    fill(disk)
    await until(has_ended, 60)

    assert [await asked() for _ in range(3)] == [200] * 3
    lines = [each.message for each in caplog.records if "no longer recorded" in each.message]
    assert len(lines) == 1
    assert f"no longer recorded in {directory}" in lines[0]
    assert "No space left on device" in lines[0]
    async with fleet.http.get(f"{fleet.url}/admin/live") as live:
        told = await anext(found async for found in alarms(live) if found)
    assert [each["subject"] for each in told] == ["record"]
    assert told[0]["evidence"] == f"requests are no longer recorded in {directory}: {writer.failed}"
    assert "making room" in told[0]["cure"]
    assert any(isinstance(each, Recorded) for each in RecordReader(directory))  # up to then
