"""A shortened history comes to the same as the whole one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.fleet.journal.histories import Holder, Step, events, histories

from inferway.fleet.journal.compaction import MAX_BLOCKS, in_pieces, shortened
from inferway.kv.events.records import (
    KnownRecord,
    Record,
    RemovedRecord,
    StoredRecord,
    Uncounted,
    WaitingRecord,
)

STORED = StoredRecord([1], [11])
WAITING = WaitingRecord([1], 0, 0)


def short(records: list[Record]) -> list[Record]:
    return list(shortened(records, records))


@pytest.mark.slow
@given(histories, events)
@settings(max_examples=600, deadline=None)
def test_a_shortened_history_rebuilds_what_the_whole_one_does(
    history: list[Step], after: list[Step]
) -> None:
    whole, rebuilt = Holder(), Holder()
    for step in history:
        step(whole)

    rebuilt.apply_record(short(whole.records))

    assert rebuilt.seen() == whole.seen()
    redone = Holder()  # what orphans vouch for is not written down: redone is what is compared
    redone.apply_record(whole.records)
    for step in after:
        step(redone)
        step(rebuilt)
        assert rebuilt.seen() == redone.seen()


@given(histories, histories)
@settings(max_examples=200, deadline=None)
def test_a_snapshot_and_what_came_after_it_can_be_shortened_again(
    before: list[Step], after: list[Step]
) -> None:
    whole, rebuilt = Holder(), Holder()
    for step in before:
        step(whole)
    snapshot = short(whole.records)
    whole.records.clear()
    for step in after:
        step(whole)
    rebuilt.apply_record(short([*snapshot, *whole.records]))

    assert rebuilt.seen() == whole.seen()


@given(histories, events)
@settings(max_examples=200, deadline=None)
def test_records_in_pieces_come_to_the_same(history: list[Step], after: list[Step]) -> None:
    whole, pieces, redone = Holder(), Holder(), Holder()
    for step in history:
        step(whole)
    pieces.apply_record(piece for record in whole.records for piece in in_pieces(record, 2))
    redone.apply_record(whole.records)

    for step in after:
        step(pieces)
        step(redone)
    assert pieces.seen() == redone.seen()


def test_a_long_record_comes_in_pieces() -> None:
    chain = list(range(1, MAX_BLOCKS + 3))

    assert list(in_pieces(StoredRecord(chain, chain, 7))) == [
        StoredRecord(chain[:-2], chain[:-2], 7),
        StoredRecord(chain[-2:], chain[-2:], chain[-3]),
    ]


def test_what_came_and_went_leaves_nothing() -> None:
    assert short([StoredRecord([1, 2], [11, 12]), RemovedRecord([2, 1], 0, 0)]) == []


def test_a_block_whose_parent_is_gone_keeps_the_parents_key() -> None:
    assert short([StoredRecord([1, 2], [11, 12]), RemovedRecord([1], 0, 0)]) == [
        StoredRecord([2], [12], 11)
    ]


def test_parts_of_a_chain_become_one_record() -> None:
    parts: list[Record] = [
        StoredRecord([1], [11]),
        StoredRecord([2], [12], 11),
        StoredRecord([3], [13], 12),
    ]

    assert short(parts) == [StoredRecord([1, 2, 3], [11, 12, 13])]


def test_no_record_is_longer_than_what_is_redone_in_one_piece() -> None:
    chain = list(range(1, 1001))

    records = short([StoredRecord(chain, chain)])

    assert [len(record.hashes) for record in records if isinstance(record, StoredRecord)] == [
        *[MAX_BLOCKS] * 3,
        1000 - 3 * MAX_BLOCKS,
    ]


def test_copies_are_counted() -> None:
    twice: list[Record] = [
        StoredRecord([1], [11]),
        StoredRecord([1], [11]),
        StoredRecord([1], [11]),
    ]

    assert short(twice) == [StoredRecord([1], [11]), KnownRecord([1, 1], 0, 0)]


@pytest.mark.parametrize(
    ("records", "left"),
    [
        ([Uncounted(), STORED, STORED], [STORED, Uncounted()]),
        ([STORED, STORED, Uncounted(), RemovedRecord([1], 0, 0)], [Uncounted()]),
        ([Uncounted(), WAITING, WAITING], [WAITING, Uncounted()]),
        ([WAITING, WAITING, Uncounted(), RemovedRecord([1], 0, 0)], [Uncounted()]),
    ],
)
def test_where_copies_are_not_counted_there_is_one(
    records: list[Record], left: list[Record]
) -> None:
    assert short(records) == left
