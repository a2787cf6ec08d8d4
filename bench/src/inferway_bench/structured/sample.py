"""A file of schemas and instances -> token ids, as every system gets them.

A line is `{"id", "schema", "tests": [{"valid", "data"}]}`: JSONSchemaBench's, as MaskBench has it.
Libraries that make an object property by property, in the order in which the schema lists them,
refuse the same object written in another order. That says nothing about what they would let a model
write; so every instance is judged both as it came and in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from inferway_bench.data_files import unpacked
from inferway_bench.processes import BenchError
from inferway_structured.backends.schemas.nodes import Document, Node
from inferway_structured.backends.schemas.shapes import takes

_DEPTH = 12  # of references that are followed


class Instance(msgspec.Struct, frozen=True):
    """One document, in tokens."""

    valid: bool
    tokens: list[int]
    ordered: list[int] | None  # in schema order, where that is another text
    text: str


class Case(msgspec.Struct, frozen=True):
    """One schema, and what it is judged by."""

    id: str
    schema: str
    instances: list[Instance]


def read(
    path: Path,
    tokenize: Callable[[str], list[int]],
    max_tokens: int,
    max_schemas: int | None = None,
) -> list[Case]:
    """Return the schemas of a file, without instances of more than `max_tokens`. Raises BenchError
    where the file is not of that form."""
    try:
        lines = [json.loads(line) for line in unpacked(path).splitlines() if line.strip()]
        return [_case(line, tokenize, max_tokens) for line in lines[:max_schemas]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: not lines of schemas and tests: {error!r}") from error


def _case(line: Any, tokenize: Callable[[str], list[int]], max_tokens: int) -> Case:
    instances = []
    for test in line["tests"]:
        text = json.dumps(test["data"])
        other = json.dumps(in_schema_order(line["schema"], test["data"]))
        tokens = tokenize(text)
        if len(tokens) <= max_tokens:
            ordered = None if other == text else tokenize(other)
            instances.append(Instance(bool(test["valid"]), tokens, ordered, text))
    return Case(line["id"], json.dumps(line["schema"]), instances)


def in_schema_order(schema: Any, value: Any) -> Any:
    """Return the value with its properties in the order in which the schema lists them."""
    return _ordered([Document(schema).root], value)


def _ordered(nodes: list[Node], value: Any) -> Any:
    if isinstance(value, list):
        return [_ordered(list(_items(nodes, at, value)), one) for at, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    inner: dict[str, list[Node]] = {}
    extra: list[Node] = []
    for node in _parts(nodes, value):
        keywords = node.keywords
        for name, one in keywords.get("properties", {}).items():
            inner.setdefault(name, []).append(one)
        extra += keywords.get("patternProperties", {}).values()
        if "additionalProperties" in keywords:
            extra.append(keywords["additionalProperties"])
    required = [n for node in _parts(nodes, value) for n in node.keywords.get("required", ())]
    names = [name for name in dict.fromkeys([*inner, *required]) if name in value]
    names += [name for name in value if name not in names]
    return {name: _ordered([*inner.get(name, ()), *extra], value[name]) for name in names}


def _items(nodes: list[Node], at: int, value: Any) -> Iterator[Node]:
    for node in _parts(nodes, value):
        prefix = node.keywords.get("prefixItems", ())
        if at < len(prefix):
            yield prefix[at]
        elif "items" in node.keywords:
            yield node.keywords["items"]


def _parts(nodes: list[Node], value: Any, depth: int = _DEPTH) -> Iterator[Node]:
    """The schemas that speak of this value, in the order written: of alternatives, those that do
    not refuse it."""
    for node in nodes if depth else ():
        for word, rule in [*node.keywords.items()]:
            if word in ("$ref", "then", "else"):
                yield from _parts([rule], value, depth - 1)
            elif word == "allOf":
                yield from _parts(rule, value, depth - 1)
            elif word in ("anyOf", "oneOf"):
                left = [branch for branch in rule if takes(branch, value) is not False]
                yield from _parts(left, value, depth - 1)
            elif word in ("properties", "patternProperties", "additionalProperties"):
                yield _Only(node, word)
        yield _Only(node, "required", "items", "prefixItems")


class _Only(Node):
    """A node of which some keywords are looked at."""

    def __init__(self, node: Node, *words: str) -> None:
        super().__init__(node.document, node.raw, node.place)
        self.__dict__["keywords"] = {
            word: rule for word, rule in node.keywords.items() if word in words
        }
