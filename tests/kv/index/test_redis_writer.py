"""What is written next, and what an answer means; the server is a dict of sets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kv.index.test_redis_chains import PARENTS, lineage

from inferway.kv.index.protocol import CPU, Clear, LastReport, Op, Remove, Store, Window
from inferway.kv.index.redis.writer import HolderWriter, Mode, Write, WriteAnswer, WriterStats
from inferway.model import BlockKey


@dataclass
class Server:
    """What a batch does there."""

    sets: dict[str, set[BlockKey]] = field(default_factory=dict)
    being_written: dict[str, set[BlockKey]] = field(default_factory=dict)

    def do(self, write: Write) -> None:
        _, _, mode, complete, _, _, _, _, _, _, _, *changes = write.args
        if mode == Mode.BEGIN:
            self.being_written = {}
        if mode == Mode.WIPE:
            self.sets = {}
        into = self.being_written if mode in (Mode.BEGIN, Mode.MORE) else self.sets
        for name, sign, packed in zip(*[iter(changes)] * 3, strict=True):
            assert isinstance(name, str)
            assert isinstance(packed, bytes)
            keys = set(struct.unpack(f"<{len(packed) // 8}Q", packed))
            before = into.get(name, set())
            into[name] = before | keys if sign == "+" else before - keys
        if into is self.being_written and complete:
            self.sets = into


def leased_writer(pending: int = 1000) -> HolderWriter:
    writer = HolderWriter(WriterStats(), pending, 60_000, name="a")
    writer.tell(LastReport("exact", seq=7, digest="d"))
    writer.leased("1 us")
    return writer


def write_all(writer: HolderWriter, server: Server, limit: int = 100) -> int:
    """How many batches it took."""
    batches = 0
    while (write := writer.next_write(limit)) is not None:
        server.do(write)
        writer.answered(WriteAnswer.OK)
        batches += 1
    return batches


def settled(*ops: Op) -> tuple[HolderWriter, Server]:
    writer, server = leased_writer(), Server()
    for op in ops:
        writer.apply(op)
    write_all(writer, server)
    return writer, server


def test_without_a_lease_nothing_is_written() -> None:
    writer = HolderWriter(WriterStats(), 1000, 60_000, name="a")
    writer.apply(Store(0, [1, 2]))

    assert writer.next_write(10) is None
    assert not writer.busy
    assert writer.num_blocks == 2


def test_a_lease_begins_with_all_that_is_known() -> None:
    _, server = settled(Store(0, [1, 2]), Store(0, [6], parent=5))

    assert server.sets == {"held": {1, 2}}


def test_a_picture_is_not_seen_before_it_is_whole() -> None:
    writer, server = settled(Store(0, [1, 2, 3, 4]))
    writer.leased("2 us")
    write = writer.next_write(2)
    assert write is not None
    server.do(write)

    assert server.sets == {"held": {1, 2, 3, 4}}
    assert not write.complete


def test_a_batch_is_kept_until_it_is_answered() -> None:
    writer, _ = settled()
    writer.apply(Store(0, [1]))
    first = writer.next_write(10)
    writer.apply(Store(0, [2], parent=1))

    assert writer.next_write(10) is first
    assert writer.busy


def test_numbers_tell_batches_apart() -> None:
    writer, server = settled()
    numbers = []
    for key in (1, 2, 3):
        writer.apply(Store(0, [key], parent=PARENTS[key]))
        write = writer.next_write(10)
        assert write is not None
        server.do(write)
        writer.answered(WriteAnswer.OK)
        numbers.append(write.args[1])

    assert numbers == [2, 3, 4]


def test_what_comes_and_goes_between_two_batches_is_written_once() -> None:
    writer, server = settled()
    for _ in range(50):
        writer.apply(Store(0, [1]))
        writer.apply(Remove(0, [1]))

    assert writer.num_pending == 1
    assert write_all(writer, server) == 1
    assert server.sets["held"] == set()


def test_clear_empties_the_picture_in_one_batch() -> None:
    writer, server = settled(Store(0, [1, 2, 3]))
    writer.apply(Clear(0))
    writer.apply(Store(0, [9]))
    write = writer.next_write(10)
    assert write is not None
    server.do(write)

    assert server.sets == {"held": {9}}


def test_what_was_cleared_is_freed_piece_by_piece() -> None:
    writer, _ = settled(Store(0, [key << 40 for key in range(2**20, 2**20 + 50_000)]))
    writer.apply(Clear(0))
    pieces = 0
    while writer.clear_up():
        pieces += 1

    assert pieces > 10
    assert not writer.clear_up()


def test_only_the_last_batch_says_how_far_the_picture_goes() -> None:
    writer, server = settled()
    writer.apply(Store(0, [1, 2, 3]))
    writer.tell(LastReport("exact", seq=8))
    complete = []
    while (write := writer.next_write(2)) is not None:
        server.do(write)
        writer.answered(WriteAnswer.OK)
        complete.append(write.complete)

    assert complete == [False, True]


def test_what_was_told_is_written_without_changes_too() -> None:
    writer, _ = settled(Store(0, [1]))
    writer.tell(LastReport("stale", seq=9))
    write = writer.next_write(10)
    assert write is not None

    assert write.num_keys == 0
    assert write.args[8:11] == ["stale", 9, ""]


def test_lower_tiers_and_other_groups_have_sets_of_their_own() -> None:
    _, server = settled(
        *(Store(0, [1, 2]), Store(0, [2], parent=1, tier=CPU), Remove(0, [2])),
        *(Store(0, [1, 2], group=3), Window(0, 3, 1)),
    )

    assert server.sets == {"held": {1, 2}, "t1": {2}, "g3": {1, 2}}


def test_a_window_is_written_until_it_is_taken_back() -> None:
    writer, server = settled(Window(0, 3, 128), Window(0, 4, 16))
    written = []
    for blocks in (0, 8):
        writer.apply(Window(0, 4, blocks))
        write = writer.next_write(10)
        assert write is not None
        written.append(write.args[6])
        write_all(writer, server)

    assert written == ["3:128", "3:128 4:8"]


def test_a_fenced_writer_falls_silent() -> None:
    writer, _ = settled()
    writer.apply(Store(0, [1]))
    writer.next_write(10)
    writer.answered(WriteAnswer.FENCED)

    assert writer.lease is None
    assert writer.next_write(10) is None
    assert writer.stats.fenced == 1


def test_a_server_that_lost_a_batch_is_written_anew() -> None:
    writer, server = settled(Store(0, [1, 2]))
    server.sets.clear()
    writer.apply(Store(0, [9]))
    writer.next_write(10)
    writer.answered(WriteAnswer.STEP)
    write_all(writer, server)

    assert server.sets == {"held": {1, 2, 9}}
    assert writer.stats.repairs == 1


@pytest.mark.parametrize(("lost_batches", "num_held"), [(0, 1), (1, 2), (0, 0)])
def test_a_server_that_has_something_else_is_written_anew(lost_batches: int, num_held: int) -> None:
    writer, server = settled(Store(0, [1, 2]))
    writer.audit(writer.settled, writer.batch, num_held=2)
    assert not writer.busy

    writer.audit(writer.settled, writer.batch - lost_batches, num_held)
    server.sets.clear()
    write_all(writer, server)

    assert server.sets == {"held": {1, 2}}


def test_what_was_under_way_when_the_server_was_asked_proves_nothing() -> None:
    writer, server = settled(Store(0, [1, 2]))
    before = writer.settled
    writer.apply(Store(0, [3], parent=2))
    assert writer.settled is None
    write_all(writer, server)
    assert writer.settled is not None
    for asked in (before, None):
        writer.audit(asked, batch=1, num_held=2)

    assert not writer.busy


def test_a_picture_is_begun_when_more_has_changed_than_there_is() -> None:
    writer, server = leased_writer(pending=3), Server()
    write_all(writer, server)
    for key in (1, 2, 3):
        writer.apply(Store(0, [key], parent=PARENTS[key]))
    assert writer.num_pending == 3
    writer.apply(Remove(0, [1, 2, 3]))
    writer.apply(Store(0, [9, 10]))

    assert writer.num_pending == 0
    assert writer.mode is Mode.BEGIN
    write_all(writer, server)
    assert server.sets == {"held": {9, 10}}


some_keys = st.lists(st.sampled_from(sorted(PARENTS)), min_size=1, max_size=4)


def store(keys: Sequence[BlockKey]) -> Op:
    part = lineage(keys[0])[-len(keys) :]
    return Store(0, part, parent=PARENTS[part[0]])


ops = st.one_of(
    st.builds(store, some_keys),
    st.builds(Remove, st.just(0), some_keys),
    st.builds(Clear, st.just(0)),
)
events = st.lists(st.one_of(ops, ops, ops, st.sampled_from(["send", "send", "step"])), max_size=60)


@given(events, st.integers(1, 3), st.integers(0, 20))
def test_after_every_batch_the_picture_is_closed_and_in_the_end_it_is_true(
    events: list[Op | str], limit: int, pending: int
) -> None:
    writer, server = leased_writer(pending), Server()
    held: set[BlockKey] = set()
    for event in [*events, *["send"] * 100]:
        if isinstance(event, Store):
            held.update(event.keys)
        elif isinstance(event, Remove):
            held.difference_update(event.keys)
        elif isinstance(event, Clear):
            held.clear()
        if not isinstance(event, str):
            writer.apply(event)
        elif (write := writer.next_write(limit)) is not None:
            if event == "step":
                writer.answered(WriteAnswer.STEP)
            else:
                server.do(write)
                writer.answered(WriteAnswer.OK)
        seen = server.sets.get("held", set())
        assert all(PARENTS[key] is None or PARENTS[key] in seen for key in seen)

    assert not writer.busy
    assert seen == {key for key in held if held.issuperset(lineage(key))}
