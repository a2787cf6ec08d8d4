"""Arguments of a call as XML: one element a property, in the schema's order. Strings stand there as
they are, everything else as JSON.

Only plain objects are read here; `arguments` raises SpecError for others, which are xgrammar's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from inferway_structured.errors import SpecError
from inferway_structured.validate.keywords import ANNOTATIONS


class Wrapper(NamedTuple):
    """The texts before and after a property's name and its value."""

    before: str
    after: str
    close: str
    after_json: str = ""  # of a value that is no string, where that differs


STYLES: Mapping[str, Wrapper] = {
    "qwen_xml": Wrapper("<parameter=", ">", "</parameter>"),
    "minimax_xml": Wrapper('<parameter name="', '">', "</parameter>"),
    "glm_xml": Wrapper("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
    "deepseek_xml": Wrapper(
        *('<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>"),
        '" string="false">',
    ),
    "deepseek_v4_1_xml": Wrapper(
        *('<｜DSML｜ parameter name="', '" string="true">', "</｜DSML｜ parameter>"),
        '" string="false">',
    ),
}
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties", "$defs"})


class Value(NamedTuple):
    """One way to write a property's value; any text if it has neither member."""

    words: str | None = None
    schema: Any = None


class Property(NamedTuple):
    name: str | None  # None: any that is not declared
    values: list[Value]
    is_required: bool = False


def arguments(schema: Any) -> Iterator[Property]:
    """Raises SpecError for what is no plain object."""
    if schema is True or schema == {}:
        yield Property(None, [Value()])
        return
    said = _said(schema)
    properties, required = said.get("properties", {}), said.get("required", [])
    others = said.get("additionalProperties", True)
    is_plain = said.get("type") == "object" and not set(said) - _OBJECT
    if not is_plain or set(required) - set(properties) or not isinstance(others, bool):
        raise SpecError("arguments in XML that are no plain object cannot be kept")
    for name, inner in properties.items():
        yield Property(name, list(_values(inner, said.get("$defs"))), name in required)
    if others:
        yield Property(None, [Value()])


def _values(schema: Any, definitions: Any) -> Iterator[Value]:
    said = _said(schema)
    kinds = said.get("type")
    if not said:
        yield Value()
    elif "enum" in said or "const" in said:
        if set(said) - {"enum", "const", "type"} or {"enum", "const"} <= set(said):
            raise SpecError("choices of arguments in XML with other keywords cannot be kept")
        for one in said.get("enum", [said.get("const")]):
            yield Value(words=one if isinstance(one, str) else json.dumps(one))
    elif set(said) == {"anyOf"}:
        for one in said["anyOf"]:
            yield from _values(one, definitions)
    elif isinstance(kinds, list) and set(said) == {"type"}:
        for kind in kinds:
            yield from _values({"type": kind}, definitions)
    elif isinstance(kinds, str) and kinds != "string":
        yield Value(schema={**said, **({"$defs": definitions} if definitions else {})})
    elif said == {"type": "string"}:
        yield Value()
    else:
        raise SpecError("strings with keywords cannot be kept in XML")


def _said(schema: Any) -> dict[str, Any]:
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise SpecError("no answer can keep this schema")
    return {word: rule for word, rule in schema.items() if word not in ANNOTATIONS}
