"""What is said to llguidance means what was asked, or more, and where more, that is named.

Both are schemas, so a validator judges both: no library's own reading stands between.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structured.tests.backends.schemas.drawn import documents, values

from inferway_structured.backends import llguidance
from inferway_structured.backends.schemas.lowering import Lowering
from inferway_structured.backends.schemas.nodes import Document
from inferway_structured.backends.schemas.texts import How, Words

WORDS = Words(llguidance.takes_string, llguidance.patterns_disjoint)
DRAFTS = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-06/schema#",
]
drafts = st.sampled_from(DRAFTS)
hows = st.sampled_from([How(), How(doubt=True), How(doubt=True, plainly=True, barely=True)])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(documents, st.lists(values, min_size=1, max_size=8), hows, drafts)
@example({"not": {"required": ["a", "b"]}}, [{"a": 1}, {"a": 1, "b": 1}, 1], How(), DRAFTS[0])
@example({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [1, 1.5, ""], How(), DRAFTS[0])
@example(
    {"dependentRequired": {"a": ["b"], "b": ["a"]}},
    [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
    How(),
    DRAFTS[0],
)
@example({"if": {"required": ["a"]}, "then": False}, [{"a": 1}, {}, 2], How(), DRAFTS[0])
@example(
    {
        "propertyNames": {"pattern": "^[ab]"},
        "additionalProperties": {"type": "null"},
        "properties": {"a": {}},
    },
    [{"a": 1}, {"b": None}, {"b": 1}, {"c": None}],
    How(),
    DRAFTS[0],
)
def test_it_means_the_same_or_more_and_more_is_named(
    schema: Any, instances: list[Any], how: How, draft: str
) -> None:
    schema = {"$schema": draft, **schema}
    lowered, unenforced = Lowering(Document(schema), WORDS, how).run()
    asked = jsonschema_rs.validator_for(schema)
    told = jsonschema_rs.Draft202012Validator(lowered)

    for instance in instances:
        if asked.is_valid(instance):
            assert told.is_valid(instance), f"lost: {instance!r}\n{lowered!r}"
        elif not unenforced:
            assert not told.is_valid(instance), f"let through: {instance!r}\n{lowered!r}"
