"""A schema document as nodes of one dialect, 2020-12, whichever draft it was written in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import inf, isfinite
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from inferway_structured.validate.keywords import (
    DRAFTS,
    MANY,
    NAMED,
    ONE,
    PLAIN,
    REFERENCES,
    RESTRICTING,
    escaped,
    unescaped,
)

JsonValue = Any  # what json.loads gives

DATA = frozenset({"enum", "const", "default", "examples", "example"})  # no schemas in there
_READ = frozenset({"enum", "const", "required", "pattern", "dependentRequired", "dependencies"})
# The first draft that has them; a keyword of a later draft is an unknown word, and ignored.
_SINCE = {
    **dict.fromkeys(("if", "then", "else"), 7),
    **dict.fromkeys(("contains", "propertyNames", "const"), 6),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "minContains", "maxContains"), 2019),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), 2019),
    "prefixItems": 2020,
}
_DRAFTS = {
    "http://json-schema.org/draft-03/schema": 4,
    **{address: int(name.partition("-")[0]) for address, name in DRAFTS.items()},
}


_MALFORMED: Mapping[str, Any] = {"malformed": True}
_TYPE_NAMES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def is_formed(word: str, value: JsonValue) -> bool:
    """Return whether a keyword that holds no schemas has a value that some draft allows."""
    match word:
        case "const":
            return True
        case "type":
            names = value if isinstance(value, list) else [value]
            return all(isinstance(name, str) and name in _TYPE_NAMES for name in names)
        case "enum":
            return isinstance(value, list)
        case "pattern" | "format":
            return isinstance(value, str)
        case "uniqueItems":
            return isinstance(value, bool)
        case "required":
            return isinstance(value, list) and all(isinstance(one, str) for one in value)
        case "dependentRequired":
            return isinstance(value, dict) and all(is_formed("required", v) for v in value.values())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(value, float) and not isfinite(value):  # of an integer it may raise
        return False
    return word in _NUMBERS or (value >= 0 and value == int(value))


_COUNTS = frozenset(
    {
        *("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains"),
        *("minProperties", "maxProperties"),
    }
)
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})


class _Parsed:
    """The document that was parsed, or written, last: whoever reads, checks and compiles a text
    asks for it several times in a row. Any thread."""

    last: tuple[str, JsonValue] = ("null", None)


def parsed(text: str) -> JsonValue:
    """Return the document. It is shared: only read it."""
    known, document = _Parsed.last
    if known != text:
        document = json.loads(text)
        _Parsed.last = text, document
    return document


def was_written(text: str, document: JsonValue) -> None:
    """Remember what a text was written from, so that it need not be parsed. Nobody may change it
    any more."""
    _Parsed.last = text, document


# A few hundred characters can be looked through for minutes: references to what has references, and
# each is followed; each branch is held against each. All of that is Python, which holds the GIL, so
# it is counted where none of it can pass: at every look at a node.

# Of values that are no schemas, and of what is written as JSON to be compared: what takes a look.
CHARS_READ = 20
CHARS_WRITTEN = 100


class TooLargeError(Exception):
    """A document takes more looks than are left."""


class Work:
    """The work that may still be spent on a document, counted in visits of nodes (about 2 µs each,
    with what follows from one)."""

    __slots__ = ("left",)

    def __init__(self, most: float = inf) -> None:
        self.left = most

    def spend(self, amount: float = 1.0) -> None:
        """Take so much away. Raises TooLargeError if that is more than is left."""
        self.left -= amount
        if self.left < 0:
            raise TooLargeError


class Document:
    """A schema document. `draft` is a number that can be compared: 4, 6, 7, 2019 or 2020. A schema
    that names none, or one nobody knows, is of 2020-12, and may use older spellings. `work` bounds
    what looking through its nodes may take; any look may raise TooLargeError."""

    def __init__(self, raw: JsonValue, work: Work | None = None) -> None:
        self.raw = raw
        self.work = work or Work()
        named = raw.get("$schema") if isinstance(raw, dict) else None
        known = _DRAFTS.get(named.rstrip("#")) if isinstance(named, str) else None
        self.draft = known or 2020
        self.names_draft = known is not None
        self._nodes: dict[str, Node] = {}

    @property
    def root(self) -> Node:
        return self.node(self.raw, "")

    def node(self, raw: JsonValue, place: str) -> Node:
        """Return the node of a place, always the same object."""
        found = self._nodes.get(place)
        if found is None:
            found = self._nodes[place] = Node(self, raw, place)
        return found

    def resolve(self, reference: str, at: Node) -> Node | None:
        """Return the node that a reference leads to; None if it is nowhere in this document."""
        if reference.startswith("#") and not self._has_inner_resources:
            return self._fragment(self.raw, "", unquote(reference[1:]))
        address, fragment = urldefrag(urljoin(self._base(at.place), reference))
        resources = self._ids[1]
        candidates = [resources[address]] if address in resources else []
        if reference.startswith("#"):  # generators write ids that are no base of references
            candidates.append((self.raw, ""))
        for resource, place in candidates:
            found = self._fragment(resource, place, unquote(fragment))
            if found is not None:
                return found
        return None

    def _fragment(self, resource: JsonValue, place: str, fragment: str) -> Node | None:
        if fragment and not fragment.startswith("/"):
            anchor = self._ids[2].get(fragment)
            return self.node(*anchor) if anchor else None
        here = resource
        for part in fragment.split("/")[1:]:
            key = unescaped(part)
            if isinstance(here, dict) and key in here:
                here = here[key]
            elif isinstance(here, list) and key.isdecimal() and int(key) < len(here):
                here = here[int(key)]
            else:
                return None
            place += "/" + part
        return self.node(here, place) if isinstance(here, dict | bool) else None

    def _base(self, place: str) -> str:
        """The address that references at `place` are relative to."""
        bases = self._ids[0]
        around = (inner for inner in bases if place == inner or place.startswith(inner + "/"))
        return bases.get(max(around, key=len, default=""), "")

    @cached_property
    def _ids(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        """The bases of references by place, the resources by address, and the anchors by name."""
        bases: dict[str, str] = {}
        resources: dict[str, tuple[JsonValue, str]] = {"": (self.raw, "")}
        anchors: dict[str, tuple[JsonValue, str]] = {}
        key = "id" if self.draft == 4 else "$id"
        for raw, place, base in _walk(self.raw, "", "", key):
            bases[place] = base
            resources.setdefault(base, (raw, place))
            for word in ("$anchor", "$dynamicAnchor", key):
                name = raw.get(word)
                if isinstance(name, str) and (word != key or name.startswith("#")):
                    anchors.setdefault(name.lstrip("#"), (raw, place))
        return bases, resources, anchors

    @cached_property
    def has_dynamic_anchors(self) -> bool:
        text = str(self.raw)
        return "$dynamicAnchor" in text or "$recursiveAnchor" in text

    @cached_property
    def _has_inner_resources(self) -> bool:
        return any(base and place for place, base in self._ids[0].items())


def _walk(
    raw: JsonValue, place: str, base: str, key: str
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Every object that names itself, with its address."""
    if isinstance(raw, dict):
        name = raw.get(key)
        named = isinstance(name, str)
        if isinstance(name, str) and not name.startswith("#"):
            base = urldefrag(urljoin(base, name))[0]
        if named or "$anchor" in raw or "$dynamicAnchor" in raw:
            yield raw, place, base
        for word, inner in raw.items():
            if word not in DATA:
                yield from _walk(inner, f"{place}/{escaped(word)}", base, key)
    elif isinstance(raw, list):
        for at, inner in enumerate(raw):
            yield from _walk(inner, f"{place}/{at}", base, key)


class Node:
    """A schema at one path of a document."""

    __slots__ = ("__dict__", "document", "place", "raw")

    def __init__(self, document: Document, raw: JsonValue, place: str) -> None:
        self.document = document
        self.raw = raw
        self.place = place

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The keywords that restrict a value, in the order written, with subschemas as nodes. The
        schema `true` has no keywords, `false` has `never`. References that lead nowhere, and
        keywords whose values no draft allows, are `malformed`."""
        self.document.work.spend(self._work)
        return self._keywords

    @cached_property
    def _work(self) -> float:
        """Return what one look costs: who looks may go through the values, too."""
        raw = self.raw
        if not isinstance(raw, dict) or _READ.isdisjoint(raw):
            return 1.0
        return 1.0 + sum(len(str(raw[word])) for word in _READ if word in raw) / CHARS_READ

    @cached_property
    def _keywords(self) -> Mapping[str, Any]:
        raw = self.raw
        if isinstance(raw, bool):
            return {} if raw else {"never": True}
        if not isinstance(raw, dict):
            return {"malformed": ["schema"]}
        if "$ref" in raw and self.document.draft <= 7 and self.document.names_draft:
            raw = {"$ref": raw["$ref"]}  # what stands beside it is ignored
        found: dict[str, Any] = {}
        for word, value in raw.items():
            if self.document.draft >= _SINCE.get(word, 0) or not self.document.names_draft:
                read = self._read(word, value, raw)
                if "malformed" in read:
                    found["malformed"] = [*found.get("malformed", ()), word]
                else:
                    found.update(read)
        return found

    def _read(self, word: str, value: Any, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        if word in REFERENCES:
            return self._reference(word, value)
        if word == "items" and isinstance(value, list):
            return {"prefixItems": self._list(word, value)}
        if word == "additionalItems":
            return {"items": self._at(word, value)} if isinstance(raw.get("items"), list) else {}
        if word in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            limit = raw.get("minimum" if word == "exclusiveMinimum" else "maximum")
            return {word: limit} if value and limit is not None else {}
        if word == "dependencies" and isinstance(value, dict):
            return self._dependencies(value)
        if word in MANY and isinstance(value, list):
            return {word: self._list(word, value)}
        if word in NAMED and isinstance(value, dict):
            return {word: {name: self._at(word, one, name) for name, one in value.items()}}
        if word in ONE and isinstance(value, dict | bool):
            return {word: self._at(word, value)}
        if word not in RESTRICTING:
            return {}
        if word not in PLAIN or not is_formed(word, value):
            return _MALFORMED
        return {word: int(value) if word in _COUNTS else value}

    def _reference(self, word: str, value: Any) -> Mapping[str, Any]:
        target = self.document.resolve(value, self) if isinstance(value, str) else None
        if target is None or (word != "$ref" and self.document.has_dynamic_anchors):
            return _MALFORMED
        return {"$ref": target}

    def _dependencies(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """Read dependencies of both kinds."""
        names = {name: one for name, one in value.items() if isinstance(one, list)}
        schemas = {
            name: self._at("dependencies", one, name)
            for name, one in value.items()
            if not isinstance(one, list)
        }
        found: dict[str, Any] = {}
        if not is_formed("dependentRequired", names):
            return _MALFORMED
        if names:
            found["dependentRequired"] = names
        if schemas:
            found["dependentSchemas"] = schemas
        return found

    def _list(self, word: str, value: list[Any]) -> list[Node]:
        return [self._at(word, one, str(at)) for at, one in enumerate(value)]

    def _at(self, word: str, raw: JsonValue, *inner: str) -> Node:
        place = "/".join((self.place, word, *map(escaped, inner)))
        return self.document.node(raw, place)

    @property
    def target(self) -> Node:
        """The node itself, or, where it is nothing but a reference, the node that leads to."""
        here, seen = self, set()
        while list(here.keywords) == ["$ref"] and here.place not in seen:
            seen.add(here.place)
            here = here.keywords["$ref"]
        return here
