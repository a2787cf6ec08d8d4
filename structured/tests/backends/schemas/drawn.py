"""Schemas and values drawn at random: few names and few values, so that they meet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

from hypothesis import strategies as st

NAMES = ["a", "b", "c"]

values = st.recursive(
    st.sampled_from(
        [None, True, False, 0, 1, 2, 3, 1.5, "", "a", "b", "abc", "a1", "a b", "cb", "bc"]
    ),
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
patterns = st.sampled_from(
    [
        "^a",
        "b$",
        "^[ab]+$",
        "^a|c$",
        "a.c",
        "^.*$",
        "^(?!a)",
        "1",
        r"\bb",
        r"^(?=.b)(?!ab)",
        r"^a\b|\Bc$",
        "^(a|b)$",
        "^[ab]{1,2}$",
    ]
)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    optional = {
        "type": st.one_of(types, st.lists(types, min_size=1, max_size=3, unique=True)),
        "enum": st.lists(scalars, min_size=1, max_size=4, unique_by=json.dumps),
        "const": values,
        "minimum": small,
        "exclusiveMaximum": small,
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "format": st.just("no-format"),
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


whole = scalars.filter(lambda value: value != 1.5)
leaves = st.one_of(
    st.builds(lambda value: {"const": value}, whole),
    st.builds(lambda listed: {"enum": listed}, st.lists(whole, min_size=1, max_size=3)),
    st.builds(lambda name: {"type": name}, types),
    st.builds(lambda pattern: {"type": "string", "pattern": pattern}, patterns),
    # with integers, the library fails on a fraction that another schema asks for at that place
    st.just({"type": "number", "minimum": 1}),
    st.just({"type": "array", "items": {"const": 1}, "maxItems": 2}),
    st.just({"$ref": "#/$defs/x"}),
    st.just(False),
)
# Objects of which one is told from another by what they list, require and forbid.
shapes = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from(NAMES), leaves, max_size=3)},
    optional={
        "type": st.just("object"),
        "required": names,
        "additionalProperties": st.one_of(st.just(False), st.just(False), leaves),
        "patternProperties": st.dictionaries(patterns, leaves, max_size=1),
        "propertyNames": st.just({"enum": ["a", "b"]}),
        "minProperties": small,
        "not": st.builds(lambda needed: {"required": needed}, names),
    },
)
pairs = st.lists(shapes, min_size=2, max_size=3)
unique = st.builds(
    lambda items, least, most: {
        "type": "array", "items": items, "minItems": least, "maxItems": most, "uniqueItems": True
    },
    st.one_of(leaves, st.just({"type": "integer", "minimum": 0, "maximum": 2})),
    small, small,
)  # fmt: skip
told_apart = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(st.sampled_from(NAMES), leaves, max_size=2),
        "required": names,
        "additionalProperties": st.just(False),
        "oneOf": st.one_of(pairs, st.lists(st.one_of(leaves, unique), min_size=2, max_size=3)),
        "not": st.one_of(shapes, leaves, st.builds(lambda both: {"oneOf": both}, pairs)),
        "if": st.one_of(shapes, leaves),
        "items": leaves,
        "uniqueItems": st.just(True),
        "then": shapes,
        "else": shapes,
        "enum": st.lists(values, min_size=1, max_size=4),
    },
)

documents = st.builds(document, st.one_of(keywords(schemas), told_apart, unique), schemas, schemas)


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
