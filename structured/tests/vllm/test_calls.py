from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from inferway_structured.grammar import Unenforced, Verdict
from inferway_structured.spec import Kind, OutputConstraint, Spec, json_spec, structural_tag_spec
from inferway_structured.vllm.calls import (
    ON_ITS_WAY,
    RequestContext,
    free_calls,
    left_out,
    patches,
)

SET = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@dataclass(frozen=True)
class Function:
    """As pydantic's models in vLLM."""

    name: str
    strict: bool | None = None
    parameters: Any = None

    def model_copy(self, update: dict[str, Any]) -> Function:
        return replace(self, **update)


@dataclass(frozen=True)
class Tool:
    function: Function

    def model_copy(self, update: dict[str, Any]) -> Tool:
        return replace(self, **update)


def asked(name: str, schema: object = SET, **more: Any) -> OutputConstraint:
    return OutputConstraint(json_spec(schema, ""), "", tool=name, **more)


def resolved(tools: list[Any], *calls: OutputConstraint) -> Any:
    (patch,) = patches()
    assert patch.wrap is not None
    resolve = patch.wrap(lambda tools, tool_choice, strict_level: tools)  # noqa: ARG005
    token = ON_ITS_WAY.set(RequestContext(calls))
    try:
        return resolve(tools, "required", 0)
    finally:
        ON_ITS_WAY.reset(token)


def test_vllm_writes_the_schemas_that_are_kept_and_no_others() -> None:
    invalid = {"type": "object", "required": True}
    tools = [
        *(Tool(Function("kept", parameters=SET)), Tool(Function("free", True, invalid))),
        Tool(Function("may be called")),
    ]

    found = resolved(tools, asked("kept"), asked("free").freed("over a limit"))

    assert [tool.function.strict for tool in found] == [True, True, None]
    any_object = {"type": "object", "properties": {}}
    assert [tool.function.parameters for tool in found] == [SET, any_object, None]
    assert [tool.function.strict for tool in tools] == [None, True, None], "the prompt's stay"
    assert tools[1].function.parameters == invalid


def test_calls_that_are_freed_together_are_made_all_the_same() -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<call>",
            "content": {"type": "json_schema", "json_schema": SET},
            "end": "</call>",
        },
    }
    params = SimpleNamespace(structural_tag=json.dumps(tag), json=None)

    free_calls(params)

    tag["format"]["content"]["json_schema"] = {"type": "object", "properties": {}}  # type: ignore[index]
    assert json.loads(params.structural_tag) == tag


def test_tools_of_the_responses_api_are_known_too() -> None:
    assert resolved([Function("kept")], asked("kept")) == [Function("kept", True)]


def tag(*schemas: object, style: str = "json") -> Spec:
    content = [{"type": "json_schema", "json_schema": each, "style": style} for each in schemas]
    return structural_tag_spec({"format": {"type": "or", "elements": content}}, "")


PLACE = "/format/elements/0/json_schema"


@pytest.mark.parametrize(
    ("spec", "backend", "named"),
    [
        (tag(SET), "llguidance", []),  # named of the tool alone
        (tag(SET), "xgrammar", [Unenforced("/properties/a", "uniqueItems")]),
        (tag(True), "llguidance", [Unenforced("", "parameters")]),
        (Spec(Kind.JSON, '{"type":"array"}'), "llguidance", []),
    ],
)
def test_what_the_whole_leaves_out_is_named_with_its_place_in_the_tools_schema(
    spec: Spec, backend: str, named: list[Unenforced]
) -> None:
    found = Verdict(backend, [Unenforced(f"{PLACE}/properties/a", "uniqueItems")])

    assert left_out([asked("f"), asked("free").freed("over a limit")], spec, found) == named
