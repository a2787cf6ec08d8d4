"""The opposite of a pattern, and one without look-ahead, held against a validator's own regexes."""

from __future__ import annotations

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_structured.backends.schemas.automata import finite_texts, opposite, plainly
from inferway_structured.backends.schemas.nodes import TooLargeError, Work

PATTERNS = [
    *("", "a", "^abc", "^[a-z]+$", r"^\d{3}$", "^$", "a^b", "a$|^b", "(^a|b$)", "a{2,3}|b$"),
    *(r"\bab\b", r"^\bab\b$", r"a\Bb|\bc", r"^[^\d\s]*$", r"^.*\.(png|jpg)$", r"^\S+@\S+$"),
    *("^(?!aa)[ab]+$", "^(?=.*b)(?!.*--)[a-b-]+$", "^(?!ab$)", "ab(?!c)", "a(?=b)b", "^(a|b)*$"),
]
texts = st.text(st.sampled_from("abc12 -@.\n"), max_size=6)


# A class in a class, for llguidance's sake: the validator's dialect has none.
NESTED = r"[^[\x{1}]"


def finds(pattern: str, text: str) -> bool:
    # a validator's `.` has no flag
    schema = {"pattern": pattern.replace("(?s:.)", r"[\s\S]")}
    return bool(jsonschema_rs.Draft202012Validator(schema).is_valid(text))


@given(st.sampled_from(PATTERNS), texts)
def test_the_opposite_matches_what_the_pattern_does_not(pattern: str, text: str) -> None:
    told = opposite(pattern, Work())

    assert told is not None
    assert finds(told, text) is not finds(pattern, text)


@given(st.sampled_from(PATTERNS), texts)
def test_a_pattern_without_look_ahead_matches_the_same(pattern: str, text: str) -> None:
    told = plainly(pattern, Work())

    assert told is not None
    assert finds(told, text) is finds(pattern, text)


@given(st.text(st.sampled_from(r"ab^$|()?*\bB[]{1,2}!=-"), max_size=9), texts)
def test_whatever_is_told_is_right(pattern: str, text: str) -> None:
    try:
        expected = finds(pattern, text)
    except (jsonschema_rs.ValidationError, ValueError):
        return
    for told, wanted in ((opposite, not expected), (plainly, expected)):
        pattern_told = told(pattern, Work())
        if pattern_told is not None and NESTED not in pattern_told:
            assert finds(pattern_told, text) is wanted


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?<=a)b", r"(a)\1", "(?i)a", "a+?b", r"\p{L}", "(?:(?!a)b)*", "a|", "(", "[b-a]"),
        *("(a|b)*a(a|b){12}", "a{1,1000}", "((a{1,50}){1,50}){1,50}", "a" * 201, "(" * 150),
    ],
)
def test_what_is_not_told(pattern: str) -> None:
    assert opposite(pattern, Work()) is None or pattern == "a|"


def test_it_costs_the_same_when_it_is_remembered() -> None:
    spent = []
    for _ in range(2):
        work = Work(10_000)
        assert plainly(r"\bonce\b", work) is not None
        spent.append(work.left)

    assert spent[0] == spent[1] < 10_000
    with pytest.raises(TooLargeError):
        opposite(r"\bonce\b", Work(1))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("^(a|bc)$", ("a", "bc")),
        ("^x[0-2]?$", ("x", "x0", "x1", "x2")),
        ("^$", ("",)),
        ("^(a|a)$", ("a",)),
        *((one, None) for one in ("a", "^a|b$", "^a", r"^a\$", "^a+$", "^[a-z]{2}$", "^.$")),
        *((one, None) for one in ("^a{9,}$", r"^\ba$", "^((a{9}){9}){9}$", "^(a|b){40}$")),
    ],
)
def test_few_names_are_listed(pattern: str, names: tuple[str, ...] | None) -> None:
    assert finite_texts(pattern) == names
