"""Structural tags: text in which some words begin a part that has a shape, as
{"structures": [{"begin", "schema", "end"}], "triggers"} or as a {"format": …} of xgrammar's.

What only xgrammar can read it keeps with gaps, in silence: they are named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from inferway_structured.backends.schemas.nodes import Document, Node
from inferway_structured.grammar import Unenforced
from inferway_structured.validate.schema_walk import escaped


class TagSchema(NamedTuple):
    """A schema, and where it stands in the tag."""

    holder: dict[str, Any]
    key: str
    place: str


def schemas_of(tag: Any, place: str = "") -> Iterator[TagSchema]:
    if isinstance(tag, list):
        for at, one in enumerate(tag):
            yield from schemas_of(one, f"{place}/{at}")
    if not isinstance(tag, dict):
        return
    for key, inner in tag.items():
        here = f"{place}/{escaped(key)}"
        is_schema = (key == "schema" and "begin" in tag) or (
            key == "json_schema" and isinstance(tag.get("type"), str)
        )
        if is_schema and isinstance(inner, dict | bool):
            yield TagSchema(tag, key, here)
        else:
            yield from schemas_of(inner, here)


def patterns_of(tag: Any) -> Iterator[str]:
    """Yield the regular expressions beside the schemas."""
    if isinstance(tag, list):
        for one in tag:
            yield from patterns_of(one)
    elif isinstance(tag, dict):
        if tag.get("type") == "regex" and isinstance(tag.get("pattern"), str):
            yield tag["pattern"]
        elif tag.get("type") != "json_schema":
            yield from patterns_of(list(tag.values()))


# Alone at their places, xgrammar 0.2.8 keeps these.
_KEPT = frozenset(
    {
        *("type", "enum", "const", "$ref", "anyOf", "properties", "required", "items"),
        *("additionalProperties", "prefixItems", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    }
)


def unkept_by_xgrammar(schema: Any, place: str) -> Iterator[Unenforced]:
    waiting, seen = [Document(schema).root], set()
    while waiting:
        node = waiting.pop()
        if node.place in seen:
            continue
        seen.add(node.place)
        for word, rule in node.keywords.items():
            alone = word == "pattern" and not {"minLength", "maxLength"} & set(node.keywords)
            if word not in _KEPT and not alone and word != "never":
                yield Unenforced(place + node.place, word)
            inner = [*rule.values()] if isinstance(rule, dict) else rule
            waiting += [
                one
                for one in (inner if isinstance(inner, list) else [inner])
                if isinstance(one, Node)
            ]


_REPEATS = frozenset({"star", "plus", "optional", "tags_with_separator", "triggered_tags"})


def repeats_in_repeats(tag: object) -> bool:
    """Return whether an answer may be read in as many ways as a text has cuts: what may come often,
    inside of what may come often."""
    waiting: list[tuple[object, bool]] = [(tag, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, dict):
            repeats = node.get("type") in _REPEATS
            if repeats and inside:
                return True
            inner = (one for word, one in node.items() if word not in ("json_schema", "schema"))
            waiting += [(one, inside or repeats) for one in inner]
        elif isinstance(node, list):
            waiting += [(one, inside) for one in node]
    return False
