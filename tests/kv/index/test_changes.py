"""A copy made of an index's picture, while that one goes on."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.workers import contents
from tests.contract.test_index import WEIGHTS, Plain, prompts, stories, without_reuse

from inferway.kv.index.changes import BlockChange, ChangeLog, IndexChanges
from inferway.kv.index.copied import CopiedIndex
from inferway.kv.index.holder_sets import NOBODY
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Clear, Op, Remove, Store
from inferway.model import BlockKey


def logged(index: MemoryIndex) -> ChangeLog:
    return ChangeLog(index._tree, index._holders)


def told(changes: IndexChanges) -> IndexChanges:
    """As it comes from another process."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(changes), type=IndexChanges)


@given(
    story=stories(),
    begins=st.integers(0, 12),
    piece=st.integers(1, 4),
    slice_blocks=st.sampled_from([1, 2048]),
    goes_on=st.lists(st.booleans(), max_size=60),
)
def test_a_picture_and_what_changes_meanwhile_make_an_equal_copy(
    story: tuple[list[list[BlockKey]], list[list[Op]]],
    begins: int,
    piece: int,
    slice_blocks: int,
    goes_on: list[bool],
) -> None:
    ways, batches = story
    index = MemoryIndex(weights=WEIGHTS, slice_blocks=slice_blocks)
    log, copy, plain = logged(index), CopiedIndex(weights=WEIGHTS), Plain()
    for batch in batches:
        for op in batch:
            plain.apply(op)
    for batch in batches[:begins]:
        index.apply(batch)
        log.take(batch)
    rest = batches[begins:]

    def go_on() -> None:
        batch = rest.pop(0)
        index.apply(batch)
        changes = log.take(batch)
        if changes is not None:
            copy.hear(told(changes))

    for changes in log.picture(piece, piece):
        copy.hear(told(changes))
        while rest and goes_on and goes_on.pop():
            go_on()
    while rest:
        go_on()

    assert contents(copy) == contents(index)
    for each in (index, copy):
        assert [each.num_blocks(h) for h in range(4)] == [plain.num_blocks(h) for h in range(4)]
        for prompt in prompts(ways):
            assert without_reuse(each.match_now(prompt)) == plain.found(prompt)


def test_what_an_operation_changes_is_told_with_who_did_it() -> None:
    index = MemoryIndex()
    log = logged(index)
    ops: list[Op] = [Store(0, [1, 2, 3]), Store(1, [1])]
    index.apply(ops)
    stored = log.take(ops)
    assert stored is not None
    removals: list[Op] = [Remove(0, [3]), Clear(1)]
    index.apply(removals)

    removed = log.take(removals)

    assert removed is not None
    first, both = stored.blocks[0].state, stored.blocks[1].state
    assert stored.blocks == [
        BlockChange(first, [1, 2, 3], 0, 3),
        BlockChange(both, [1], 1, 1),
    ]
    assert [each.holder for each in stored.holders] == [0, 1]
    assert removed.blocks == [BlockChange(NOBODY, [3], 0, 2, is_removal=True)]
    assert removed.cleared == [1]


def test_nothing_is_told_twice() -> None:
    index = MemoryIndex()
    log = logged(index)
    index.apply([Store(0, [1, 2, 3])])

    assert log.take([Store(0, [1, 2, 3])])
    assert log.take(()) is None
