"""What a gateway knew of an engine is there after its end, and trusted once it is proven."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

import pytest
from tests.fleet.lives import FILE, NAME, Life, Publisher, life, opened, removed, stored

from inferway.errors import ConfigError
from inferway.fleet.state_dir import KEEP_SECONDS, MAGIC, StateDir
from inferway.fleet.stream_figures import SnapshotProof
from inferway.kv.events.holder_snapshot import HolderSnapshot
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex


def proof(run: Life) -> SnapshotProof:
    assert run.snapshot is not None
    return run.snapshot.figures.proof


def followed(run: Life, publisher: Publisher, *batches: list[dict[str, object]]) -> None:
    """Live batches, one after the other."""
    for events in batches:
        run.live(*publisher.publish(*events), publisher)


async def test_what_was_known_is_loaded_and_stale(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)], [stored(5, 7), removed(6)])
        assert first.matched() == 6

    async with life(tmp_path) as second:
        assert second.matched() == 6
        assert second.follower.state is StreamState.STALE
        assert proof(second) is SnapshotProof.PENDING


async def test_an_engine_in_the_same_life_is_exact_again_without_its_history(
    tmp_path: Path,
) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)], [stored(5, 7)])
    publisher.lose(below=1)
    publisher.publish(removed(6))

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.replays == [1]
        assert second.matched() == 6
        assert second.follower.state is StreamState.EXACT


async def test_an_engine_that_nobody_heard_from_meanwhile_is_proven_too(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)])

    async with life(tmp_path) as second:
        second.link(publisher)


async def test_of_an_engine_that_was_restarted_nothing_is_believed(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)], [stored(5, 7)])
    restarted = Publisher(life=100.0)
    restarted.publish(stored(0, 2))
    restarted.publish(stored(0, 3, prompt=1))

    async with life(tmp_path) as second:
        second.link(restarted)

        assert (second.matched(), second.matched(prompt=1)) == (2, 3)
        assert second.follower.state is StreamState.EXACT
    async with life(tmp_path) as third:  # and its snapshot is that of the new life
        third.link(restarted)

        assert third.replays == [1]
        assert (third.matched(), third.matched(prompt=1)) == (2, 3)


async def test_of_an_engine_whose_buffer_has_gone_on_nothing_is_believed(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)])
    for _ in range(3):
        publisher.publish(removed(4))
    publisher.publish(stored(0, 2, prompt=1))
    publisher.lose(below=4)

    async with life(tmp_path) as second:
        second.link(publisher)

        assert (second.matched(), second.matched(prompt=1)) == (0, 2)
        assert second.follower.state is StreamState.PARTIAL


async def test_a_partial_picture_is_partial_after_a_restart(tmp_path: Path) -> None:
    publisher = Publisher()
    publisher.publish(stored(0, 2, prompt=1))
    publisher.lose(below=1)
    async with life(tmp_path) as first:
        first.link(publisher)
        followed(first, publisher, [stored(0, 5)])

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.matched() == 5
        assert second.follower.state is StreamState.PARTIAL


async def test_a_killed_gateway_loses_nothing_that_the_replay_does_not_bring(
    tmp_path: Path,
) -> None:
    publisher = Publisher()
    async with life(tmp_path / "a", seconds=0.001) as first:
        followed(first, publisher, [stored(0, 5)], [stored(5, 7)])
        while not (tmp_path / "a" / FILE).exists():
            await asyncio.sleep(0.001)
        left = shutil.copytree(tmp_path / "a", tmp_path / "b")
        followed(first, publisher, [stored(7, 9)])

    async with life(left) as second:
        assert second.matched() == 7
        second.link(publisher)

        assert second.replays == [1]
        assert second.matched() == 9


async def written(path: Path) -> Publisher:
    """A snapshot of an engine with four blocks of a prompt, and one that is gone."""
    publisher = Publisher()
    async with life(path) as first:
        followed(first, publisher, [stored(0, 4)], [stored(4, 5)], [removed(4)])
    return publisher


async def test_a_file_torn_at_any_byte_is_not_used(tmp_path: Path) -> None:
    publisher = await written(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()

    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        await nothing_is_believed(path, publisher)


async def test_a_file_changed_at_any_byte_is_not_used(tmp_path: Path) -> None:
    publisher = await written(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()

    for place in range(len(whole)):
        path.write_bytes(bytes([*whole[:place], whole[place] ^ 0x20, *whole[place + 1 :]]))
        await nothing_is_believed(path, publisher)


async def nothing_is_believed(path: Path, publisher: Publisher) -> None:
    """The file is not used, and the truth comes by the replay."""
    run, kept = Life(), path.read_bytes()
    state_dir = StateDir(path.parent, run.index.links)
    state_dir.open()
    run.snapshot = state_dir.stream(NAME, "/models/one")
    await run.load()
    assert (run.blocks.num_blocks, run.follower.state) == (0, StreamState.BLIND)
    assert proof(run) is SnapshotProof.NONE
    run.link(publisher)
    assert (run.matched(), run.follower.state) == (4, StreamState.EXACT)
    assert path.read_bytes() == kept
    await state_dir.close()


@pytest.mark.parametrize("other", ["model", "format", "torn"])
async def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    await written(tmp_path)
    path = tmp_path / FILE
    whole = path.read_bytes()
    if other == "format":
        path.write_bytes(whole.replace(MAGIC, b"inferway-state-9"))
    if other == "torn":
        path.write_bytes(whole[:50])
    model = "/models/two" if other == "model" else "/models/one"

    with caplog.at_level(logging.INFO, "inferway.snapshot"):
        async with life(tmp_path, model) as second:
            assert second.blocks.num_blocks == 0
            assert second.follower.state is StreamState.BLIND
    [line] = caplog.messages
    assert {
        "model": "10.0.0.1:8000: its snapshot is not used: it was taken for model '/models/one'",
        "format": "10.0.0.1:8000: its snapshot is not used: ",
        "torn": "10.0.0.1:8000: its snapshot is not used: ",
    }[other] in line


async def test_a_snapshot_that_is_not_used_is_replaced_by_the_next(tmp_path: Path) -> None:
    publisher = await written(tmp_path)
    (tmp_path / FILE).write_bytes(b"of another program")
    async with life(tmp_path) as second:
        second.link(publisher)

    async with life(tmp_path) as third:
        assert third.matched() == 4


async def test_that_copies_count_no_more_is_kept_at_once(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path / "a", seconds=0.001) as first:
        followed(first, publisher, [stored(0, 3)])
        while not (tmp_path / "a" / FILE).exists():
            await asyncio.sleep(0.001)
        first.count_no_copies()
        left = shutil.copytree(tmp_path / "a", tmp_path / "b")
        followed(first, publisher, [stored(0, 3)], [removed(2)])

    async with life(left) as second:
        second.link(publisher)

        assert second.matched() == 2


async def test_that_copies_never_counted_is_kept(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path, heal=True) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    publisher.publish(removed(2))

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.matched() == 2
        assert second.follower.state is StreamState.PARTIAL


async def test_that_copies_count_no_more_is_kept_although_nothing_new_came(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    async with life(tmp_path, heal=True):
        pass
    publisher.publish(removed(2))

    async with life(tmp_path) as third:
        third.link(publisher)

        assert third.matched() == 2


async def test_copies_in_the_snapshot_are_not_counted_where_none_are(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    publisher.publish(removed(2))

    async with life(tmp_path, heal=True) as second:
        second.link(publisher)

        assert second.matched() == 2


async def test_copies_in_the_snapshot_are_counted(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    publisher.publish(removed(2))

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.matched() == 3
        assert second.follower.state is StreamState.EXACT


async def test_a_disk_that_takes_no_snapshot_is_logged_once_and_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    index = MemoryIndex()
    in_the_way = (tmp_path / FILE).with_suffix(".tmp")
    async with opened(tmp_path, index, seconds=0.001) as state_dir:
        run = Life(state_dir.stream(NAME, "/models/one"))
        run.index = index
        await run.load()
        in_the_way.mkdir()
        followed(run, publisher, [stored(0, 3)])
        while figure(state_dir, "snapshots", outcome="failed") < 3:
            await asyncio.sleep(0.001)
        assert figure(state_dir, "snapshot_failing") == 1
        in_the_way.rmdir()
        while not figure(state_dir, "snapshots", outcome="done"):
            await asyncio.sleep(0.001)
        assert figure(state_dir, "snapshot_failing") == 0
    [line] = [r.getMessage() for r in caplog.records if r.name == "inferway.snapshot"]
    assert "the snapshot cannot be written: " in line
    assert kept(tmp_path) == [FILE]


def kept(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("*.snapshot"))


def figure(state_dir: StateDir, name: str, **labels: str) -> float:
    [value] = [
        sample.value
        for family in state_dir.families()
        if family.name == f"inferway_{name}"
        for sample in family.samples
        if sample.labels == labels
    ]
    return value


async def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)])
    before = (tmp_path / FILE).stat().st_ino

    async with opened(tmp_path):
        pass

    assert (tmp_path / FILE).stat().st_ino == before


async def test_an_engine_that_is_not_there_is_remembered_for_an_hour(tmp_path: Path) -> None:
    publisher, other = Publisher(), Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)])
    async with life(tmp_path, name="another", later=KEEP_SECONDS - 60) as second:
        followed(second, other, [stored(0, 3)])
    async with life(tmp_path) as third:
        assert third.matched() == 5
    async with life(tmp_path, name="another", later=KEEP_SECONDS + 60) as fourth:
        followed(fourth, other, [stored(3, 4)])

    assert kept(tmp_path) == ["another.snapshot"]


async def test_no_snapshot_is_kept_of_an_engine_whose_blocks_are_forgotten_meanwhile(
    tmp_path: Path,
) -> None:
    """It would claim to be exact, and lack what the index has no more when it is written."""
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)])
    async with life(tmp_path) as second:
        second.link(publisher)
        followed(second, publisher, [stored(5, 6)])
        taken = second.take_snapshot

        async def taken_and_forgotten() -> HolderSnapshot | None:
            snapshot = await taken()
            second.follower.stats.forgotten += 1
            second.index.apply(second.blocks.forget())
            return snapshot

        second.take_snapshot = taken_and_forgotten  # type: ignore[method-assign]

    async with life(tmp_path) as third:  # with the snapshot before
        assert third.matched() == 5


async def test_the_files_are_the_users_alone(tmp_path: Path) -> None:
    async with life(tmp_path / "state", heal=True) as run:
        followed(run, Publisher(), [stored(0, 3)])

    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert modes == {"lock": 0o600, FILE: 0o600, "uncounted": 0o600}


async def test_a_directory_has_one_gateway(tmp_path: Path) -> None:
    async with opened(tmp_path):
        with pytest.raises(ConfigError, match=f"the gateway with process id {os.getpid()} uses it"):
            StateDir(tmp_path, MemoryIndex().links).open()
    async with opened(tmp_path):
        pass


async def test_without_a_directory_nothing_is_kept() -> None:
    state_dir = StateDir(None, MemoryIndex().links)
    state_dir.open()

    assert state_dir.stream(NAME, "m") is None
    assert not [sample for family in state_dir.families() for sample in family.samples]
    await state_dir.close()
