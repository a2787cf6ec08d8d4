"""Schemas that llguidance reads as they are meant, or refuses: those are tried as they came."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inferway_structured.backends.schemas import numbers
from inferway_structured.backends.schemas.nodes import DATA, Document, JsonValue, parsed
from inferway_structured.backends.schemas.strings import KNOWN_FORMATS, in_rust
from inferway_structured.validate.keywords import RESTRICTING

# What it refuses for sure, and x-guidance, which would be an order to it.
_REFUSED = frozenset(
    {
        *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
        *("uniqueItems", "contains", "minContains", "maxContains", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
        "x-guidance",
    }
)
NAMED = frozenset({"properties", "patternProperties", "definitions", "$defs"})
_WITH_MULTIPLES = frozenset(  # which it reads as they are meant for some values
    {"const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)


def as_it_came(text: str) -> str | None:
    """Return the schema itself, with its patterns as Rust writes them, if that is worth a try; else
    None."""
    document = Document(parsed(text))
    if numbers.may_lose(text) and not numbers.all_kept(document.raw):
        return None
    with_patterns = _with_patterns(document)
    if with_patterns is None:
        return None
    if not any(_is_changed(schema) for schema in with_patterns):
        return text
    own = Document(json.loads(text))  # what was parsed is shared
    for schema in _with_patterns(own) or ():
        schema |= _written_in_rust(schema)
    return json.dumps(own.raw, ensure_ascii=False)


def _is_changed(schema: dict[str, JsonValue]) -> bool:
    return any(schema[word] != rule for word, rule in _written_in_rust(schema).items())


def _with_patterns(document: Document) -> Sequence[dict[str, JsonValue]] | None:
    """The schemas that have some. None: there is trouble."""
    # an older draft ignores what stands beside a reference; llguidance does not
    ignores_siblings = document.names_draft and document.draft <= 7
    found = []
    waiting = [document.raw]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        if not isinstance(one, dict):
            continue
        if not _REFUSED.isdisjoint(one) or ("format" in one and _is_unknown(one["format"])):
            return None
        if "multipleOf" in one and not _WITH_MULTIPLES.isdisjoint(one):
            return None
        if ignores_siblings and "$ref" in one and not RESTRICTING.isdisjoint(one):
            return None
        if "pattern" in one or "patternProperties" in one:
            found.append(one)
        for word, inner in one.items():
            if not isinstance(inner, _HOLDERS):
                continue
            if word in NAMED and isinstance(inner, dict):
                waiting += inner.values()
            elif word not in DATA:
                waiting.append(inner)
    return found


_HOLDERS = (dict, list)


def _written_in_rust(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a schema with its patterns as Rust writes them."""
    pattern, named = schema.get("pattern"), schema.get("patternProperties")
    said: dict[str, JsonValue] = {}
    if isinstance(pattern, str):
        said["pattern"] = in_rust(pattern)
    if isinstance(named, dict):
        said["patternProperties"] = {in_rust(name): one for name, one in named.items()}
    return said


def _is_unknown(name: JsonValue) -> bool:
    return not isinstance(name, str) or name not in KNOWN_FORMATS
