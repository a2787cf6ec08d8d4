"""What a gateway knew of an engine is there after its end, and trusted once it is proven."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.fleet.journal.lives import (
    Life,
    Publisher,
    files,
    life,
    not_loaded,
    removed,
    stored,
    written,
)

from inferway.fleet.journal.compaction import Compactor, compact
from inferway.fleet.journal.journal import MAX_FILES, EngineContinuity, HolderJournal, Workers
from inferway.fleet.journal.journal_files import Identity, install
from inferway.fleet.journal.writer import Tail, Writer
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Op


class BreaksAfter(MemoryIndex):
    """Its second half lies where nothing can be read: so many times it works, once it does not."""

    def __init__(self, num_times: int) -> None:
        super().__init__()
        self._num_left = num_times

    def apply(self, ops: Iterable[Op]) -> None:
        self._num_left -= 1
        if not self._num_left:
            raise OSError(5, "input/output error")
        super().apply(ops)


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
        assert second.journal is not None
        assert second.journal.proof is EngineContinuity.PENDING


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
        assert second.journal is not None
        assert second.journal.proof is EngineContinuity.PROVEN


async def test_an_engine_that_nobody_heard_from_meanwhile_is_proven_too(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 5)])

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.journal is not None
        assert second.journal.proof is EngineContinuity.PROVEN


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
        assert second.journal is not None
        assert second.journal.proof is EngineContinuity.DROPPED
    async with life(tmp_path) as third:  # and its journal is that of the new life
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
    async with life(tmp_path / "a") as first:
        followed(first, publisher, [stored(0, 5)], [stored(5, 7)])
        left = await written(first, tmp_path / "a", tmp_path / "b")
        followed(first, publisher, [stored(7, 9)])

    async with life(left) as second:
        assert second.matched() == 7
        second.link(publisher)

        assert second.replays == [1]
        assert second.matched() == 9


@pytest.mark.slow
async def test_a_file_torn_at_any_byte_comes_to_the_truth_by_the_replay(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path / "whole") as first:
        followed(first, publisher, [stored(0, 4)], [stored(4, 5)], [removed(4)])
    [name] = [path.relative_to(tmp_path / "whole") for path in files(tmp_path / "whole")]
    whole = (tmp_path / "whole" / name).read_bytes()

    seen = set()
    for length in range(len(whole)):
        shutil.rmtree(tmp_path / "torn", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "torn")
        (tmp_path / "torn" / name).write_bytes(whole[:length])
        async with life(tmp_path / "torn") as second:
            seen.add(second.matched())
            second.link(publisher)

            assert second.matched() == 4
            assert second.follower.state is StreamState.EXACT
    assert seen == {0, 4, 5}


@pytest.mark.slow
async def test_a_file_damaged_at_any_byte_comes_to_the_truth_by_the_replay(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path / "whole") as first:
        followed(first, publisher, [stored(0, 4)], [stored(4, 5)], [removed(4)])
    [name] = [path.relative_to(tmp_path / "whole") for path in files(tmp_path / "whole")]
    whole = (tmp_path / "whole" / name).read_bytes()

    for place in range(len(whole)):
        shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
        damaged = bytes([*whole[:place], whole[place] ^ 0x20, *whole[place + 1 :]])
        (tmp_path / "damaged" / name).write_bytes(damaged)
        async with life(tmp_path / "damaged") as second:
            assert second.matched() in (0, 4, 5)
            second.link(publisher)

            assert second.matched() == 4
            assert second.follower.state is StreamState.EXACT


async def test_what_a_torn_file_is_followed_by_is_loaded_next_time(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)], [stored(3, 5)])
    [path] = files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    async with life(tmp_path) as second:
        second.link(publisher)
        followed(second, publisher, [stored(5, 6)])

    async with life(tmp_path) as third:
        assert third.matched() == 6


async def test_files_after_one_that_is_torn_are_not_used(tmp_path: Path) -> None:
    publisher = Publisher()
    for first in (0, 3):
        async with life(tmp_path) as run:
            run.link(publisher)
            followed(run, publisher, [stored(first, first + 3)], [stored(0, 1, prompt=first + 1)])
    older, newer = files(tmp_path)
    older.write_bytes(older.read_bytes()[:-1])

    async with life(tmp_path) as third:
        assert (third.matched(), third.matched(prompt=1)) == (3, 0)
        assert newer not in files(tmp_path) or newer.stat().st_size < 300


async def test_a_batch_that_was_cut_off_in_its_middle_is_left_out(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)])
        batch = publisher.publish(stored(0, 2, prompt=1), stored(0, 2, prompt=2))
        steps = first.follower.live(*batch)
        while not first.blocks.num_blocks > 3:
            step = next(steps)
            assert isinstance(step, list)
            first.index.apply(step)

    async with life(tmp_path) as second:
        assert (second.matched(), second.matched(prompt=1)) == (3, 0)


async def test_that_copies_count_no_more_is_written_at_once(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path / "a") as first:
        followed(first, publisher, [stored(0, 3)])
        first.blocks.count_no_copies()
        left = await written(first, tmp_path / "a", tmp_path / "b")
    followed(first, publisher, [stored(0, 3)], [removed(2)])

    async with life(left) as second:
        second.link(publisher)

        assert second.matched() == 2


async def test_that_copies_never_counted_is_written(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path, heal=1.0) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    publisher.publish(removed(2))

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.matched() == 2
        assert second.follower.state is StreamState.PARTIAL


async def test_that_copies_count_no_more_is_written_although_nothing_new_came(
    tmp_path: Path,
) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    async with life(tmp_path, heal=1.0):
        pass
    publisher.publish(removed(2))

    async with life(tmp_path) as third:
        third.link(publisher)

        assert third.matched() == 2


async def test_copies_in_the_journal_are_not_counted_where_none_are(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])
    publisher.publish(removed(2))

    async with life(tmp_path, heal=1.0) as second:
        second.link(publisher)

        assert second.matched() == 2


async def test_that_copies_count_no_more_is_in_a_snapshot_too(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path, heal=1.0) as first:
        followed(first, publisher, [stored(0, 3)], [stored(0, 3)])  # blocks, and a report of them
    directory = files(tmp_path)[0].parent
    compact(directory, 1, directory / "new.tmp")
    for _ in install(directory, 1, directory / "new.tmp"):
        pass
    publisher.publish(removed(2))

    async with life(tmp_path) as second:
        second.link(publisher)

        assert second.matched() == 2
        assert second.follower.state is StreamState.PARTIAL


async def test_a_disk_that_cannot_be_read_to_the_end_leaves_nothing_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        for prompt in range(20):
            followed(first, publisher, [stored(0, 3, prompt)])

    async with not_loaded(tmp_path, index=BreaksAfter(10)) as second:
        await second.load()

        assert [second.matched(prompt) for prompt in range(20)] == [0] * 20
        assert (second.blocks.num_blocks, second.follower.state) == (0, StreamState.BLIND)
        assert second.journal is not None
        assert second.journal.stats.given_up
        second.link(publisher)
        assert [second.matched(prompt) for prompt in range(20)] == [3] * 20
    assert "10.0.0.1:8000: no journal in this run: [Errno 5] " in caplog.text


@pytest.mark.parametrize("other", ["model", "format", "snapshot"])
async def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    publisher = Publisher()
    async with life(tmp_path) as first:
        followed(first, publisher, [stored(0, 3)])
    [path] = files(tmp_path)
    if other == "format":
        path.write_bytes(path.read_bytes()[:20] + b"?" + path.read_bytes()[21:])
    if other == "snapshot":
        path.rename(path.with_suffix(".snapshot"))
    model = "/models/two" if other == "model" else "/models/one"

    with caplog.at_level(logging.INFO, "inferway.journal"):
        async with life(tmp_path, model) as second:
            assert second.blocks.num_blocks == 0
            assert second.follower.state is StreamState.BLIND
    [line] = caplog.messages
    assert "10.0.0.1:8000: its journal is not used: " in line
    assert path not in files(tmp_path) or path.stat().st_size < 200


async def test_a_disk_that_is_too_slow_ends_the_journal_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    writer = Writer(max_queued_bytes=500)  # whose thread, not started yet, is very slow
    workers = Workers(writer, Compactor(), asyncio.Lock())
    run = Life(HolderJournal(tmp_path, Identity("e1", "m", "k"), workers, threading.Lock()))
    assert run.journal is not None
    await run.load()
    for prompt in range(10):
        followed(run, publisher, [stored(0, 3, prompt=prompt)])

    assert run.journal.stats.given_up
    assert [run.matched(prompt) for prompt in range(10)] == [3] * 10
    [line] = [r.getMessage() for r in caplog.records if r.name == "inferway.journal"]
    assert "engine e1: its journal ends here for this run: the disk is too slow for it" in line
    writer.start()
    await writer.close()  # what was taken is written
    [path] = tmp_path.iterdir()
    assert path.stat().st_size == run.journal.stats.bytes


async def test_a_disk_that_is_gone_ends_the_journal_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    async with life(tmp_path, compact_min_bytes=1000) as run:
        assert run.journal is not None
        await run.journal.flush()
        shutil.rmtree(files(tmp_path)[0].parent)
        for _ in range(20):  # beyond the size at which the next file begins
            followed(run, publisher, [stored(0, 3)], [removed(2), removed(1), removed(0)])
        await run.journal.flush()
        followed(run, publisher, [stored(0, 3)])

        assert run.journal.stats.given_up
        assert run.matched() == 3
    [line] = [r.getMessage() for r in caplog.records if r.name == "inferway.journal"]
    assert "its journal ends here for this run: [Errno 2] No such file or directory" in line


async def test_runs_in_which_nothing_happens_leave_no_files(tmp_path: Path) -> None:
    publisher = Publisher()
    async with life(tmp_path) as run:
        followed(run, publisher, [stored(0, 3)])
    for _ in range(5):
        async with life(tmp_path) as run:
            run.link(publisher)

    assert [path.name for path in files(tmp_path)] == ["00000001.journal", "00000002.journal"]


async def test_many_starts_are_compacted(tmp_path: Path) -> None:
    publisher = Publisher()
    for _ in range(MAX_FILES + 1):
        async with life(tmp_path) as run:
            run.link(publisher)
            followed(run, publisher, [stored(0, 3)])
            assert run.journal is not None
            assert run.journal.stats.compactions == 0
    async with life(tmp_path) as run:
        run.link(publisher)
        followed(run, publisher, [removed(2)])
        assert run.journal is not None
        stats = run.journal.stats
        async with asyncio.timeout(30):
            while not stats.compactions:
                await asyncio.sleep(0.005)

        assert len(files(tmp_path)) <= 3


async def test_a_journal_that_cannot_be_compacted_does_not_grow_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher()
    async with life(tmp_path) as run:
        followed(run, publisher, [stored(0, 3)])
    async with life(tmp_path, compact_min_bytes=500) as run:
        run.link(publisher)
        path = files(tmp_path)[0]
        path.write_bytes(path.read_bytes()[:-1])
        assert run.journal is not None
        stats = run.journal.stats
        async with asyncio.timeout(30):
            while not stats.given_up:
                followed(run, publisher, [stored(0, 3)], [removed(2), removed(1), removed(0)])
                await asyncio.sleep(0.005)

        assert stats.failed_compactions > 0
    assert "its journal ends here for this run: it cannot be compacted, and has " in caplog.text


async def test_a_disk_that_does_not_answer_does_not_keep_the_gateway_from_ending(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer, answers = Writer(close_seconds=0.05), threading.Event()
    writer.start()
    tails = [Tail(tmp_path, f"e{number}") for number in range(3)]
    for tail in tails:
        writer.add(tail)
        writer.do(tail, answers.wait)
    async with asyncio.timeout(1):
        for tail in tails:
            await writer.remove(tail)
        await writer.close()

    assert "engine e0: the disk does not take the end of its journal" in caplog.text
    answers.set()
