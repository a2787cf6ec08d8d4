"""The whole way, with the real library and a real tokenizer: what a grammar lets through is valid,
or a keyword is named; what is valid is let through, in some order of its properties."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structured.tests.backends.schemas.drawn import document, documents, values, written_otherwise
from structured.tests.compiling import smollm2

from inferway_structured.backends.cascade import Cascade
from inferway_structured.errors import SpecError
from inferway_structured.grammar import Compiled
from inferway_structured.spec import Kind, Spec

CASCADE = Cascade(smollm2())
EOS = CASCADE.vocabulary.eos_token_ids[0]


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(documents, st.lists(values, min_size=1, max_size=6))
@example({"not": {"enum": ["a", "b"]}, "type": "string"}, ["a", "abc", "", "b", "ab"])
@example({"properties": {"a": {}, "b": {}}, "minProperties": 2, "type": "object"}, [{"a": 1}])
@example(
    document(
        {"$ref": "#/$defs/y"},
        {},
        {"$ref": "#/$defs/z", "additionalProperties": {"$ref": "#/$defs/z"}},
    ),
    [{}, {"a": {"b": 1}}],
)
def test_what_is_let_through_is_valid_or_named_and_what_is_valid_is_let_through(
    schema: Any, instances: list[Any]
) -> None:
    asked = jsonschema_rs.Draft202012Validator(schema)
    valid = [instance for instance in instances if asked.is_valid(instance)]
    try:
        compiled = CASCADE.compile(Spec(Kind.JSON, json.dumps(schema)))
    except SpecError as error:
        why = str(error)
        compiled = None
    if compiled is None:
        # The last: why a way before was refused, where the others let nothing through.
        assert any(words in why for words in ("no answer can keep", "nsatisfiable", "not disjoint"))
        assert not valid
        return

    for instance in instances:
        taken = any(takes(compiled, one) for one in written_otherwise(instance))
        if asked.is_valid(instance):
            assert taken, f"{instance!r} lost"
        elif not compiled.unenforced:
            assert not taken, f"{instance!r} let through"


def takes(compiled: Compiled, instance: Any) -> bool:
    text = json.dumps(instance, ensure_ascii=False)
    tokens = [*CASCADE.vocabulary.ll_tokenizer.tokenize_str(text), EOS]
    return compiled.start().validate(tokens) == len(tokens)
