"""Requests that ask for a shape, and whether the answers have it: held against the shape by
libraries that have no part in writing them (re, jsonschema_rs), not by ours."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
from tests.engines import client
from tests.engines.chats import CHAT, user
from tests.engines.engine import MODEL

Fields = dict[str, Any]

PERSON: Fields = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "milk"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
WEATHER: Fields = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 10}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
SUM_LARK = 'start: NUM "+" NUM "=" NUM\nNUM: /[0-9]{1,2}/'
SUM_EBNF = 'root ::= num "+" num "=" num\nnum ::= [0-9] | [0-9] [0-9]'
SUM = r"\d{1,2}\+\d{1,2}=\d{1,2}"
FILE_SEP = 5  # the token <file_sep> of SmolLM2 (steering.py)
CHOICES = ["yes", "no", "ça va"]
COMPACT = {"disable_any_whitespace": True}


@dataclass(frozen=True)
class Shaped:
    """One request and what its answer must be."""

    name: str
    fields: Fields
    holds: Callable[[str], bool]
    max_tokens: int = 150


def schema_form(schema: object, **more: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "shape", "schema": schema, **more}}


def is_json_of(schema: Fields) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        return jsonschema_rs.is_valid(schema, json.loads(text))

    return holds


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


KINDS = [
    Shaped("json_schema", {"response_format": schema_form(PERSON)}, is_json_of(PERSON)),
    Shaped("json", {"structured_outputs": {"json": PERSON, **COMPACT}}, is_json_of(PERSON)),
    Shaped(
        "json_object",
        {"structured_outputs": {"json_object": True, **COMPACT}},
        lambda text: isinstance(json.loads(text), dict),
        400,
    ),
    Shaped("regex", {"structured_outputs": {"regex": DATE}}, matches(DATE)),
    Shaped("choice", {"structured_outputs": {"choice": CHOICES}}, CHOICES.__contains__),
    Shaped("lark", {"structured_outputs": {"grammar": SUM_LARK}}, matches(SUM)),
    Shaped("ebnf", {"structured_outputs": {"grammar": SUM_EBNF}}, matches(SUM)),
]


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [user(text)], "temperature": 0, "max_tokens": 150, **fields}


def body_of(shaped: Shaped, text: str, **fields: object) -> dict[str, object]:
    return chat(text, max_tokens=shaped.max_tokens, **shaped.fields, **fields)


def said(answer: client.Answer) -> str:
    """The first choice's text. Fails with the answer where there is none."""
    assert answer.status == 200, answer.raw[:500]
    text = answer.json["choices"][0]["message"]["content"]
    assert isinstance(text, str), answer.raw[:500]
    return text


def streamed(url: str, body: Mapping[str, object]) -> Iterator[str]:
    """The lines of a stream that hold something, as they come."""
    with client.open_stream(url + CHAT, {**body, "stream": True}) as stream:
        for line in stream:
            if line.strip():
                yield line.decode().strip()


def text_of(lines: list[str]) -> str:
    """What a stream's lines say."""
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def tool(name: str, parameters: Fields, **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def called(name: str) -> Fields:
    """A `tool_choice`."""
    return {"type": "function", "function": {"name": name}}


def call_of(answer: client.Answer, stream: bool) -> tuple[str, str]:
    """The name and the arguments of the first call."""
    assert answer.status == 200, answer.raw[:500]
    if not stream:
        function = answer.json["choices"][0]["message"]["tool_calls"][0]["function"]
        return function["name"], function["arguments"]
    lines = answer.raw.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    calls = [call for call in calls if call]
    return "".join(call.get("name") or "" for call in calls), "".join(
        call.get("arguments") or "" for call in calls
    )
