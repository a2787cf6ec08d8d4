"""POST /v1/structured/explain: a body -> the specs in it. As the engines' own endpoint takes it.

a request of /v1/chat/completions, /v1/completions or /v1/responses, or the fields of one that
ask for a shape; what else is in it does not matter
{"kind": "regex", "text": "[a-z]+", "options": {...}, "strict": true}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.errors import InvalidRequestError
from inferway.openai_api.requests import decode_body
from inferway_structured.requests import asked as asked_in
from inferway_structured.spec import MAKERS, Asked, Kind, Options

_OBJECT = msgspec.json.Decoder(dict[str, Any])


class _SpelledOut(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    text: str = ""
    options: Options = Options()
    strict: bool = False


def read_specs(body: bytes) -> list[Asked]:
    """Raises RequestError: unreadable, or asks for nothing."""
    fields = decode_body(body, _OBJECT)
    if "kind" in fields:
        return [_spelled_out(fields)]
    path = "/v1/responses" if "input" in fields or "text" in fields else "/v1/chat/completions"
    asked = asked_in(path, fields)
    if not asked:
        raise InvalidRequestError(
            "body: asks for no shape; give a request with response_format, structured_outputs or"
            " tools that must be called, or a `kind` and a `text`"
        )
    return asked


def _spelled_out(fields: Mapping[str, Any]) -> Asked:
    try:
        given = msgspec.convert(fields, _SpelledOut)
    except msgspec.ValidationError as e:
        raise InvalidRequestError(f"body: {e}") from e
    value: object = True if given.kind is Kind.JSON_OBJECT else given.text
    return Asked(MAKERS[given.kind](value, "text", given.options), "text", given.strict)
