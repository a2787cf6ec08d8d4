"""Whatever is sent is checked or refused, and what passes can be held against answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway_structured.errors import SpecError
from inferway_structured.spec import Kind, Spec, json_spec
from inferway_structured.validate.check import check
from inferway_structured.validate.json_schema_drafts import validator_of
from inferway_structured.validate.keywords import ANNOTATIONS, ASSERTIONS
from inferway_structured.validate.schema_walk import graph, longest_path
from inferway_structured.validate.validator import is_valid

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 20_000)
    | st.sampled_from(
        [
            *(
                "string",
                "object",
                "array",
                "integer",
                "#",
                "#/properties/a",
                "#/$defs/a",
                "#b",
                "b",
            ),
            *("^a{2}$", "(", "(?=a)", "date", "http://a.b/c", "\ud7ff", ""),
        ]
    )
)
NAMES = st.sampled_from(sorted(ASSERTIONS | ANNOTATIONS)) | st.sampled_from(
    ["a", "b", "$defs", "x-y", ""]
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=40,
)

# Mostly schemas: keywords with values of the types they want.
SCHEMA: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.booleans()
        | st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["string", "object", "array", "integer", "null"]),
                "properties": st.dictionaries(st.sampled_from("abc"), SCHEMA, max_size=3),
                "required": st.lists(st.sampled_from("abc"), max_size=3, unique=True),
                "items": SCHEMA,
                "anyOf": st.lists(SCHEMA, min_size=1, max_size=3),
                "allOf": st.lists(SCHEMA, min_size=1, max_size=3),
                "not": SCHEMA,
                "$ref": st.sampled_from(["#", "#/properties/a", "#/anyOf/0", "#/$defs/x"]),
                "$defs": st.fixed_dictionaries({"x": SCHEMA}),
                "maxLength": st.integers(0, 10),
                "pattern": st.sampled_from(["^a", "b{2,3}", "[a-c]+$"]),
                "enum": st.lists(st.sampled_from(["a", 1, None, []]), min_size=1, max_size=3),
                "additionalProperties": st.booleans(),
            },
        )
    )
)
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "abb", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


def passes(spec: Spec) -> bool:
    try:
        check(spec)
    except SpecError as e:
        assert not e.place or e.place.startswith("/")  # noqa: PT017
        return False
    return True


@settings(max_examples=50)
@given(schema=st.dictionaries(NAMES, ANYTHING, max_size=6))
def test_anything_is_checked_or_refused(schema: Any) -> None:
    spec = json_spec(schema, "x")

    if passes(spec):
        assert validator_of(json.loads(spec.text)) is not None


@settings(max_examples=100)
@given(schema=SCHEMA, answer=ANSWERS)
def test_what_passes_judges_every_answer_as_its_library_does(schema: Any, answer: Any) -> None:
    spec = Spec(Kind.JSON, json.dumps(schema))
    if not passes(spec):
        return

    assert is_valid(spec, json.dumps(answer)) is validator_of(schema).is_valid(answer)


@pytest.mark.slow
@settings(max_examples=40)
@given(schema=SCHEMA.filter(lambda schema: isinstance(schema, dict)))
def test_no_path_is_longer_than_all_there_is(schema: Any) -> None:
    found = graph(schema)

    assert 1 <= longest_path(found) <= len(found.nodes)


@settings(max_examples=50)
@given(text=st.text(max_size=200), kind=st.sampled_from([Kind.REGEX, Kind.GRAMMAR]))
def test_any_text_is_checked_or_refused(text: str, kind: Kind) -> None:
    spec = Spec(kind, text)

    if kind is Kind.REGEX and passes(spec):
        assert is_valid(spec, text) in (True, False, None)
    else:
        passes(spec)
