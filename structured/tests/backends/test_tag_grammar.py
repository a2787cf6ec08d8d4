"""Structural tags of xgrammar's form, and each text held against what xgrammar would take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structured.tests.compiling import smollm2

from inferway_structured.backends.cascade import Cascade, light_verdict, verdict
from inferway_structured.errors import HeavyError
from inferway_structured.grammar import Unenforced
from inferway_structured.spec import Kind, Spec

CASCADE = Cascade(smollm2())
START, END = (CASCADE.vocabulary.special_tokens[token] for token in ("<|im_start|>", "<file_sep>"))

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
TEXT = {"type": "any_text"}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def tag(begin: str, content: Any, end: str | list[str]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def tags(kind: str, *inner: Any, **more: Any) -> dict[str, Any]:
    return {"type": kind, "tags": list(inner), **more}


def repeated(kind: str, content: Any) -> dict[str, Any]:
    return {"type": kind, "content": content}


A, B = tag("<a>", NUMBER, "</a>"), tag("<ab>", NUMBER, ["</ab>", "."])
CALLS = {"triggers": ["<a>", "<ab>"], "excludes": ["<x>"]}


def spec(form: Any) -> Spec:
    return Spec(Kind.STRUCTURAL_TAG, json.dumps({"type": "structural_tag", "format": form}))


def takes(form: Any, *text: str | int) -> bool:
    """`text`: words, and tokens by their ids."""
    words = CASCADE.vocabulary.ll_tokenizer.tokenize_str
    tokens = [id for part in text for id in ([part] if isinstance(part, int) else words(part))]
    return CASCADE.compile(spec(form)).start().validate([*tokens, 2]) == len(tokens) + 1


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (const("yes"), ["yes"], ["no", "ye", "yes!"]),
        (NUMBER, ["12"], ["x", "1.5"]),
        ({"type": "regex", "pattern": r"a/\d+"}, ["a/12"], ["a/", "b/1"]),
        ({"type": "sequence", "elements": [const("n: "), NUMBER]}, ["n: 1"], ["n: ", "1"]),
        ({"type": "or", "elements": [const("a"), NUMBER]}, ["a", "7"], ["b", "a7"]),
        (repeated("optional", const("a")), ["", "a"], ["aa"]),
        (repeated("plus", const("a")), ["a", "aaa"], ["", "b"]),
        (repeated("star", const("a")), ["", "aaa"], ["b"]),
        (TEXT, ["", "any <a> text\n"], []),
        ({**TEXT, "excludes": ["<x>"]}, ["<", "x>"], ["so <x> "]),
        (tag("<t>", TEXT, "</t>"), ["<t></t>", "<t>a</b></t>"], ["<t>", "<t></t>x"]),
        (tag("<t>", {**TEXT, "excludes": ["<x>"]}, "</t>"), ["<t>y</t>"], ["<t><x></t>"]),
        (tag("", TEXT, ["!", ""]), ["a!", "a"], ["a!b"]),
        (
            {"type": "sequence", "elements": [TEXT, const("</v>"), NUMBER]},
            ["so</v>1", "</v>2"],
            ["so", "so</v>x"],
        ),
        (B, ["<ab>1</ab>", "<ab>1."], ["<ab>1", "<ab>x."]),
        (
            tags("tags_with_separator", A, B, separator=", "),
            ["", "<a>1</a>, <ab>2."],
            ["<a>1</a>,"],
        ),
        (
            tags("tags_with_separator", A, separator="", at_least_one=True),
            ["<a>1</a>", "<a>1</a><a>2</a>"],
            ["", "x<a>1</a>"],
        ),
        (
            tags("tags_with_separator", A, separator="", at_least_one=True, stop_after_first=True),
            ["<a>1</a>"],
            ["", "<a>1</a><a>2</a>"],
        ),
        (
            tags("triggered_tags", A, B, **CALLS),
            ["", "so <a>1</a> and <ab>2.", "<"],
            ["<a>x</a>", "<a>1", "<x>"],
        ),
        (
            tags("triggered_tags", A, at_least_one=True, **CALLS),
            ["<a>1</a>", "<a>1</a> and <a>2</a>."],
            ["", "so <a>1</a>"],
        ),
        (
            tags("triggered_tags", A, stop_after_first=True, **CALLS),
            ["", "so", "so <a>1</a>"],
            ["<a>1</a>.", "<a>1</a><a>1</a>"],
        ),
        (
            tags("triggered_tags", A, at_least_one=True, stop_after_first=True, **CALLS),
            ["<a>1</a>"],
            ["", "so <a>1</a>", "<a>1</a>."],
        ),
        (
            tag("<t>", tags("triggered_tags", A, **CALLS), "</t>"),
            ["<t>so <a>1</a></t>", "<t></t>"],
            ["<t><a>x</a></t>", "<t>so"],
        ),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else "",
)
def test_a_text_is_taken_as_xgrammar_takes_it(form: Any, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not takes(form, text)] == []
    assert [text for text in bad if takes(form, text)] == []


def test_words_that_are_special_tokens_are_those() -> None:
    call = tag("<|im_start|>n", NUMBER, "<file_sep>")
    calls = tags("triggered_tags", call, triggers=["<|im_start|>"])

    for form, before in ((call, ""), (calls, "so ")):
        assert takes(form, before, START, "n", "1", END)
        assert not takes(form, before, START, "n", "x", END)
        assert not takes(form, before, "<|", "im_start|>n1")
    assert takes({"type": "regex", "pattern": r"[a-z]*<\|im_start\|>"}, "so", START)


def test_a_call_keeps_what_a_response_format_keeps() -> None:
    schema = {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
            "step": {"type": "integer", "multipleOf": 5},
        },
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
        "if": {"properties": {"step": {"const": 5}}, "required": ["step"]},
        "then": {"required": ["code"]},
    }
    call = tag("<a>", {"type": "json_schema", "json_schema": schema}, "</a>")

    def called(**arguments: object) -> bool:
        return takes(tags("triggered_tags", call, **CALLS), f"<a>{json.dumps(arguments)}</a>")

    assert list(verdict(spec(call)).unenforced) == []
    assert called(day="2026-11-23", code="abc", step=5)
    assert called(step=10, **{"x-1": 1})
    for bad in ({"day": "today"}, {"code": "abcd"}, {"step": 7}, {"step": 5}, {"y": 1}):
        assert not called(**bad), bad


CALL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "description": "Any text."},
        "b": {"type": "integer", "multipleOf": 5},
        "c": {"enum": ["x", 3]},
        "d": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
    },
    "required": ["a", "b"],
}


def xml(style: str, schema: Any) -> dict[str, Any]:
    inner = {"type": "json_schema", "json_schema": schema, "style": style}
    return tag("<f>\n", inner, "\n</f>")


def qwen(**values: str) -> str:
    return "".join(f"<parameter={name}>{value}</parameter>" for name, value in values.items())


def test_arguments_in_xml_have_the_shape_of_the_schema() -> None:
    def called(text: str, schema: Any = CALL) -> bool:
        return takes(xml("qwen_xml", schema), f"<f>\n{text}\n</f>")

    closed = {**CALL, "additionalProperties": False}
    assert called(qwen(a="\nany\n<text>\n", b="\n10\n", c="x", d='["t"]'))
    assert called(qwen(a="", b="5", c="3", d="null", more="any"))
    assert called(qwen(anything="goes"), True)
    assert called("", True)
    for bad in ({"a": ""}, {"a": "", "b": "7"}, {"b": "5", "a": ""}):
        assert not called(qwen(**bad)), bad
    assert not called(qwen(a="", b="5", c="y"))
    assert not called(qwen(a="", b="5", d="[1]"))
    assert not called(qwen(a="", b="5", more="any"), closed)
    assert not called(qwen(a="", b="5", c="y"), closed)


def test_each_style_of_xml_has_its_words() -> None:
    schema = {**CALL, "required": ["b"], "additionalProperties": False}
    for style, good in {
        "minimax_xml": '<parameter name="b">5</parameter>',
        "glm_xml": "<arg_key>b</arg_key><arg_value>5</arg_value>",
        "deepseek_xml": '<｜DSML｜parameter name="b" string="false">5</｜DSML｜parameter>',
        "deepseek_v4_1_xml": '<｜DSML｜ parameter name="b" string="false">5</｜DSML｜ parameter>',
    }.items():
        assert takes(xml(style, schema), f"<f>\n{good}\n</f>"), style
        assert not takes(xml(style, schema), f"<f>\n{good.replace('5', '6')}\n</f>"), style


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {"a": {"enum": ["x"], "minLength": 3}}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "minProperties": 2},
    ],
)
def test_other_arguments_in_xml_are_xgrammars(schema: Any) -> None:
    assert verdict(spec(xml("qwen_xml", schema))).backend == "xgrammar"


def test_what_is_not_kept_is_named_at_each_of_its_places() -> None:
    schema = {"type": "object", "properties": {"t": {"type": "array", "uniqueItems": True}}}
    inner = {"type": "json_schema", "json_schema": schema}

    found = verdict(
        spec({"type": "or", "elements": [tag("<a>", inner, ""), tag("<b>", inner, "")]})
    )

    places = [f"/format/elements/{i}/content/json_schema/properties/t" for i in range(2)]
    assert list(found.unenforced) == [Unenforced(place, "uniqueItems") for place in places]


def test_calls_of_ordinary_tools_are_light_and_what_only_xgrammar_reads_is_not() -> None:
    calls = tags("tags_with_separator", A, {**A, "begin": "<b>"}, separator="")

    assert light_verdict(spec(calls)).backend == "llguidance"
    for heavy in ({"type": "regex", "pattern": "(a{1,50}){1,50}"}, {"type": "any_tokens"}):
        with pytest.raises(HeavyError):
            light_verdict(spec({"type": "sequence", "elements": [calls, heavy]}))
