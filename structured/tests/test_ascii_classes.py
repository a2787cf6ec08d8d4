from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_structured.spec import Kind, Spec
from inferway_structured.validate.respelled import ascii_classes
from inferway_structured.validate.validator import is_valid


@pytest.mark.parametrize(
    ("given", "made"),
    [
        (r"\d{4}-\d\d", "[0-9]{4}-[0-9][0-9]"),
        (r"[\d.,]+", "[0-9.,]+"),
        (r"[^\w]", "[^0-9A-Za-z_]"),
        (r"\W\S", r"[^0-9A-Za-z_][^ \t\n\r\f\v]"),
        (r"\\d", r"\\d"),
        (r"[]\d]", "[]0-9]"),
        (r"[^]\d]", "[^]0-9]"),
        (r"[\]\d]\d", r"[\]0-9][0-9]"),
        (r"[^\D]", r"[^\D]"),
        ("a+", "a+"),
        ("a\\", "a\\"),
    ],
)
def test_shorthands_are_spelled_out(given: str, made: str) -> None:
    assert ascii_classes(given) == made


PIECES = st.sampled_from([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "a", ".", r"\.", "[x-z]"])
CLASSES = st.sampled_from([r"\d", r"\w", r"\s", "a", r"\-", r"\]", r"\\"])
EXPRESSIONS = st.lists(
    PIECES | st.lists(CLASSES, min_size=1, max_size=3).map(lambda parts: f"[{''.join(parts)}]"),
    min_size=1,
    max_size=4,
).map("".join)


@given(EXPRESSIONS, st.text(max_size=4) | st.text("a1_-] \\٣é", max_size=4))
def test_it_matches_what_pythons_ascii_mode_matches(expression: str, text: str) -> None:
    expected = re.fullmatch(expression, text, re.ASCII) is not None

    # what Python's Unicode mode makes of what is left is no shorthand any more
    assert (re.fullmatch(ascii_classes(expression), text) is not None) == expected


def test_a_date_has_plain_digits() -> None:
    date = Spec(Kind.REGEX, r"\d{4}-\d\d-\d\d")

    assert is_valid(date, "2026-11-21") is True
    assert is_valid(date, "٢٠٢٦-١١-٢١") is False
