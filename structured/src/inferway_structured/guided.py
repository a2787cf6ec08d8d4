"""`guided_json` and its kind, as vLLM up to 0.11 was asked for a shape. Since 0.12 it ignores them
(entrypoints/serve/engine/protocol.py `_REMOVED_GUIDED_FIELDS`), so that its engines enforce what
they ask for only if they are told so in the words of today: `structured_outputs`. What cannot be
kept of them is left out: no such field is a reason to refuse what an engine answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferway_structured.errors import SpecError
from inferway_structured.spec import ANY_ARGUMENTS, MAKERS, Options, OutputConstraint, whitespace_of

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


def guided(fields: Fields, instead: str = "") -> list[OutputConstraint]:
    """Return the shapes that these fields ask for. None of them is kept if several are given, or
    where `instead` asks for the text's shape."""
    given = [name for name in GUIDED if _is_given(fields.get(name))]
    if len(given) > 1 and not instead:
        return [_free(name, f"{' and '.join(given)}: only one can be kept") for name in given]
    if instead:
        return [_free(name, f"{name}: {instead} is kept instead") for name in given]
    return [_guided(fields, name) for name in given]


def _guided(fields: Fields, name: str) -> OutputConstraint:
    try:
        options = Options(whitespace_pattern=whitespace_of(fields, WHITESPACE, ""))
        return OutputConstraint(
            MAKERS[GUIDED[name]](fields[name], name, options), name, ignored=True
        )
    except SpecError as e:
        return _free(name, e)


def _free(name: str, why: object) -> OutputConstraint:
    return OutputConstraint(ANY_ARGUMENTS, name, ignored=True).freed(why)


def in_vllms_words(fields: Fields, asked: Sequence[OutputConstraint]) -> dict[str, Any] | None:
    """Return the same request with `structured_outputs`; None if none of these fields is kept."""
    name = next((each.place for each in asked if each.ignored and not each.free), None)
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
