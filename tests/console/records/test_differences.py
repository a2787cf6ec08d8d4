"""What differs between two texts is named, whatever stands around it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_console.records.differences import REMEDIES, DifferenceKind, kind_of, num_same

CASES = [
    ("time", "at 07:16:11 today", "at 07:16:48 today"),
    ("time", "2026-11-23T07:16Z", "2026-11-23T19:48Z"),
    ("time", "now=1790000001;", "now=1790009731;"),
    ("time", "20261123T071611Z", "20261124T194802Z"),
    ("time", "on 2026-11-23 at 07:16", "on 2026-11-24 at 07:48"),
    ("date", "on 2026-11-23 at 07:16", "on 2026-11-24 at 07:16"),
    ("time", "Mon Nov 23 07:16:11 2026", "Tue Nov 24 19:48:02 2026"),
    ("time", "5 minutes ago", "6 minutes ago"),
    ("date", "on 2026-11-23.", "on 2026-11-24."),
    ("date", "on November 23, 2026", "on November 24, 2026"),
    ("date", "Monday", "Tuesday"),
    ("date", "23.11.2026", "24.12.2026"),
    ("id", "id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id 6fa459ea-ee8a-3ca4-894e-db77e160355e"),
    ("id", "commit 9fceb02d0ae5", "commit e83c5163316f"),
    ("id", "call_8Zk2pQ", "call_1Bv9xR"),
    ("number", "you have 12 files", "you have 131 files"),
    ("number", "costs 3.50 euros", "costs 4.75 euros"),
    ("whitespace", "one  two", "one two"),
    ("whitespace", "one\ntwo", "one\r\n\ntwo"),
    ("key-order", '{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
    ("growing-list", "files:\n- a.py\nend", "files:\n- a.py\n- b.py\nend"),
    ("growing-list", '["a", "b"]', '["a", "b", "c"]'),
    ("text", "you are kind", "you are curt"),
    ("text", "speak with Ada now", "speak with Grace now"),
]


@pytest.mark.parametrize(("kind", "left", "right"), CASES)
def test_each_kind_is_named_both_ways(kind: str, left: str, right: str) -> None:
    assert kind_of(left, right) == kind
    assert kind_of(right, left) == kind


@pytest.mark.parametrize(("kind", "left", "right"), CASES)
def test_words_around_do_not_change_it(kind: str, left: str, right: str) -> None:
    around = "Call 07:00 on 2026-01-01 for id 9fceb02d0ae5, or\n{}\nand have 12 more."

    assert kind_of(around.format(left), around.format(right)) == kind


def test_tools_in_another_order_are_told_from_keys() -> None:
    tools = ['{"name": "read", "path": 1}', '{"name": "write", "path": 2}']

    assert kind_of(str(tools), str(tools[::-1]), are_moved=True) == "tool-order"


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_two_texts_have_a_kind_with_a_cure(left: str, right: str) -> None:
    assert REMEDIES[kind_of(left, right)].cure
    assert REMEDIES[kind_of(left, right, are_moved=True)].cure


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=50))
def test_what_is_the_same_from_the_start_is_counted(start: str, left: str, right: str) -> None:
    same = num_same(start + left, start + right)

    assert same >= len(start)
    assert (start + left)[:same] == (start + right)[:same]


def test_every_kind_has_words() -> None:
    assert set(REMEDIES) == set(DifferenceKind)
