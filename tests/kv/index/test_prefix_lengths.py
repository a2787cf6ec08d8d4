"""What many holders have of a prompt, by groups, is the mapping that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.kv.index.prefix_lengths import PrefixLengths, different_lengths, longest

LENGTHS = PrefixLengths([(np.array([7, 2]), 3), (np.array([4]), 5)])
PLAIN = {7: 3, 2: 3, 4: 5}


def test_it_is_equal_to_a_mapping_of_each_holder() -> None:
    assert LENGTHS == PLAIN
    assert list(LENGTHS) == [7, 2, 4]
    assert len(LENGTHS) == 3
    assert {**LENGTHS} == PLAIN
    assert LENGTHS.get(4) == 5


def test_a_holder_of_nothing_is_absent() -> None:
    assert 3 not in LENGTHS
    with pytest.raises(KeyError, match="3"):
        LENGTHS[3]
    assert not PrefixLengths([])


def test_a_column_has_each_of_the_holders_that_are_asked_for() -> None:
    assert LENGTHS.column(np.array([4, 100, 2, 0])).tolist() == [5, 0, 3, 0]
    assert PrefixLengths([]).column(np.array([1])).tolist() == [0]


@pytest.mark.parametrize("blocks", [LENGTHS, PLAIN])
def test_how_many_blocks_there_are_at_most_is_told_of_both(
    blocks: PrefixLengths | dict[int, int],
) -> None:
    assert different_lengths(blocks) == {3, 5}
    assert longest(blocks) == (5, 4)
    assert longest({1: 2, 3: 2}) == (2, 3)
