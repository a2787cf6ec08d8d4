"""Which schemas llguidance reads as they are meant, or refuses: those are tried as they came."""

from __future__ import annotations

import json
from collections.abc import Mapping

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
_NAMED = frozenset({"properties", "patternProperties", "definitions", "$defs"})


def is_plain(text: str) -> bool:
    """Whether it is worth a try."""
    if not any(word in text for word in _DOUBTFUL):  # looked for as text: most are done here
        return True
    document = Document(json.loads(text))
    return not _has_trouble(document.raw, document.names_draft and document.draft <= 7)


def _has_trouble(raw: JsonValue, ignores_siblings: bool) -> bool:
    if isinstance(raw, list):
        return any(_has_trouble(one, ignores_siblings) for one in raw)
    if not isinstance(raw, dict):
        return False
    if not _REFUSED.isdisjoint(raw) or ("format" in raw and _is_unknown(raw["format"])):
        return True
    if ignores_siblings and "$ref" in raw and not RESTRICTING.isdisjoint(raw):
        return True  # an older draft ignores what stands beside a reference; llguidance does not
    if any(in_rust(pattern) != pattern for pattern in _patterns(raw)):
        return True
    return any(
        any(_has_trouble(one, ignores_siblings) for one in inner.values())
        if word in _NAMED and isinstance(inner, dict)
        else word not in DATA and _has_trouble(inner, ignores_siblings)
        for word, inner in raw.items()
    )


def _patterns(raw: Mapping[str, JsonValue]) -> list[str]:
    named = raw.get("patternProperties")
    found = [*named] if isinstance(named, dict) else []
    return [*found, raw["pattern"]] if isinstance(raw.get("pattern"), str) else found


def _is_unknown(name: JsonValue) -> bool:
    return not isinstance(name, str) or name not in KNOWN_FORMATS
