"""The whole way, with the real library and a real tokenizer: what a grammar lets through is valid,
or a keyword is named; what is valid is let through, in some order of its properties."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structured.tests.backends.schemas.drawn import documents, values
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
        assert "no answer can keep" in why or "nsatisfiable" in why
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


def written_otherwise(value: Any) -> Iterator[Any]:
    """In every order of its properties: which one a grammar keeps to is its own affair."""
    if isinstance(value, list):
        yield from map(list, product(*(list(written_otherwise(one)) for one in value)))
    elif isinstance(value, dict):
        for names in permutations(value):
            inner = (list(written_otherwise(value[name])) for name in names)
            yield from (dict(zip(names, one, strict=True)) for one in product(*inner))
    else:
        yield value
