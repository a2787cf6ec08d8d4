"""`guided_json` and its kind, as vLLM up to 0.11 was asked for a shape. Since 0.12 it ignores them
(entrypoints/serve/engine/protocol.py `_REMOVED_GUIDED_FIELDS`), so that its engines enforce what
they ask for only if they are told so in the words of today: `structured_outputs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferway.errors import SpecError
from inferway.structured.spec import MAKERS, Asked, Options, whitespace_of

Fields = Mapping[str, Any]

WHITESPACE = "guided_whitespace_pattern"

# By their names in `structured_outputs`.
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "structural_tag": "structural_tag",
}


def guided(fields: Fields) -> Asked | None:
    """Raises SpecError, also where several are given."""
    given = [name for name in GUIDED if _is_given(fields.get(name))]
    if not given:
        return None
    if len(given) > 1:
        raise SpecError(f"{' and '.join(given)}: only one can be kept", param=given[1])
    name = given[0]
    options = Options(whitespace_pattern=whitespace_of(fields, WHITESPACE, ""))
    return Asked(MAKERS[GUIDED[name]](fields[name], name, options), name)


def ignored_by_vllm(asked: Sequence[Asked]) -> list[str]:
    """The names that vLLM does not read, of what is asked."""
    return [each.place for each in asked if each.place in GUIDED]


def in_vllms_words(fields: Fields, asked: Sequence[Asked]) -> dict[str, Any] | None:
    """The same request with `structured_outputs`; None if nothing is to be said otherwise: the
    answer's text has no shape, or `structured_outputs` is there and counts."""
    if fields.get("structured_outputs") is not None or all(each.tool is not None for each in asked):
        return None
    name = next((name for name in GUIDED if _is_given(fields.get(name))), None)
    if name is None:
        return None
    value = fields[name]
    if name == "structural_tag" and not isinstance(value, str):
        value = json.dumps(value)  # vLLM takes its text alone
    outputs = {GUIDED[name]: value}
    if fields.get(WHITESPACE) is not None:
        outputs["whitespace_pattern"] = fields[WHITESPACE]
    kept = {key: each for key, each in fields.items() if key not in (*GUIDED, WHITESPACE)}
    return {**kept, "structured_outputs": outputs}


def _is_given(value: object) -> bool:
    """Up to vLLM 0.11: false is absent there."""
    return value is not None and value is not False
