"""Schemas as programs publish them, drawn with a seed: function calls, Kubernetes' resources,
events, configuration files, APIs, documents, trees. They have the keywords, the drafts, the sorts
of references and the sizes of JSONSchemaBench's schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from urllib.parse import quote

Schema = dict[str, Any]
Part = Callable[[Random], Schema]

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

WORDS = (
    "account", "address", "amount", "author", "city", "color", "command", "count", "created_at",
    "currency", "email", "enabled", "endDate", "env", "height", "host", "id", "image", "interval",
    "items", "kind", "label", "language", "limit", "metadata", "name", "options", "owner", "path",
    "port", "priority", "ranking-score", "region", "replicas", "retry", "status", "tags", "title",
    "url", "user name", "value", "version", "weight", "x-order", "$type", "a/b", "größe", "名前",
)  # fmt: skip
FORMATS = (
    "date", "date-time", "time", "email", "hostname", "ipv4", "ipv6", "uri", "url", "iri", "uuid",
    "regex", "int32", "int64", "double", "utc-millisec", "topic", "semver", "jsonschema", "path",
)  # fmt: skip
PATTERNS = (
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", r"^\d{4}-\d{2}-\d{2}$", r"^(0|[1-9]\d*)\.(0|[1-9]\d*)$",
    r"^#[0-9A-Fa-f]{6}$", r"^https?://", r"^[A-Z]{2}(-[A-Z0-9]{1,3})?$", r"^\S+@\S+\.\S+$",
    r"^.*\.(png|jpe?g|svg)$", r"^[\w\s,.'-]{1,80}$", r"^(?!.*--)[a-z-]+$", "^[^/]+$", r"\$\{.+\}",
)  # fmt: skip


def lifelike_schemas(seed: int, count: int) -> list[Schema]:
    """Of each kind as many as of any other."""
    rng = Random(seed)
    return [KINDS[i % len(KINDS)](rng) for i in range(count)]


def keywords(schema: Any) -> Iterator[str]:
    """All keys at any depth, those of properties among them."""
    if isinstance(schema, dict):
        yield from schema
        for value in schema.values():
            yield from keywords(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keywords(value)


def names(rng: Random, most: int = 6) -> list[str]:
    return rng.sample(WORDS, rng.randint(1, most))


def text(rng: Random, length: int = 8) -> str:
    return " ".join(rng.choices(WORDS, k=length))


def of_object(rng: Random, part: Part, most: int = 6) -> Schema:
    """Named properties, some of them required."""
    properties = {name: part(rng) for name in names(rng, most)}
    required = rng.sample(list(properties), rng.randint(1, len(properties)))
    return {"type": "object", "properties": properties, "required": required}


def string(rng: Random) -> Schema:
    return rng.choice(
        [
            {"type": "string", "description": text(rng)},
            {"type": "string", "minLength": 1, "maxLength": rng.choice([8, 255, 8192])},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"type": "string", "format": rng.choice(FORMATS)},
            {"type": "string", "enum": names(rng), "title": text(rng, 2)},
            {"type": "string", "default": text(rng, 1), "examples": names(rng)},
            {"type": ["string", "null"], "maxLength": 64},
            {"const": text(rng, 1)},
        ]
    )


def number(rng: Random) -> Schema:
    return rng.choice(
        [
            {"type": "integer", "minimum": 0, "maximum": rng.choice([1, 255, 65535, 2**31 - 1])},
            {"type": "number", "multipleOf": rng.choice([0.01, 1, 5])},
            {"type": "number", "minimum": -90, "maximum": 90, "default": 0.5},
            {"type": ["integer", "null"], "format": rng.choice(["int32", "int64"])},
            {"type": "boolean", "default": rng.random() < 0.5},
            {"enum": [1, 2.5, None, True, "auto", [1], {"a": 1}]},
        ]
    )


def leaf(rng: Random) -> Schema:
    return rng.choice([string, string, number])(rng)


def nested(depth: int) -> Part:
    """Objects, arrays and alternatives of each other down to leaves."""
    if depth == 0:
        return leaf
    inner = nested(depth - 1)

    forms: tuple[Part, ...] = (
        leaf,
        lambda rng: {**of_object(rng, inner), "additionalProperties": rng.random() < 0.5},
        lambda rng: {"type": "object", "additionalProperties": inner(rng), "maxProperties": 50},
        lambda rng: {"type": "object", "patternProperties": {rng.choice(PATTERNS): inner(rng)}},
        lambda rng: {"type": "array", "items": inner(rng), "minItems": 1, "maxItems": 100},
        lambda rng: {"type": "array", "items": inner(rng), "uniqueItems": True},
        lambda rng: {rng.choice(["anyOf", "oneOf"]): [inner(rng), {"type": "null"}]},
    )
    return lambda rng: rng.choice(forms)(rng)


def function_call(rng: Random) -> Schema:
    return of_object(rng, nested(1))


def resource(rng: Random) -> Schema:
    """Definitions that refer to each other, as Kubernetes' do."""
    kinds = [f"io.k8s.api.v{i}.{rng.choice(WORDS)}" for i in range(rng.randint(3, 40))]

    def reference(rng: Random) -> Schema:
        target = quote(rng.choice(kinds).replace("/", "~1"))
        inner = {"$ref": f"#/definitions/{target}"}
        return rng.choice([inner, {"items": inner, "type": "array"}, string(rng), number(rng)])

    return {
        "$schema": DRAFT_4.rstrip("#"),
        "description": text(rng, 40),
        "definitions": {
            kind: {**of_object(rng, reference, 12), "description": text(rng)} for kind in kinds
        },
        **of_object(rng, reference),
        "x-kubernetes-group-version-kind": [{"group": "", "kind": rng.choice(WORDS)}],
    }


def event(rng: Random) -> Schema:
    return {
        "$schema": DRAFT_4,
        "id": f"http://example.com/{rng.randrange(99)}#",
        "self": {"vendor": "com.example", "name": "event", "format": "jsonschema"},
        **of_object(rng, nested(2), 12),
        "minProperties": 1,
        "dependencies": {"id": ["name"], "name": {"minProperties": 1}},
        "additionalProperties": False,
    }


def draft_4(rng: Random) -> Schema:
    return {
        "$schema": DRAFT_4,
        "id": "#root",
        "properties": {
            "range": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1,
                      "exclusiveMaximum": rng.random() < 0.5},
            "pair": {"type": "array", "items": [leaf(rng), leaf(rng)],
                     "additionalItems": rng.choice([False, leaf(rng)])},
            "other": {"$ref": "#/properties/pair"},
            "not empty": {"not": {"enum": ["", None]}},
        },
    }  # fmt: skip


def configuration(rng: Random) -> Schema:
    named = {name: nested(3)(rng) for name in ("entry", "path", "hook")}
    return {
        "$schema": rng.choice([DRAFT_6, DRAFT_7]),
        "$id": "https://example.com/config.json",
        "$comment": text(rng),
        "title": text(rng, 2),
        "definitions": named,
        "type": "object",
        "properties": {
            "extends": {"oneOf": [{"type": "string"}, {"type": "array", "items": string(rng)}]},
            "entry": {"$ref": "#/definitions/entry"},
            "hooks": {"additionalProperties": {"$ref": "#/definitions/hook"}},
            "exclusive": {"exclusiveMinimum": 0, "exclusiveMaximum": 10, "type": "number"},
            "$schema": {"type": "string", "format": "uri"},
        },
        "patternProperties": {r"^x-": {}, r"^\d+$": {"$ref": "#/definitions/path"}},
        "propertyNames": {"maxLength": 100},
        "if": {"properties": {"extends": {"const": "base"}}},
        "then": {"required": ["entry"]},
        "else": {"not": {"required": ["exclusive"]}},
    }


def interface(rng: Random) -> Schema:
    """As an OpenAPI document has it."""
    components = {"Pet": {**of_object(rng, nested(2)), "nullable": True}, "Id": number(rng)}
    return {
        "components": {"schemas": components},
        "allOf": [
            {"$ref": "#/components/schemas/Pet"},
            {"properties": {"id": {"$ref": "#/components/schemas/Id"}}, "readOnly": True},
        ],
        "discriminator": {"propertyName": "kind"},
        "example": {"id": 1},
    }


def newest(rng: Random) -> Schema:
    return {
        "$schema": DRAFT_2020,
        "$defs": {"entry": {"$anchor": "entry", **of_object(rng, nested(2))}, "b c": leaf(rng)},
        "type": "object",
        "properties": {
            "entries": {"type": "array", "contains": {"$ref": "#entry"}, "minContains": 1},
            "row": {"type": "array", "prefixItems": [leaf(rng), leaf(rng)], "items": False},
            "spaced": {"$ref": "#/$defs/b%20c"},
        },
        "dependentRequired": {"row": ["entries"]},
        "dependentSchemas": {"spaced": {"minProperties": 2}},
        "unevaluatedProperties": False,
    }


def document(rng: Random) -> Schema:
    """Blocks of an article, told apart by a constant."""
    blocks = [
        {"allOf": [{"$ref": "#/definitions/block"}, {"properties": {"type": {"const": name}}},
                   of_object(rng, nested(1))]}
        for name in names(rng, 12)
    ]  # fmt: skip
    return {
        "$schema": DRAFT_7,
        "definitions": {
            "block": {"type": "object", "required": ["type"]},
            "story": {"properties": {"blocks": {"items": {"anyOf": blocks}, "minItems": 1}}},
        },
        "$ref": "#/definitions/story",
    }


def tree(rng: Random) -> Schema:
    children = {"type": "array", "items": {"$ref": "#"}}
    other = {"anyOf": [{"$ref": "#/definitions/node"}, {"type": "null"}]}
    return {
        "definitions": {"node": of_object(rng, lambda rng: rng.choice([other, leaf(rng)]))},
        "properties": {"children": children, "node": {"$ref": "#/definitions/node"}},
        "additionalProperties": {"$ref": "#/definitions/node"},
    }


def large(rng: Random) -> Schema:
    """Up to the size of the largest that one meets, 200 kB."""
    schema: Schema = {"$schema": DRAFT_7, "title": text(rng), "type": "object", "properties": {}}
    left = rng.randint(20_000, 200_000)
    while left > 0:
        described = {**nested(3)(rng), "description": text(rng, 60)}
        schema["properties"][f"{rng.choice(WORDS)} {left}"] = described
        left -= len(json.dumps(described))
    return schema


KINDS: tuple[Part, ...] = (
    function_call, resource, event, draft_4, configuration, interface, newest, document, tree, large
)  # fmt: skip
