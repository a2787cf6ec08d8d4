"""Bodies of /v1/structured/{explain,warm} -> the specs in them. Pure.

a request of /v1/chat/completions or /v1/responses, or of the path that a `path` beside it names, or
the fields of one that ask for a shape; what else is in it does not matter
{"kind": "regex", "text": "[a-z]+", "options": {...}, "strict": true}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway_structured.errors import InvalidRequestError
from inferway_structured.requests import parse_constraints
from inferway_structured.spec import MAKERS, Kind, Options, OutputConstraint, json_type

WANTED = (
    "send an object with a `kind` and a `text`, or the fields of a request that ask for a shape, "
    "for example `response_format`"
)


def read_specs(fields: Mapping[str, Any]) -> list[OutputConstraint]:
    """Return the specs of a body, at least one. Raises InvalidRequestError if it asks for none,
    SpecError for what cannot be read."""
    if "kind" in fields:
        return [_spelled_out(fields)]
    is_response = "input" in fields or "text" in fields
    path = fields.get("path", "/v1/responses" if is_response else "/v1/chat/completions")
    asked = parse_constraints(path, fields) if isinstance(path, str) else []
    if not asked:
        raise InvalidRequestError(f"the body asks for no shape; {WANTED}")
    return asked


def _spelled_out(fields: Mapping[str, Any]) -> OutputConstraint:
    kind, text, options = fields["kind"], fields.get("text", ""), fields.get("options") or {}
    if kind not in list(Kind):
        got = repr(kind[:40]) if isinstance(kind, str) else json_type(kind)
        words = f"kind: expected one of {', '.join(Kind)}, got {got}"
        raise InvalidRequestError(words, param="kind")
    if not isinstance(text, str):
        raise InvalidRequestError(f"text: expected a string, got {json_type(text)}", param="text")
    if not isinstance(options, dict) or not set(options) <= set(Options.__slots__):
        names = ", ".join(Options.__slots__)
        words = f"options: expected an object with no other keys than {names}"
        raise InvalidRequestError(words, param="options")
    try:
        given = msgspec.convert(options, Options)
    except msgspec.ValidationError as e:
        raise InvalidRequestError(f"options: {e}", param="options") from None
    value: object = True if kind == Kind.JSON_OBJECT else text  # read as in a request
    return OutputConstraint(
        MAKERS[kind](value, "text", given), "text", fields.get("strict") is True
    )
