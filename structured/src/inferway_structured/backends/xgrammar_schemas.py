"""A JSON Schema -> one of which xgrammar (0.2.8, 0.2.9) keeps every word, and what that leaves out.

It reads a keyword only where `type` stands beside it, or takes it for one, and drops what it does
not read, in silence: `{"minimum": 2}` allows 1 and `{"properties": {}}` forbids null. In structural
tags it allows no items and properties but those that are listed. So each node is said by the types
that it allows, one by one, and with the words alone that were seen to be kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from inferway_structured.backends.schemas.nodes import Document, Node
from inferway_structured.backends.schemas.numbers import integers_within
from inferway_structured.backends.schemas.shapes import (
    OF_TYPE,
    TYPES,
    identity,
    named_types,
    spelled,
    type_of,
)
from inferway_structured.grammar import Unenforced

Said = Any  # False: no value

# Patterns that its dialect reads as JSON Schema's, and that no escape of JSON meets.
_PATTERN = re.compile(r"\^(?:[A-Za-z0-9_ -]|\\d|\[[A-Za-z0-9_-]+\]|[*+?]|\{\d+(?:,\d*)?\})*\$")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_FAR = 2**31  # a bound up to here is kept
_CHOOSING = ("enum", "const", "$ref", "anyOf")  # what stands beside one of them is not read


def said_for_xgrammar(
    schema: Any, place: str, *, is_arguments: bool = False
) -> tuple[Said, list[Unenforced]]:
    """Return the schema and what is left out. `is_arguments`: an object that is not written as
    JSON, but as XML or the like."""
    return _Saying(Document(schema), place, is_arguments).run()


class _Saying:
    def __init__(self, document: Document, place: str, is_arguments: bool) -> None:
        self._document = document
        self._place = place
        self._is_arguments = is_arguments
        self._unenforced: list[Unenforced] = []
        self._names: dict[str, str] = {}  # of definitions, by the place that is referred to
        self._waiting: list[Node] = []

    def run(self) -> tuple[Said, list[Unenforced]]:
        among = frozenset({"object"}) if self._is_arguments else TYPES
        top = self._said(self._document.root, among)
        definitions = {}
        while self._waiting:
            node = self._waiting.pop()
            said = self._said(node)
            if said is False:  # which it refuses as a definition
                self._leave_out(node, *node.keywords)
            definitions[self._names[node.place]] = said or {}
        if definitions and top:
            top = {**top, "$defs": definitions}
        return top, self._unenforced

    def _leave_out(self, node: Node, *words: str) -> None:
        for word in words:
            named = node.keywords[word] if word == "malformed" else [word]
            self._unenforced += [Unenforced(self._place + node.place, one) for one in named]

    def _said(self, node: Node, among: frozenset[str] = TYPES) -> Said:
        keywords = dict(node.keywords)
        if keywords.pop("never", False):
            return False
        kinds = among & named_types(keywords.pop("type")) if "type" in keywords else among
        chosen = next((word for word in _CHOOSING if word in keywords), None)
        if chosen is None:
            return self._by_type(node, keywords, kinds)
        rule = keywords.pop(chosen)
        said: Said
        if chosen == "$ref":
            said = self._reference(rule)
        elif chosen == "anyOf":
            ways = [way for inner in rule if (way := self._said(inner)) is not False]
            said = {"anyOf": ways} if ways else False
        else:
            values = rule if chosen == "enum" else [rule]
            if "const" in keywords:
                only = identity(keywords.pop("const"))
                values = [value for value in values if identity(value) == only]
            values = [value for value in values if type_of(value) in kinds]
            return self._rest(node, keywords, kinds, {"enum": values} if values else False)
        if "type" in node.keywords:
            self._leave_out(node, "type")
        return self._rest(node, keywords, kinds, said)

    def _rest(
        self, node: Node, keywords: dict[str, Any], kinds: frozenset[str], said: Said
    ) -> Said:
        """Name what is left of the keywords, but for what says nothing of these types."""
        self._leave_out(node, *(word for word in keywords if OF_TYPE.get(word, kinds) & kinds))
        return said

    def _reference(self, target: Node) -> Said:
        if "never" in target.keywords:
            return False
        if target.place not in self._names:
            self._names[target.place] = f"d{len(self._names)}"
            self._waiting.append(target)
        return {"$ref": f"#/$defs/{self._names[target.place]}"}

    def _by_type(self, node: Node, keywords: dict[str, Any], kinds: frozenset[str]) -> Said:
        if kinds == TYPES and OF_TYPE.keys().isdisjoint(keywords):
            return self._rest(node, keywords, kinds, {})
        says: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "array": self._array,
            "object": partial(self._object, node),
        }
        ways = []
        for kind in spelled(kinds):
            own = says[kind](keywords) if kind in says else {}
            if own is not None:
                ways.append({"type": kind, **own})
        said: Said = {"anyOf": ways} if len(ways) > 1 else ways[0] if ways else False
        return self._rest(node, keywords, kinds, said)

    # Each takes the words that it says out of the keywords, and returns None if no value is left.

    def _string(self, keywords: dict[str, Any]) -> dict[str, Any] | None:
        if _PATTERN.fullmatch(keywords.get("pattern", "")):
            return {"pattern": keywords.pop("pattern")}
        if self._is_arguments:  # texts without quotes, whose lengths it does not count
            return {}
        return _counts(keywords, "minLength", "maxLength")

    def _number(self, keywords: dict[str, Any]) -> dict[str, Any] | None:
        own = _taken(keywords, [word for word in _BOUNDS if abs(keywords.get(word, _FAR)) < _FAR])
        least = max(own.get("minimum", -inf), own.get("exclusiveMinimum", -inf))
        most = min(own.get("maximum", inf), own.get("exclusiveMaximum", inf))
        is_open = least == own.get("exclusiveMinimum") or most == own.get("exclusiveMaximum")
        return None if least > most or (least == most and is_open) else own

    def _integer(self, keywords: dict[str, Any]) -> dict[str, Any] | None:
        """Bounds of integers have to be integers."""
        own = _taken(keywords, [word for word in _BOUNDS if abs(keywords.get(word, _FAR)) < _FAR])
        least, most = integers_within(own)
        kept = {"minimum": least, "maximum": most}
        return None if least > most else {w: at for w, at in kept.items() if abs(at) <= _FAR}

    def _array(self, keywords: dict[str, Any]) -> dict[str, Any] | None:
        own = _counts(keywords, "minItems", "maxItems")
        if own is None or "items" not in keywords or "prefixItems" in keywords:
            return None if own is None else {"items": {}, **own}
        items = self._said(keywords.pop("items"))
        if items is not False:
            return {"items": items, **own}
        return None if own.get("minItems") else {"maxItems": 0}

    def _object(self, node: Node, keywords: dict[str, Any]) -> dict[str, Any] | None:
        own: dict[str, Any] = {"additionalProperties": {}}
        inner = {name: self._said(one) for name, one in keywords.pop("properties", {}).items()}
        never = {name for name, one in inner.items() if one is False}
        required = keywords.pop("required", [])
        if not never.isdisjoint(required):
            return None
        if never:
            self._leave_out(node, "properties")
        if listed := {name: one for name, one in inner.items() if name not in never}:
            own["properties"] = listed
        if kept := [name for name in required if name in listed]:
            own["required"] = kept
        if len(kept) < len(required):
            self._leave_out(node, "required")
        if "additionalProperties" in keywords and "patternProperties" not in keywords:
            own["additionalProperties"] = self._said(keywords.pop("additionalProperties"))
        return own


def _counts(keywords: dict[str, Any], least: str, most: str) -> dict[str, Any] | None:
    own = _taken(keywords, (least, most))
    return None if own.get(least, 0) > own.get(most, inf) else own


def _taken(keywords: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    return {word: keywords.pop(word) for word in words if word in keywords}
