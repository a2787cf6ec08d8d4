"""The keywords of JSON Schema."""

from __future__ import annotations

from inferway_structured.validate.keywords import ANNOTATIONS, ASSERTIONS, label


def test_no_keyword_both_forbids_values_and_does_not() -> None:
    assert not ASSERTIONS & ANNOTATIONS


def test_a_keyword_that_a_client_made_up_is_no_label() -> None:
    assert [label(word) for word in ("maxLength", "title", "password1234", None)] == [
        "maxLength",
        "title",
        "other",
        "none",
    ]
