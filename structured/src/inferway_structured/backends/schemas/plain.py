"""Schemas that llguidance reads as they are meant, or refuses: those are tried as they came."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from inferway_structured.backends.schemas import numbers
from inferway_structured.backends.schemas.automata import finite_texts
from inferway_structured.backends.schemas.nodes import DATA, Document, JsonValue, parsed
from inferway_structured.backends.schemas.strings import (
    FORMAT_PATTERNS,
    KNOWN_FORMATS,
    UNENFORCED_FORMATS,
    in_rust,
)
from inferway_structured.validate.keywords import RESTRICTING
from inferway_structured.validate.schema_walk import references_are_alone

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


# Where none of these words is, it reads a canonical text as it is meant: there, a keyword of a
# schema has a colon behind it.
_LOOKED_AT = re.compile(
    '"(?:' + "|".join(sorted(re.escape(word) for word in _REFUSED))
    + r'|patternProperties|multipleOf)":|\\u'
)  # fmt: skip
_TEXT = re.compile(r'"(format|pattern)": ?("[^"\\]*(?:\\.[^"\\]*)*")')
_IGNORING = re.compile(r'"\$schema": ?"http://json-schema\.org/draft-0[3-7]')  # of some siblings
_VALUES = re.compile(r'"const": ?[\[{]|"enum": ?\[[^\]]*[\[{]')  # which may look like schemas


def as_it_came(text: str) -> str | None:
    """Return the schema itself, with its patterns as Rust writes them and its formats as patterns,
    if that is worth a try; else None."""
    if _is_read_as_meant(text):
        found = {pair: _in_rust(*pair) for pair in set(_TEXT.findall(text))}
        if all(said == f'"{word}":{value}' for (word, value), said in found.items()):
            return text
        words = {word for word, _ in found}
        if None not in found.values() and len(words) == 1 and not _VALUES.search(text):
            return _TEXT.sub(lambda at: found[at[1], at[2]] or "", text)
    document = Document(parsed(text))
    if numbers.may_lose(text) and not numbers.all_kept(document.raw):
        return None
    with_texts = _with_texts(document)
    if with_texts is None:
        return None
    if not any(_is_changed(schema) for schema in with_texts):
        return text
    own = Document(json.loads(text))  # what was parsed is shared
    for schema in _with_texts(own) or ():
        said = _said_in_rust(schema)
        schema.pop("format", None)
        schema |= said
    return json.dumps(own.raw, ensure_ascii=False)


def _is_read_as_meant(text: str) -> bool:
    """Return whether a schema's text shows that all but its patterns and formats is. Quick: most
    schemas end here."""
    if _LOOKED_AT.search(text) or numbers.may_lose(text):
        return False
    return not _IGNORING.search(text) or references_are_alone(text)


def _in_rust(word: str, value: str) -> str | None:
    """Return how a pattern or format is said, with its keyword; None if it has to be left out."""
    schema = {word: json.loads(value)}
    said = _said_in_rust(schema) if word == "pattern" or _is_said(schema) else {}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))[1:-1] or None


def _is_changed(schema: dict[str, JsonValue]) -> bool:
    said = _said_in_rust(schema)
    return said.keys() != schema.keys() & _TEXTS or any(schema[w] != r for w, r in said.items())


def _with_texts(document: Document) -> Sequence[dict[str, JsonValue]] | None:
    """The schemas that have patterns or formats. None: there is trouble."""
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
        if not _REFUSED.isdisjoint(one) or not _are_texts_said(one):
            return None
        if "multipleOf" in one and not _WITH_MULTIPLES.isdisjoint(one):
            return None
        if ignores_siblings and "$ref" in one and not RESTRICTING.isdisjoint(one):
            return None
        if not _TEXTS.isdisjoint(one):
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


_TEXTS = frozenset({"format", "pattern", "patternProperties"})


def _said_in_rust(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return what a schema says of texts: its patterns as Rust writes them, its format as a pattern
    where that is ours, and none that is only a name."""
    form, pattern, named = (schema.get(word) for word in ("format", "pattern", "patternProperties"))
    said: dict[str, JsonValue] = {}
    if form in KNOWN_FORMATS:
        said["format"] = form
    if isinstance(pattern, str):
        said["pattern"] = in_rust(pattern)
    elif form in FORMAT_PATTERNS:
        said["pattern"] = FORMAT_PATTERNS[form]
    if isinstance(named, dict):
        said["patternProperties"] = {in_rust(name): one for name, one in named.items()}
    return said


def _are_texts_said(schema: dict[str, JsonValue]) -> bool:
    """Few names are said as properties elsewhere, of which none comes twice."""
    named = schema.get("patternProperties", ())
    if isinstance(named, dict) and any(finite_texts(name) is not None for name in named):
        return False
    return "format" not in schema or _is_said(schema)


def _is_said(schema: dict[str, JsonValue]) -> bool:
    """Return whether `_said_in_rust` says a schema's format in full, if one is meant."""
    form = schema["format"]
    if not isinstance(form, str) or form in UNENFORCED_FORMATS:
        return False
    return form not in FORMAT_PATTERNS or "pattern" not in schema
