from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cpu import seconds_of

from inferway_structured.validate.regexes import measured


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|b)*a(a|b){12}",
        ".*a.{14}",
        "((a|b|c)*a(a|b){12}c)*",
        "[01]*1[01]{30}",
        r"\w*x\w{20}",
        "|".join(f"(a|b)*a(a|b){{{i}}}" for i in range(60)),
        "(?:x|y)*x(?:[xyz]{2}){20}",
    ],
)
def test_an_exponential_automaton_is_seen(pattern: str) -> None:
    assert measured(pattern).explodes


@pytest.mark.parametrize(
    "pattern",
    [
        "[a-z]{1,5000}",
        ".{1,50000}",
        r"\w{1,300}",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$",
        "((a{1,50}){1,50}){1,50}",
        r"(.{1,50}\n){1,10}",
        "(.{1,50}, )+",
        r"(\w{1,20} ){1,100}(\w+)?",
        "([^,]*,){1,40}",
        "(a|b)*a(a|b){0,12}",
        "|".join(f"word{i}" for i in range(1000)),
        r"(https?://)?([\da-z.-]+)\.([a-z.]{2,6})([/\w .-]*)*/?",
        r"^(([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9\-]*[a-zA-Z0-9])\.)*([A-Za-z0-9]{1,63})$",
        "(x+x+)+y",
    ],
)
def test_what_people_write_is_not_taken_for_one(pattern: str) -> None:
    regex = measured(pattern)

    assert not regex.explodes
    assert regex.unsupported is None


@pytest.mark.parametrize(
    ("pattern", "repeats"),
    [
        ("abc", 1),
        ("a{3}", 3),
        ("a{2,7}", 7),
        ("a{5,}", 5),
        ("(a{1,50}){1,50}", 2500),
        ("((a{1000}){1000}){1000}", 10**9),
        ("a{,3}", 1),  # characters, not a count
        ("a{x}", 1),
        (r"a\{3}", 1),
        ("[{3}]{2}", 2),
        ("a{99999999999999999999}", 99999999999999999999),
    ],
)
def test_counted_repeats_inside_each_other_multiply(pattern: str, repeats: int) -> None:
    assert measured(pattern).repeats == repeats


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("^(?=a)b", "look-ahead at character 1"),
        ("(?!a)", "look-ahead at character 0"),
        ("x(?<=a)", "look-behind at character 1"),
        ("(?<!a)b", "look-behind at character 0"),
        (r"(a)\1", "a back-reference at character 3"),
        (r"(?P<x>a)\k<x>", "a back-reference at character 8"),
        ("(?>a)", "an atomic group at character 0"),
        ("(" * 300 + "a" + ")" * 300, "more than 200 groups inside each other at character 200"),
    ],
)
def test_what_no_engine_can_follow_is_named(pattern: str, words: str) -> None:
    assert measured(pattern).unsupported == words


@pytest.mark.parametrize("pattern", [r"(?:a)", "(?i)a", "(?P<n>a)", "(?<n>a)", "[(?=]", r"\(?=a"])
def test_what_looks_like_it_is_not(pattern: str) -> None:
    assert measured(pattern).unsupported is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(" * 20 + "a" + "){9}" * 20,
        "(" * 20 + ")*{9}" * 20,
        "(" * 150 + "a|b" + ")*{9}" * 150,
        "(a?){1000}" * 200,
        "a|" * 30_000,
        "[a-z]{1,9}" * 2_000,
        "".join(f"[\\u{i:04x}-\\u{i + 9:04x}]{{3,9}}" for i in range(0, 9000, 20)) + "*x.{9}",
        "(a*){5}" * 500 + "*",
        "{" * 10_000,
        "[" * 10_000,
        "\\" * 10_001,
        "(" * 10_000,
        ")" * 10_000,
        "(?" * 5_000,
    ],
)
def test_measuring_is_bounded(pattern: str) -> None:
    """Measured 0.1 s at most."""
    assert seconds_of(lambda: measured(pattern)) < 2


@given(st.text(alphabet=r"ab()[]{}|*+?\.^$-,12=!<:Pdwsu", max_size=60))
def test_any_text_is_measured(pattern: str) -> None:
    regex = measured(pattern)

    assert regex.size >= 0
    assert regex.repeats >= 0


@given(st.from_regex(r"\A([ab]|\(a\|b\)|\[ab\])([*?]|\{[1-3]\})?([ab]|\[ab\])?\Z", fullmatch=True))
def test_small_expressions_do_not_explode(pattern: str) -> None:
    re.compile(pattern)

    assert not measured(pattern).explodes
