"""Shapes of every kind and many dialects that vLLM serves or refuses: what record_shapes.py asks
its validators and backends, and test_structured_gateway.py an engine. Odd ones of
odd_shapes.jsonl, and others drawn with a seed; always the same ones. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

Schema = dict[str, Any]
ODD = Path(__file__).with_name("odd_shapes.jsonl")


class Drawn(NamedTuple):
    kind: str  # of `structured_outputs`
    value: Any

    @property
    def fields(self) -> dict[str, Any]:
        """Of a request."""
        return {"structured_outputs": {self.kind: self.value}}


def drawn_shapes() -> Iterator[Drawn]:
    for line in ODD.read_text().splitlines():
        yield Drawn(**json.loads(line))
    for schema in drawn_schemas(260):
        yield Drawn("json", schema)
    for regex in drawn_regexes(200):
        yield Drawn("regex", regex)
    for grammar in (*drawn_lark(60), *drawn_ebnf(60)):
        yield Drawn("grammar", grammar)


# What only describes, as generators and vendors write it.
_ANNOTATIONS: tuple[Schema, ...] = (
    {"nullable": True},
    {"discriminator": {"propertyName": "kind"}},
    {"json_schema_extra": {"examples": [1]}},
    {"_format": "money", "self": {"vendor": "com.acme", "version": "1-0-0"}},
    {"example": {"type": 5}, "xml": {"wrapped": True}},
    {"x-guidance": {"lenient": True}, "x-order": 3},
    {"enumNames": ["A", "B"], "propertyOrder": 3},
    {"$vendor": {"$ref": "#/nowhere"}, "errorMessage": {"required": "a is missing"}},
    {"title": None, "description": 5, "default": {}},
)
_NAMES = ("id", "name", "kind", "tags", "größe", "a b", "a/b", "$ref", "type", "properties", "x~y")
_PATTERNS = (
    *("^[a-z]+$", r"^\d{3}-\d{4}$", r"\S", "^(a|b)*$", r"^.{1,20}$", r"^[^\s]+@[^\s]+\.[a-z]{2,}$"),
    *(
        r"^\w+([-.]\w+)*$",
        "^v[0-9]+(?:\\.[0-9]+)?$",
        r"^(?i)yes|no$",
        r"^[\x20-\x7e]*$",
        "^$",
        ".*",
    ),
    *(r"^#?([a-f\d]{6}|[a-f\d]{3})$", r"^\u00e4+$", "^[^\\\\]*\\.txt$", r"^\$\{[A-Z_]+\}$"),
)
_FORMATS = (
    *("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"),
    *("int32", "double", "password", "binary", "byte", "color", "regex", "json-pointer", "iri"),
)


def drawn_schemas(count: int) -> Iterator[Schema]:
    draw = Random(422)
    for i in range(count):
        schema = _schema(draw, 3)
        if i % 5 == 0:
            yield {"$defs": {"d": _schema(draw, 1)}, **schema, "properties": {"r": _REF, "s": _REF}}
        else:
            yield schema


_REF = {"$ref": "#/$defs/d"}


def _schema(draw: Random, depth: int) -> Schema:
    schema = draw.choice(_PARTS if depth else _PARTS[:4])(draw, depth)
    if draw.random() < 0.3:
        schema = {**schema, **draw.choice(_ANNOTATIONS)}
    return schema


def _string(draw: Random, _: int) -> Schema:
    words: Schema = {"type": "string"}
    for name, value in (
        ("minLength", draw.randint(0, 3)),
        ("maxLength", draw.randint(3, 40)),
        ("pattern", draw.choice(_PATTERNS)),
        ("format", draw.choice(_FORMATS)),
    ):
        if draw.random() < 0.3:
            words[name] = value
    return words


def _number(draw: Random, _: int) -> Schema:
    words: Schema = {"type": draw.choice(["integer", "number"])}
    for name, value in (
        ("minimum", draw.choice([0, -5, 1.5, -(10**6)])),
        ("maximum", draw.choice([100, 7.25, 10**12])),
        ("exclusiveMinimum", draw.choice([0, -1])),
        ("multipleOf", draw.choice([1, 5, 0.5, 0.01, 3])),
    ):
        if draw.random() < 0.3:
            words[name] = value
    return words


def _listed(draw: Random, _: int) -> Schema:
    values: list[Any] = ["a", "b\n", "", "ü", 1, 1.5, None, True, [1], {"a": 1}]
    return {"enum": draw.sample(values, draw.randint(1, 4))}


def _plain(draw: Random, _: int) -> Schema:
    kinds: list[Any] = ["null", "boolean", ["string", "null"], ["integer", "string"], "object"]
    return draw.choice([{"type": draw.choice(kinds)}, {"const": draw.choice(["x", 3, None])}, {}])


def _object(draw: Random, depth: int) -> Schema:
    names = draw.sample(_NAMES, draw.randint(1, 4))
    words: Schema = {
        "type": "object",
        "properties": {name: _schema(draw, depth - 1) for name in names},
    }
    for name, value in (
        ("required", draw.sample(names, draw.randint(0, len(names)))),
        ("additionalProperties", draw.choice([False, True, _schema(draw, 0)])),
        ("patternProperties", {draw.choice(_PATTERNS): _schema(draw, 0)}),
        ("minProperties", 1),
        ("propertyNames", {"maxLength": 30}),
        ("dependentRequired", {names[0]: [names[-1]]}),
    ):
        if draw.random() < (0.6 if name in ("required", "additionalProperties") else 0.12):
            words[name] = value
    return words


def _array(draw: Random, depth: int) -> Schema:
    words: Schema = {"type": "array"}
    for name, value in (
        ("items", _schema(draw, depth - 1)),
        ("prefixItems", [_schema(draw, depth - 1), _schema(draw, 0)]),
        ("minItems", draw.randint(0, 2)),
        ("maxItems", draw.randint(2, 9)),
        ("uniqueItems", True),
        ("contains", _schema(draw, 0)),
    ):
        if draw.random() < (0.8 if name == "items" else 0.2):
            words[name] = value
    return words


def _combined(draw: Random, depth: int) -> Schema:
    word = draw.choice(["anyOf", "anyOf", "oneOf", "allOf"])
    return {word: [_schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}


def _conditional(draw: Random, depth: int) -> Schema:
    words = {"if": _schema(draw, 0), "then": _schema(draw, depth - 1)}
    return words if draw.random() < 0.5 else {**words, "else": _schema(draw, 0)}


_PARTS: list[Callable[[Random, int], Schema]] = [
    *(_string, _number, _listed, _plain),
    *(_object, _object, _object, _array, _combined, _conditional),
]

_ATOMS = (
    *(
        "a",
        "b",
        "Z",
        "0",
        " ",
        "é",
        "-",
        ",",
        r"\.",
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        r"\D",
        "[a-c]",
        "[^a-c]",
    ),
    *(
        r"[\d\-]",
        r"[\w.]",
        "[A-Z0-9_]",
        ".",
        r"\(",
        r"\/",
        r"\x41",
        r"\u00e9",
        r"\t",
        "[[:digit:]]",
        r"\p{L}",
    ),
    *("ab", "x-y", r"\"", "[ -~]", r"\W", "=", ":", "@", "#", "'", "<", "&", "~", "]", "}"),
)
_QUANTIFIERS = ("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??", "{1,2}?", "{0,4}", "{,3}")
_GROUPS = ("(%s)", "(?:%s)", "(?:%s)", "(?P<n>%s)", "(?i:%s)", "(^%s)", "(%s$)", "(?:%s|)")


def drawn_regexes(count: int) -> Iterator[str]:
    draw = Random(522)
    for _ in range(count):
        text = _regex(draw, 3)
        yield draw.choice(("%s", "%s", "^%s$", "^%s", "%s$", "(?i)%s", "(?s)%s")) % text


def _regex(draw: Random, depth: int) -> str:
    pieces = []
    for _ in range(draw.randint(1, 4)):
        if depth and draw.random() < 0.4:
            piece = draw.choice(_GROUPS) % _regex(draw, depth - 1)
            piece = piece.replace("?P<n>", f"?P<n{draw.randint(0, 10**6)}>")
        else:
            piece = draw.choice(_ATOMS)
        pieces.append(piece + (draw.choice(_QUANTIFIERS) if draw.random() < 0.35 else ""))
    text = "".join(pieces)
    return f"{text}|{draw.choice(_ATOMS)}" if draw.random() < 0.2 else text


def drawn_lark(count: int) -> Iterator[str]:
    draw = Random(622)
    ends = ("*", "+", "?", "~2", "~1..3", "{2}", "{1,3}", "{2,}", "", "", "", "")
    for _ in range(count):
        tokens = ('"a"', '"bc"', "/[a-z]+/", "WORD", "NUM", "item", '"x"i', '"0".."9"', r"/\d{2}/")
        yield "\n".join(
            (
                f"start: {_rule(draw, tokens, ends, 2)}",
                f"item: {_rule(draw, tokens[:5], ends, 1)}",
                f"WORD: {draw.choice(['/[a-z]+/', '(A | B)+', '/[A-Z]/ /[a-z]*/'])}",
                f"NUM: {draw.choice(['/[0-9]+/', '/-?[0-9]/', '(A | /[0-9]/)~2'])}",
                'A: "q"\nB: "r"',
                draw.choice(["", "%ignore / +/", "// end", "%import common.INT"]),
            )
        )


def drawn_ebnf(count: int) -> Iterator[str]:
    draw = Random(722)
    ends = ("*", "+", "?", "{2}", "{1,3}", "{2,}", "", "", "", "")
    for _ in range(count):
        tokens = ('"a"', '"bc"', "[a-z]", "word", "num", '"\\n"', "[^,]", '"ü"', "[0-9]")
        yield "\n".join(
            (
                f"root ::= {_rule(draw, tokens, ends, 2)}",
                f"word ::= {_rule(draw, tokens[:3], ends, 1)}",
                f"num ::= {draw.choice(['[0-9]+', '(word | [0-9])', '[1-9] [0-9]{0,2}'])}",
                draw.choice(["", "# end", 'unused ::= "x"']),
            )
        )


def _rule(draw: Random, tokens: tuple[str, ...], ends: tuple[str, ...], depth: int) -> str:
    pieces = []
    for _ in range(draw.randint(1, 3)):
        is_group = depth and draw.random() < 0.35
        piece = f"({_rule(draw, tokens, ends, depth - 1)})" if is_group else draw.choice(tokens)
        pieces.append(piece + draw.choice(ends))
    text = " ".join(pieces)
    return f"{text} | {draw.choice(tokens)}" if draw.random() < 0.3 else text
