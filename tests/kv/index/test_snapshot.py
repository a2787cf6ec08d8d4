"""An index made of another one's snapshot, while that one goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_index import WEIGHTS, Plain, find, prompts, stories

from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Op, Store
from inferway.kv.index.snapshot import snapshot
from inferway.model import BlockKey


def pieces_of(index: MemoryIndex, piece: int) -> list[list[Op]]:
    return list(snapshot(index._tree, index._holders, piece))


@given(
    story=stories(),
    begins=st.integers(0, 12),
    piece=st.integers(1, 4),
    goes_on=st.lists(st.booleans(), max_size=60),
)
def test_a_snapshot_and_what_happens_meanwhile_make_an_equal_index(
    story: tuple[list[list[BlockKey]], list[list[Op]]],
    begins: int,
    piece: int,
    goes_on: list[bool],
) -> None:
    ways, batches = story
    index, copy = MemoryIndex(weights=WEIGHTS), MemoryIndex(weights=WEIGHTS)
    plain = Plain()
    for batch in batches:
        for op in batch:
            plain.apply(op)
    for batch in batches[:begins]:
        index.apply(batch)
    rest = batches[begins:]

    for ops in snapshot(index._tree, index._holders, piece):
        copy.apply(ops)
        while rest and goes_on and goes_on.pop():
            index.apply(rest[0])
            copy.apply(rest.pop(0))
    for batch in rest:
        index.apply(batch)
        copy.apply(batch)

    for each in (index, copy):
        assert [each.num_blocks(h) for h in range(4)] == [plain.num_blocks(h) for h in range(4)]
        for prompt in prompts(ways):
            assert find(each, prompt) == plain.found(prompt)


def test_a_chain_is_one_operation_however_many_share_its_beginning() -> None:
    index = MemoryIndex()
    system = list(range(1, 101))
    index.apply([Store(0, [*system, 1000 + i], None) for i in range(50)])

    ops = [op for piece in pieces_of(index, 10_000) for op in piece]

    assert ops[0] == Store(0, system, None)
    assert sorted(op.keys[0] for op in ops[1:] if isinstance(op, Store)) == list(range(1000, 1050))
    assert all(isinstance(op, Store) and op.parent == 100 for op in ops[1:])


def test_an_index_without_blocks_has_no_operations() -> None:
    assert [op for piece in pieces_of(MemoryIndex(), 10) for op in piece] == []
