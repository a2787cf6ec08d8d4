"""Journals become a snapshot beside the running gateway, and at no step can a crash cost it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fleet.journal.lives import Life, Publisher, files, life, removed, stored

from inferway.errors import JournalError
from inferway.fleet.journal.compaction import compact
from inferway.fleet.journal.journal_files import install
from inferway.kv.events.stream import StreamState

PROMPTS = 12


async def several_runs(path: Path, publisher: Publisher) -> None:
    """Three files: prompts of 0..11 blocks, some shortened, one in its middle."""
    for run in range(3):
        async with life(path) as gateway:
            gateway.link(publisher)
            for prompt in range(run, PROMPTS, 3):
                gateway.live(*publisher.publish(stored(0, prompt, prompt)), publisher)
            gateway.live(*publisher.publish(removed(5 + run, prompt=10)), publisher)


def believed(run: Life) -> list[int]:
    matched = [run.matched(prompt) for prompt in range(PROMPTS)]
    return [*matched, run.index.num_blocks(0), run.blocks.num_blocks]


async def loaded(path: Path) -> list[int]:
    async with life(path) as run:
        return believed(run)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_snapshot_comes_to_the_same_as_its_journals(tmp_path: Path) -> None:
    publisher = Publisher()
    await several_runs(tmp_path, publisher)
    before = await loaded(tmp_path)
    directory = files(tmp_path)[0].parent
    number = int(files(tmp_path)[-1].stem)

    compact(directory, number, directory / "new.tmp")
    for _ in install(directory, number, directory / "new.tmp"):
        pass

    assert [path.name for path in files(tmp_path)] == [f"{number:08d}.snapshot"]
    async with life(tmp_path) as run:
        assert believed(run) == before
        run.link(publisher)
        assert run.follower.state is StreamState.EXACT
        assert believed(run) == before


async def test_a_snapshot_of_a_snapshot_and_what_came_after(tmp_path: Path) -> None:
    publisher = Publisher()
    await several_runs(tmp_path, publisher)
    directory = files(tmp_path)[0].parent
    for number in (2, 3):
        compact(directory, number, directory / "new.tmp")
        for _ in install(directory, number, directory / "new.tmp"):
            pass
    twice = await loaded(tmp_path)

    once_path = tmp_path.with_name("once")
    await several_runs(once_path, Publisher())
    assert twice == await loaded(once_path)


async def test_a_crash_at_any_step_leaves_the_same(tmp_path: Path) -> None:
    await several_runs(tmp_path / "a", Publisher())
    before = await loaded(tmp_path / "a")
    number = 3  # and the fourth file, of the load just now, stays
    steps = 0
    is_done = False
    while not is_done:
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        directory = files(tmp_path / "b")[0].parent
        compact(directory, number, directory / "new.tmp")
        installing = install(directory, number, directory / "new.tmp")
        for _ in range(steps):
            is_done = next(installing, "done") == "done"
        steps += 1

        assert await loaded(tmp_path / "b") == before
    assert steps > 5


async def test_a_crash_while_it_is_written_leaves_the_journals(tmp_path: Path) -> None:
    await several_runs(tmp_path, Publisher())
    before = await loaded(tmp_path)
    directory = files(tmp_path)[0].parent
    compact(directory, 3, directory / "00000003.snapshot.tmp")
    whole = (directory / "00000003.snapshot.tmp").read_bytes()
    for length in range(0, len(whole), 97):
        (directory / "00000003.snapshot.tmp").write_bytes(whole[:length])

        assert await loaded(tmp_path) == before
    assert not list(directory.glob("*.tmp"))


async def test_a_snapshot_with_a_byte_changed_is_not_used(tmp_path: Path) -> None:
    await several_runs(tmp_path, Publisher())
    directory = files(tmp_path)[0].parent
    compact(directory, 3, directory / "new.tmp")
    for _ in install(directory, 3, directory / "new.tmp"):
        pass
    [path] = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    assert await loaded(tmp_path) == [0] * (PROMPTS + 2)


async def test_a_journal_that_is_not_whole_is_not_compacted(
    tmp_path: Path,
) -> None:
    await several_runs(tmp_path, Publisher())
    path = files(tmp_path)[1]
    path.write_bytes(path.read_bytes()[:-3])

    with pytest.raises(JournalError, match=r"00000002.journal: not whole behind byte \d+"):
        compact(path.parent, 3, path.parent / "new.tmp")
    command = [sys.executable, "-m", "inferway.fleet.journal.compaction"]
    arguments = [str(path.parent), "3", str(path.parent / "new.tmp")]
    child = subprocess.run([*command, *arguments], capture_output=True, text=True)
    assert (child.returncode, "not whole behind byte" in child.stderr) == (1, True)


def churn(run: Life, publisher: Publisher, rounds: int) -> None:
    """One prompt comes and goes, and comes."""
    for _ in range(rounds):
        run.live(*publisher.publish(stored(0, 4)), publisher)
        run.live(*publisher.publish(*[removed(block) for block in (3, 2, 1, 0)]), publisher)
    run.live(*publisher.publish(stored(0, 3)), publisher)


async def test_a_journal_that_has_grown_is_compacted_while_it_is_written(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path, compact_min_bytes=4000) as run:
        assert run.journal is not None
        stats = run.journal.stats
        for compactions in (1, 2):
            churn(run, publisher, 100)
            await wait_until(lambda: stats.compactions == compactions)  # noqa: B023
        assert stats.failed_compactions == 0

    assert sum(path.stat().st_size for path in files(tmp_path)) < 0.8 * stats.bytes
    async with life(tmp_path) as second:
        assert second.matched() == 3
        second.link(publisher)
        assert (second.matched(), second.replays) == (3, [401])


async def test_a_compaction_that_fails_costs_nothing_but_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    async with life(tmp_path) as run:
        churn(run, publisher, 1)
    async with life(tmp_path, compact_min_bytes=2000) as run:
        assert run.journal is not None
        stats = run.journal.stats
        run.link(publisher)
        path = files(tmp_path)[0]
        data = path.read_bytes()
        path.write_bytes(data[:-1])
        churn(run, publisher, 50)
        await wait_until(lambda: stats.failed_compactions == 1)
        path.write_bytes(data)
        churn(run, publisher, 1)

    assert "its journal cannot be compacted: " in caplog.text
    assert "00000001.journal: not whole" in caplog.text
    async with life(tmp_path) as third:
        third.link(publisher)
        assert (third.matched(), len(third.replays)) == (3, 1)


async def test_closing_ends_a_compaction(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path, compact_min_bytes=2000) as run:
        churn(run, publisher, 50)  # and it has only just begun

    async with life(tmp_path) as second:
        assert second.matched() == 3
        assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]
