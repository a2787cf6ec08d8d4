"""Every way to ask, as vLLM 0.32 takes it, and what it comes to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway_structured.errors import SpecError
from inferway_structured.requests import FIELDS, GUIDED, OPTIONAL_FIELDS, parse_constraints
from inferway_structured.spec import Kind, Options, OutputConstraint, Spec

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS, GENERATE = "/v1/completions", "/inference/v1/generate"
SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"minimum": 1}}}
TEXT = '{"type":"object","properties":{"b":{"type":"string"},"a":{"minimum":1}}}'
TAG = {
    "structures": [{"begin": "<f=x>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f="],
}
TAG_TEXT = (
    '{"type":"structural_tag","structures":[{"begin":"<f=x>","schema":'
    + TEXT
    + ',"end":"</f>"}],"triggers":["<f="]}'
)


def tool(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA, **more}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def format_of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def ignored(spec: Spec, place: str) -> OutputConstraint:
    return OutputConstraint(spec, place, ignored=True)


JSON_SPEC = Spec(Kind.JSON, TEXT)
IN_FORMAT = "response_format/json_schema/schema"
IN_TOOL = "tools/0/function/parameters"

FORMS: list[tuple[str, str, dict[str, Any], list[OutputConstraint]]] = [
    (
        "response_format json_schema",
        CHAT,
        {"response_format": format_of(SCHEMA)},
        [OutputConstraint(JSON_SPEC, IN_FORMAT)],
    ),
    (
        "response_format json_schema, strict",
        CHAT,
        {"response_format": format_of(SCHEMA, strict=True)},
        [OutputConstraint(JSON_SPEC, IN_FORMAT, strict=True)],
    ),
    (
        "response_format json_object",
        COMPLETIONS,
        {"response_format": {"type": "json_object"}},
        [OutputConstraint(Spec(Kind.JSON_OBJECT, ""), "response_format")],
    ),
    ("response_format text", CHAT, {"response_format": {"type": "text"}}, []),
    (
        "response_format structural_tag, old form",
        CHAT,
        {"response_format": {**TAG, "type": "structural_tag"}},
        [OutputConstraint(Spec(Kind.STRUCTURAL_TAG, TAG_TEXT), "response_format")],
    ),
    (
        "response_format structural_tag, new form",
        CHAT,
        {"response_format": {"format": {"type": "any_text"}, "type": "structural_tag"}},
        [
            OutputConstraint(
                Spec(
                    Kind.STRUCTURAL_TAG,
                    '{"type":"structural_tag","format":{"type":"any_text"}}',
                ),
                "response_format",
            )
        ],
    ),
    (
        "structured_outputs json",
        COMPLETIONS,
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
        [OutputConstraint(JSON_SPEC, "structured_outputs/json")],
    ),
    (
        "structured_outputs json as text, with blanks",
        CHAT,
        {"structured_outputs": {"json": json.dumps(SCHEMA, indent=2)}},
        [OutputConstraint(JSON_SPEC, "structured_outputs/json")],
    ),
    (
        "structured_outputs json with its options",
        CHAT,
        {
            "structured_outputs": {
                "json": SCHEMA,
                "disable_any_whitespace": True,
                "disable_additional_properties": True,
                "whitespace_pattern": " ?",
            }
        },
        [
            OutputConstraint(
                Spec(Kind.JSON, TEXT, Options(False, False, " ?")),
                "structured_outputs/json",
            )
        ],
    ),
    (
        "structured_outputs regex; options say nothing about it",
        CHAT,
        {"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}},
        [OutputConstraint(Spec(Kind.REGEX, "a+"), "structured_outputs/regex")],
    ),
    (
        "structured_outputs choice; twice is once",
        CHAT,
        {"structured_outputs": {"choice": ["ja", "nein", "ja"]}},
        [OutputConstraint(Spec(Kind.CHOICE, '["ja","nein"]'), "structured_outputs/choice")],
    ),
    (
        "structured_outputs grammar",
        CHAT,
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        [OutputConstraint(Spec(Kind.GRAMMAR, 'root ::= "a"'), "structured_outputs/grammar")],
    ),
    (
        "structured_outputs json_object",
        CHAT,
        {"structured_outputs": {"json_object": True}},
        [OutputConstraint(Spec(Kind.JSON_OBJECT, ""), "structured_outputs/json_object")],
    ),
    (
        "structured_outputs structural_tag, text",
        CHAT,
        {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
        [
            OutputConstraint(
                Spec(Kind.STRUCTURAL_TAG, TAG_TEXT), "structured_outputs/structural_tag"
            )
        ],
    ),
    (
        "response_format before structured_outputs of its kind, whose options stay",
        CHAT,
        {
            "response_format": format_of(SCHEMA),
            "structured_outputs": {"json": {}, "disable_any_whitespace": True},
        },
        [OutputConstraint(Spec(Kind.JSON, TEXT, Options(any_whitespace=False)), IN_FORMAT)],
    ),
    ("guided_json", CHAT, {"guided_json": SCHEMA}, [ignored(JSON_SPEC, "guided_json")]),
    (
        "guided_json as text, with whitespace",
        COMPLETIONS,
        {"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": "[ ]?"},
        [ignored(Spec(Kind.JSON, TEXT, Options(whitespace_pattern="[ ]?")), "guided_json")],
    ),
    (
        "guided_regex",
        CHAT,
        {"guided_regex": "a"},
        [ignored(Spec(Kind.REGEX, "a"), "guided_regex")],
    ),
    (
        "guided_choice",
        CHAT,
        {"guided_choice": ["a"]},
        [ignored(Spec(Kind.CHOICE, '["a"]'), "guided_choice")],
    ),
    (
        "guided_grammar",
        CHAT,
        {"guided_grammar": "start: A"},
        [ignored(Spec(Kind.GRAMMAR, "start: A"), "guided_grammar")],
    ),
    (
        "guided_json_object",
        CHAT,
        {"guided_json_object": True, "guided_json": None},
        [ignored(Spec(Kind.JSON_OBJECT, ""), "guided_json_object")],
    ),
    (
        "tool_choice required",
        CHAT,
        {"tools": [tool(), tool("g", strict=True)], "tool_choice": "required"},
        [
            OutputConstraint(JSON_SPEC, IN_TOOL, False, "f"),
            OutputConstraint(JSON_SPEC, "tools/1/function/parameters", True, "g"),
        ],
    ),
    (
        "tool_choice named; the answer's own shape does not count then",
        CHAT,
        {
            "tools": [tool("other"), tool()],
            "tool_choice": named("f"),
            "response_format": {"type": "json_object"},
        },
        [OutputConstraint(JSON_SPEC, "tools/1/function/parameters", False, "f")],
    ),
    ("tools that may be called, not strict", CHAT, {"tools": [tool()]}, []),
    (
        "tools that may be called, one of them strict",
        CHAT,
        {"tools": [tool("g"), tool(strict=True)], "tool_choice": "auto"},
        [OutputConstraint(JSON_SPEC, "tools/1/function/parameters", True, "f")],
    ),
    (
        "tools that may be called beside a shape for the text",
        CHAT,
        {"tools": [tool(strict=True)], "response_format": {"type": "json_object"}},
        [
            OutputConstraint(Spec(Kind.JSON_OBJECT, ""), "response_format"),
            OutputConstraint(JSON_SPEC, IN_TOOL, True, "f"),
        ],
    ),
    (
        "tools that may not be called",
        CHAT,
        {"tools": [tool(strict=True)], "tool_choice": "none"},
        [],
    ),
    (
        "a tool without parameters takes any object",
        CHAT,
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
        [
            OutputConstraint(
                Spec(Kind.JSON, '{"type":"object","properties":{}}'), IN_TOOL, False, "f"
            )
        ],
    ),
    (
        "responses text.format",
        RESPONSES,
        {
            "text": {
                "format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
            }
        },
        [OutputConstraint(JSON_SPEC, "text/format/schema", True)],
    ),
    (
        "responses text.format json_object",
        RESPONSES,
        {"text": {"format": {"type": "json_object"}}},
        [OutputConstraint(Spec(Kind.JSON_OBJECT, ""), "text/format")],
    ),
    (
        "responses structured_outputs",
        RESPONSES,
        {"structured_outputs": {"regex": "a"}, "text": {"verbosity": "low"}},
        [OutputConstraint(Spec(Kind.REGEX, "a"), "structured_outputs/regex")],
    ),
    (
        "responses tools, required",
        RESPONSES,
        {
            "tools": [
                {"type": "function", "name": "f", "parameters": SCHEMA},
                {"type": "web_search"},
            ],
            "tool_choice": "required",
        },
        [OutputConstraint(JSON_SPEC, "tools/0/parameters", False, "f")],
    ),
    (
        "responses tools, named by its short name in a namespace",
        RESPONSES,
        {
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "description": "several",
                    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
                }
            ],
            "tool_choice": {"type": "function", "name": "f"},
        },
        [OutputConstraint(JSON_SPEC, "tools/0/tools/0/parameters", False, "n__f")],
    ),
    (
        "responses tools, allowed and strict",
        RESPONSES,
        {
            "tools": [
                {"type": "function", "name": n, "parameters": SCHEMA, "strict": True} for n in "fg"
            ],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "g"}],
            },
        },
        [OutputConstraint(JSON_SPEC, "tools/1/parameters", True, "g")],
    ),
    (
        "messages, any tool",
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}},
        [OutputConstraint(JSON_SPEC, "tools/0/input_schema", False, "f")],
    ),
    (
        "messages, a tool; a schema without a type is an object's",
        MESSAGES,
        {
            "tools": [{"name": "f", "input_schema": {"required": ["a"]}}],
            "tool_choice": {"type": "tool", "name": "f"},
        },
        [
            OutputConstraint(
                Spec(Kind.JSON, '{"required":["a"],"type":"object"}'),
                "tools/0/input_schema",
                False,
                "f",
            )
        ],
    ),
    (
        "messages, strict tool",
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}]},
        [OutputConstraint(JSON_SPEC, "tools/0/input_schema", True, "f")],
    ),
    (
        "messages, output format",
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        [OutputConstraint(JSON_SPEC, "output_config/format/schema")],
    ),
    (
        "generate",
        GENERATE,
        {"sampling_params": {"structured_outputs": {"json": SCHEMA}}},
        [OutputConstraint(JSON_SPEC, "sampling_params/structured_outputs/json")],
    ),
]


@pytest.mark.parametrize(
    ("path", "fields", "expected"), [form[1:] for form in FORMS], ids=[form[0] for form in FORMS]
)
def test_what_a_request_asks_for(
    path: str, fields: dict[str, Any], expected: list[OutputConstraint]
) -> None:
    assert parse_constraints(path, {"model": "m", "messages": [], **fields}) == expected


def test_nothing_else_in_a_body_asks_for_a_shape() -> None:
    read = {name for form in FORMS for name in form[2]}

    assert read <= FIELDS | OPTIONAL_FIELDS
    assert (
        parse_constraints(CHAT, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        == []
    )


@pytest.mark.parametrize("path", [f"/team-a{CHAT}", f"{CHAT}/", f"{CHAT}?beta=true"])
def test_a_path_may_have_a_prefix_a_slash_or_a_query(path: str) -> None:
    assert parse_constraints(path, {"response_format": {"type": "json_object"}})


def test_other_paths_ask_for_nothing() -> None:
    assert parse_constraints("/v1/embeddings", {"response_format": {"type": "json_object"}}) == []


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"response_format": "json"}, "response_format"),
    (CHAT, {"response_format": {"type": "yaml"}}, "response_format/type"),
    (CHAT, {"response_format": {}}, "response_format/type"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format/json_schema"),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, IN_FORMAT),
    (CHAT, {"response_format": format_of([])}, IN_FORMAT),
    (
        CHAT,
        {"response_format": format_of({}, strict="maybe")},
        "response_format/json_schema/strict",
    ),
    (CHAT, {"response_format": {"type": "structural_tag"}}, "response_format"),
    (
        CHAT,
        {"response_format": {"type": "structural_tag", **TAG, "triggers": ["<g"]}},
        "response_format/structures/0/begin",
    ),
    (CHAT, {"structured_outputs": {}}, "structured_outputs"),
    (CHAT, {"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    (CHAT, {"structured_outputs": {"json": 1}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": "{"}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": "3"}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": '{"a":NaN}'}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": '{"a":1e999}'}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": '{"a":' + "9" * 5000 + "}"}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": '{"a":"\\ud800"}'}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"json": "[" * 9000}}, "structured_outputs/json"),
    (CHAT, {"structured_outputs": {"regex": 1}}, "structured_outputs/regex"),
    (CHAT, {"structured_outputs": {"regex": "\ud800"}}, "structured_outputs/regex"),
    (CHAT, {"structured_outputs": {"choice": []}}, "structured_outputs/choice"),
    (CHAT, {"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs/choice/1"),
    (CHAT, {"structured_outputs": {"choice": "a"}}, "structured_outputs/choice"),
    (CHAT, {"structured_outputs": {"grammar": " "}}, "structured_outputs/grammar"),
    (CHAT, {"structured_outputs": {"json_object": False}}, "structured_outputs/json_object"),
    (
        CHAT,
        {"structured_outputs": {"json": {}, "disable_any_whitespace": 2}},
        "structured_outputs/disable_any_whitespace",
    ),
    (
        CHAT,
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "structured_outputs/regex",
    ),
    (CHAT, {"tools": {}, "tool_choice": "required", "x": 1} | {"tools": {"a": 1}}, "tools"),
    (CHAT, {"tools": [1], "tool_choice": "required"}, "tools/0"),
    (CHAT, {"tools": [{}], "tool_choice": "required"}, "tools/0/function"),
    (CHAT, {"tools": [tool(parameters=3)], "tool_choice": "required"}, IN_TOOL),
    (CHAT, {"tools": [tool(strict=2)]}, "tools/0/function/strict"),
    (CHAT, {"tools": [tool()], "tool_choice": named("g")}, "tool_choice"),
    (CHAT, {"tools": [tool()], "tool_choice": 5}, "tool_choice"),
    (CHAT, {"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice/function/name"),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text/format/type"),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}},
        "structured_outputs",
    ),
    (MESSAGES, {"tools": [{"name": "f"}], "tool_choice": {"type": "x"}}, "tool_choice/type"),
    (GENERATE, {"sampling_params": []}, "sampling_params"),
]


@pytest.mark.parametrize(("path", "fields", "param"), WRONG)
def test_a_shape_that_cannot_be_read_is_refused_with_its_place(
    path: str, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(SpecError) as refused:
        parse_constraints(path, fields)

    assert refused.value.param == param
    assert str(refused.value)[0].islower()
    assert not str(refused.value).endswith(".")


FORM = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", f"{CHAT}/batch", RESPONSES])
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"guided_regex": 1}, "guided_regex: expected a string"),
        ({"guided_json": "{"}, "guided_json: not valid JSON"),
        ({"guided_json": {"const": float("nan")}}, "guided_json: holds a number out of range"),
        ({"guided_choice": []}, "guided_choice: an empty array"),
        ({"structural_tag": "\ud800"}, "structural_tag: not valid JSON"),
        (
            {"guided_json": {}, "guided_whitespace_pattern": 1},
            "guided_whitespace_pattern: expected",
        ),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "only one can be kept"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "regex is kept instead"),
    ],
)
def test_what_vllm_ignores_is_left_free_where_it_cannot_be_kept(
    path: str, fields: dict[str, Any], why: str
) -> None:
    found = parse_constraints(path, fields)
    free = [each for each in found if each.ignored]

    assert [each.place for each in free] == [name for name in GUIDED if name in fields]
    assert all(why in each.free for each in free)
    assert [each.place for each in found if not each.ignored] == [
        f"{name}/regex" for name in fields if name == "structured_outputs"
    ]


def test_a_response_format_is_kept_and_what_vllm_ignores_beside_it_is_not() -> None:
    kept, free = parse_constraints(CHAT, {"guided_regex": "a", **FORM})

    assert (kept.place, kept.free) == ("response_format", "")
    assert (free.place, free.free) == (
        "guided_regex",
        "guided_regex: response_format is kept instead",
    )


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        (FORM, ["response_format"]),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, [IN_FORMAT]),
        ({"structured_outputs": {"regex": "a"}, "guided_json": {}}, ["structured_outputs/regex"]),
        ({"tools": [tool(strict=True)]}, [IN_TOOL]),
    ],
)
def test_beam_search_keeps_no_shape(fields: dict[str, Any], places: list[str]) -> None:
    found = parse_constraints(CHAT, {**fields, "use_beam_search": "yes"})

    assert [each.place for each in found][: len(places)] == places
    assert all(each.free and each.ignored for each in found)


def test_beam_search_is_none_where_vllm_has_no_such_field() -> None:
    (kept,) = parse_constraints(
        RESPONSES, {"structured_outputs": {"regex": "a"}, "use_beam_search": True}
    )

    assert not kept.free


def free_in(tools: list[dict[str, Any]]) -> list[bool]:
    return [
        bool(each.free)
        for each in parse_constraints(CHAT, {"tools": tools, "tool_choice": "required"})
    ]


def test_the_schemas_of_tools_are_kept_up_to_a_bound_of_all_together() -> None:
    big = {"const": "x" * 60_000}

    assert free_in([tool(f"f{i}", parameters=big) for i in range(5)]) == [False] * 3 + [True] * 2
    assert sum(map(free_in([tool(f"f{i}") for i in range(3_000)]).count, [False])) == 1024


def test_a_schema_that_is_none_is_refused_of_a_strict_tool_alone() -> None:
    bad = {"type": "number", "minimum": float("inf")}

    assert free_in([tool(parameters=bad)]) == [True]
    with pytest.raises(SpecError, match="tools/0"):
        free_in([tool(parameters=bad, strict=True)])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ANY_FIELD = st.sampled_from(sorted(FIELDS | OPTIONAL_FIELDS))
NESTED = st.dictionaries(
    st.sampled_from(
        [
            *("type", "json_schema", "schema", "strict", "json", "regex", "choice", "grammar"),
            *("format", "structures", "triggers", "function", "name", "parameters", "tools"),
        ]
    ),
    JSON
    | st.sampled_from(["json_schema", "json_object", "structural_tag", "function", "required"]),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    path=st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE]),
    fields=st.dictionaries(ANY_FIELD, JSON | NESTED | st.lists(NESTED)),
)
def test_whatever_a_body_holds_it_is_read_or_refused(path: str, fields: dict[str, Any]) -> None:
    refused: SpecError | None = None
    found: list[OutputConstraint] = []
    try:
        found = parse_constraints(path, fields)
    except SpecError as e:
        refused = e

    assert refused is None or refused.param
    assert all(one.place and one.spec.text.encode() is not None for one in found)
