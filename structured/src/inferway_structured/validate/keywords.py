"""The keywords of JSON Schema, and pointers to them (RFC 6901).

draft 2020-12 (json-schema.org/draft/2020-12/schema), and what older drafts had besides.
"""

from __future__ import annotations

# Of draft 2020-12, those that forbid values, by what they hold: many schemas, one, many by names,
# none.
MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
ONE = (
    *("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties"),
    *("items", "unevaluatedProperties", "unevaluatedItems"),
)
NAMED = ("properties", "patternProperties", "dependentSchemas")
PLAIN = (
    *("type", "enum", "const", "multipleOf", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern", "format"),
    *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
    *("required", "minProperties", "maxProperties", "dependentRequired"),
)
RESTRICTING = frozenset({*MANY, *ONE, *NAMED, *PLAIN, "additionalItems", "dependencies"})
FORMATS = frozenset(  # any other is a name that says nothing
    {
        *("date", "time", "date-time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template", "iri"),
        *("iri-reference", "uuid", "json-pointer", "relative-json-pointer", "regex"),
    }
)
# Of all drafts, what holds schemas, by what it holds; and whether they are held against the same
# value as the schema they stand in.
HOLDING_ONE = frozenset({*ONE, "additionalItems", "contentSchema"})
HOLDING_MANY = frozenset({*MANY, "items"})
ELSEWHERE = frozenset(
    {"$defs", "definitions"}
)  # held against nothing until a reference leads there
HOLDING_NAMED = frozenset({*NAMED, *ELSEWHERE, "dependencies"})
HERE = frozenset(
    {
        *("not", "if", "then", "else", "allOf", "anyOf", "oneOf"),
        *("dependentSchemas", "dependencies"),
    }
)
NAMING = frozenset({"$id", "id", "$anchor", "$dynamicAnchor"})
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

# They forbid values.
ASSERTIONS = RESTRICTING.union(REFERENCES)

# By what `$schema` says.
DRAFTS = {
    "http://json-schema.org/draft-04/schema": "4",
    "http://json-schema.org/draft-06/schema": "6",
    "http://json-schema.org/draft-07/schema": "7",
    "https://json-schema.org/draft/2019-09/schema": "2019-09",
    "https://json-schema.org/draft/2020-12/schema": "2020-12",
}

# They say something about the schema or its values, and forbid none.
ANNOTATIONS = frozenset(
    {
        *("$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor"),
        *("$schema", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema"),
        *("default", "definitions", "deprecated", "description", "examples", "id"),
        *("readOnly", "title", "writeOnly"),
    }
)

_KNOWN = ASSERTIONS | ANNOTATIONS


def label(keyword: str | None) -> str:
    """Return a keyword as a metric has it: what a client may have made up is "other"."""
    if keyword is None:
        return "none"
    return keyword if keyword in _KNOWN else "other"


def escaped(step: str) -> str:
    """Return a name as a part of a JSON pointer."""
    if "/" not in step and "~" not in step:
        return step
    return step.replace("~", "~0").replace("/", "~1")


def unescaped(part: str) -> str:
    """Return the name that a part of a JSON pointer stands for."""
    return part.replace("~1", "/").replace("~0", "~")


def pointer(steps: list[str | int]) -> str:
    """Return the JSON pointer of these steps."""
    return "".join(f"/{escaped(str(step))}" for step in steps)
