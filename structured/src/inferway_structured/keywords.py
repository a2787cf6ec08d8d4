"""The keywords of JSON Schema.

draft 2020-12 (json-schema.org/draft/2020-12/schema), and what older drafts had besides.
"""

from __future__ import annotations

# They forbid values.
ASSERTIONS = frozenset(
    {
        *("$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties"),
        *("allOf", "anyOf", "const", "contains", "dependencies", "dependentRequired"),
        *("dependentSchemas", "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "format"),
        *("if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum"),
        *("minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf"),
        *("not", "oneOf", "pattern", "patternProperties", "prefixItems", "properties"),
        *("propertyNames", "required", "then", "type", "unevaluatedItems"),
        *("unevaluatedProperties", "uniqueItems"),
    }
)

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
