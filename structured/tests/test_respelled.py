"""Expressions and Lark of other dialects mean what they mean there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu import seconds_of

from inferway_structured.backends.cascade import verdict
from inferway_structured.spec import Spec, grammar_spec, regex_spec
from inferway_structured.validate.check import check
from inferway_structured.validate.respelled import respelled_lark, respelled_regex
from inferway_structured.validate.validator import is_valid

REGEXES = [
    (r"^^a$$", ["a"], ["^a", "a$", ""]),
    (r"^(^a)$", ["a"], ["b"]),
    (r"(a$)$", ["a"], ["a$"]),
    (r"a\$$", ["a$"], ["a"]),
    (r"\ud83d\ude00+", ["😀", "😀😀"], [r"\ud83d\ude00"]),
    (r"[\ud83d\ude00-\ud83d\ude02]", ["😁"], ["😃"]),
    ("a[^]b", ["a\nb", "a]b"], ["ab"]),
    (r"\<b\>", ["<b>"], ["b"]),
    (r"[\<\>]", ["<", ">"], ["\\"]),
    (r"\é", ["é"], [r"\é"]),
    (r"a\Z", ["a"], ["aZ"]),
    (r"\cI\e", ["\t\x1b"], ["cI"]),
    (r"\\<\\Z", ["\\<\\Z"], ["<Z"]),
    (r"[]a]\<", ["]<", "a<"], ["<"]),
]
LARK = [
    ('start: "a"~2..5', ["aa", "aaaaa"], ["a", "aaaaaa"]),
    ('start: ("a" | B) ~ 1 .. 2\nB: "b"~2..2', ["bb", "abb"], ["b"]),
    ('start: "~1..2" /x~1..2/ // "a"~1..2', ["~1..2x~1zz2"], ["~1..2x"]),
    ('start: "0".."3"~1..2', ["0", "32"], ["4"]),
    ('?start: "a"', ["a"], ["b"]),
]


def holds(spec: Spec, text: str) -> bool | None:
    check(spec)
    assert verdict(spec).backend == "llguidance"
    return is_valid(spec, text)


@pytest.mark.parametrize(("text", "matching", "others"), REGEXES)
def test_an_expression_means_what_it_means_in_its_dialect(
    text: str, matching: list[str], others: list[str]
) -> None:
    spec = regex_spec(text, "x")

    assert [holds(spec, answer) for answer in matching] == [True] * len(matching)
    assert [holds(spec, answer) for answer in others] == [False] * len(others)


@pytest.mark.parametrize(("text", "matching", "others"), LARK)
def test_larks_own_counts_are_kept(text: str, matching: list[str], others: list[str]) -> None:
    spec = grammar_spec(text, "x")

    assert [holds(spec, answer) for answer in matching] == [True] * len(matching)
    assert [holds(spec, answer) for answer in others] == [False] * len(others)


@given(text=st.text(alphabet=r"ab\^$()[]?:<>Zceud83d0.~1x|*+", max_size=30))
def test_what_is_respelled_stays_as_it_is(text: str) -> None:
    once = respelled_regex(text)

    assert respelled_regex(once) == once
    assert respelled_lark(respelled_lark(text)) == respelled_lark(text)


@pytest.mark.parametrize("piece", ["$", "^", "(^", ")$", "[^]", "\\", "~1..", '"', "\\u"])
def test_it_takes_time_in_proportion_to_the_text(piece: str) -> None:
    """Measured 0.03 s at most; in proportion to its square it would be hours."""
    text = piece * 50_000

    assert seconds_of(lambda: respelled_regex(text)) < 1
    assert seconds_of(lambda: respelled_lark(text)) < 1
