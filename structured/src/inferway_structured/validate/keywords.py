"""The keywords of JSON Schema.

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
