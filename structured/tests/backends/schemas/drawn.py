"""Schemas and values drawn at random: few names and few values, so that they meet."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b", "c"]

values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 3, 1.5, "", "a", "b", "abc", "a1"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*NAMES, "d", "ab"]), inner, max_size=3),
    ),
    max_leaves=5,
)
scalars = st.sampled_from([None, True, 0, 1, 1.5, "", "a", "abc"])
types = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
small = st.integers(0, 3)
names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
patterns = st.sampled_from(["^a", "b$", "^[ab]+$", "^a|c$", "a.c", "^.*$", "^(?!a)", "1"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    optional = {
        "type": st.one_of(types, st.lists(types, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(scalars, min_size=1, max_size=4, unique_by=json.dumps),
        "const": values,
        "minimum": small,
        "exclusiveMaximum": small,
        "minLength": small,
        "maxLength": small,
        "pattern": patterns,
        "minItems": small,
        "maxItems": small,
        "uniqueItems": st.booleans(),
        "items": inner,
        "prefixItems": some,
        "contains": inner,
        "properties": named,
        "patternProperties": st.dictionaries(patterns, inner, max_size=2),
        "additionalProperties": inner,
        "propertyNames": st.one_of(
            st.just({"pattern": "^[ab]"}), st.just({"enum": ["a", "b"]}), st.just({"maxLength": 1})
        ),
        "required": names,
        "minProperties": small,
        "maxProperties": small,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), names, max_size=2),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "unevaluatedProperties": inner,
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
    }
    return st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True).flatmap(
        lambda words: st.fixed_dictionaries({word: optional[word] for word in words})
    )


schemas = st.recursive(
    st.one_of(st.booleans(), st.builds(lambda name: {"type": name}, types)),
    keywords,
    max_leaves=8,
)
RECURSIVE = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/z"}, "b": {"type": "integer"}},
    "additionalProperties": False,
}


def document(root: dict[str, Any], x: Any, y: Any) -> dict[str, Any]:
    """x and y refer to nothing but z, which is recursive in the one way that ends."""
    text = (
        json.dumps([x, y])
        .replace('"#/$defs/x"', '"#/$defs/z"')
        .replace('"#/$defs/y"', '"#/$defs/z"')
    )
    x, y = json.loads(text)
    return {**root, "$defs": {"x": x, "y": y, "z": RECURSIVE}}


documents = st.builds(document, keywords(schemas), schemas, schemas)
