"""Which schemas llguidance reads as they are meant, or refuses: those are tried as they came."""

from __future__ import annotations

import json

from inferway.structured.backends.schemas import numbers
from inferway.structured.backends.schemas.nodes import DATA, RESTRICTING, Document, JsonValue
from inferway.structured.backends.schemas.strings import KNOWN_FORMATS, in_rust

# What it refuses for sure, and x-guidance, which would be an order to it.
_REFUSED = frozenset(
    {
        *("not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
        *("uniqueItems", "contains", "minContains", "maxContains", "propertyNames"),
        *("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
        "x-guidance",
    }
)
_DOUBTFUL = [
    f'"{word}"' for word in (*sorted(_REFUSED), "format", "$ref", "pattern", "patternProperties")
]
NAMED = frozenset({"properties", "patternProperties", "definitions", "$defs"})


def as_it_came(text: str) -> str | None:
    """What is worth a try: the schema itself, its patterns as Rust writes them. None: nothing."""
    may_lose = numbers.may_lose(text)
    if not may_lose and not any(word in text for word in _DOUBTFUL):  # looked for as text: most
        return text  # are done here
    document = Document(json.loads(text))
    if may_lose and not numbers.all_kept(document.raw):
        return None
    if _has_trouble(document.raw, document.names_draft and document.draft <= 7):
        return None
    if '"pattern' not in text:
        return text
    said = _in_rust(document.raw)
    return text if said == document.raw else json.dumps(said, ensure_ascii=False)


def _has_trouble(raw: JsonValue, ignores_siblings: bool) -> bool:
    waiting = [raw]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        if not isinstance(one, dict):
            continue
        if not _REFUSED.isdisjoint(one) or ("format" in one and _is_unknown(one["format"])):
            return True
        if ignores_siblings and "$ref" in one and not RESTRICTING.isdisjoint(one):
            return (
                True  # an older draft ignores what stands beside a reference; llguidance does not
            )
        for word, inner in one.items():
            if word in NAMED and isinstance(inner, dict):
                waiting += inner.values()
            elif word not in DATA and isinstance(inner, _HOLDERS):
                waiting.append(inner)
    return False


_HOLDERS = (dict, list)


def _in_rust(raw: JsonValue) -> JsonValue:
    """The same schema; what is no schema stays as it is."""
    if isinstance(raw, list):
        return [_in_rust(one) for one in raw]
    if not isinstance(raw, dict):
        return raw
    said: dict[str, JsonValue] = {}
    for word, inner in raw.items():
        if word == "pattern" and isinstance(inner, str):
            said[word] = in_rust(inner)
        elif word == "patternProperties" and isinstance(inner, dict):
            said[word] = {in_rust(pattern): _in_rust(one) for pattern, one in inner.items()}
        elif word in NAMED and isinstance(inner, dict):
            said[word] = {name: _in_rust(one) for name, one in inner.items()}
        else:
            said[word] = inner if word in DATA else _in_rust(inner)
    return said


def _is_unknown(name: JsonValue) -> bool:
    return not isinstance(name, str) or name not in KNOWN_FORMATS
