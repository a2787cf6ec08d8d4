"""Patterns and formats, as a grammar keeps them."""

from __future__ import annotations

import datetime
import json
import re

import pytest
from structured.tests.compiling import smollm2

from inferway_structured.backends.cascade import Cascade
from inferway_structured.backends.schemas.strings import FORMAT_PATTERNS, in_rust
from inferway_structured.spec import Kind, Spec

VOCABULARY = smollm2()
CASCADE = Cascade(VOCABULARY)


def kept(schema: object, *values: object) -> list[bool]:
    """Whether each may be written."""
    compiled = CASCADE.compile(Spec(Kind.JSON, json.dumps(schema)))
    assert not compiled.unenforced
    found = []
    for value in values:
        text = json.dumps(value, ensure_ascii=False)
        answer = [*VOCABULARY.ll_tokenizer.tokenize_str(text), VOCABULARY.eos_token_ids[0]]
        found.append(compiled.start().accept(answer))
    return found


CHARS = ['"', "\\", "/", "\n", "\t", "\f", "\b", "\x02", "a", "-", "^", "[", "]", "é"]


@pytest.mark.parametrize(
    "one",
    [
        *(r"[^\\]", r'[^"]', r'[^"\\]', r"[^\\a]", r'[^"a-z]', r'[^\\/:*?"<>|]', r"[^\u0022]"),
        *(r'[^-"]', r'[^"-]', r'[^-"-]', r'[^"^]', r'[^\[\]"]', r"[^!-~]", r'[^\n"]', r'[^\s"]'),
        *(r"[\x00-\x1f]", r"[\x00-!#-\x7f]", r"[a-z\\]", r"[^\w]", r".", r"[ -~]"),
    ],
)
def test_a_class_has_the_characters_that_it_has_quoted_for_json(one: str) -> None:
    chars = [char for char in CHARS if char != "é" or "\\w" not in one]  # of ASCII's words

    found = kept({"type": "string", "pattern": f"^{one}$"}, *chars)

    assert found == [re.fullmatch(one, char) is not None for char in chars]


def test_a_class_that_is_kept_as_it_is_is_not_written_anew() -> None:
    for pattern in (r"^[a-z]+[^/]*$", r"[^\f\"]", "[^a-z]", r"[\s\S]", "a[]b", "[^]"):
        assert in_rust(pattern) == pattern


def test_what_is_none_of_some_texts_is_told_by_its_quotation_marks_too() -> None:
    schema = {"type": "string", "not": {"enum": ['"', "\\"]}}

    found = kept(schema, '"', "\\", "x", '""', "")

    assert found == [False, False, True, True, True]


def is_date(text: str) -> bool:
    try:
        return bool(datetime.date.fromisoformat(text))
    except ValueError:
        return False


def test_dates_are_those_of_the_calendar() -> None:
    years = (1, 4, 100, 400, 1900, 1996, 2000, 2023, 2024, 9999)
    texts = [f"{y:04}-{m:02}-{d:02}" for y in years for m in range(14) for d in range(33)]

    pattern = re.compile(FORMAT_PATTERNS["date"])

    assert [text for text in texts if (pattern.match(text) is not None) != is_date(text)] == []
    assert kept({"format": "date", "type": "string"}, "2024-02-29", "2023-02-29") == [True, False]


def test_a_leap_second_is_at_the_end_of_a_day() -> None:
    written = ("23:59:60Z", "22:59:60Z", "12:00:00.5+01:00", "24:00:00Z", "12:00:00")

    assert kept({"type": "string", "format": "time"}, *written) == [True, False, True, False, False]
    days = [f"2024-02-29T{time}" for time in written]
    assert kept({"type": "string", "format": "date-time"}, *days) == [
        *(True, False, True, False, False)
    ]
