"""A file of schemas and instances -> token ids, as every system gets them.

A line is `{"id", "schema", "tests": [{"valid", "data"}]}`: JSONSchemaBench's, as MaskBench has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from inferway_bench.packed import unpacked
from inferway_bench.processes import BenchError
from inferway_bench.structured.ordering import in_schema_order


class Instance(msgspec.Struct, frozen=True):
    valid: bool
    tokens: list[int]
    ordered: list[int] | None  # in schema order, where that is another text
    text: str


class Case(msgspec.Struct, frozen=True):
    id: str
    schema: str
    instances: list[Instance]


def read(
    path: Path,
    tokenize: Callable[[str], list[int]],
    max_tokens: int,
    max_schemas: int | None = None,
) -> list[Case]:
    """Raises BenchError where the file is not of that form."""
    try:
        lines = list(_lines(path))
        return [_case(line, tokenize, max_tokens) for line in lines[:max_schemas]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{path}: not lines of schemas and tests: {error!r}") from error


def _lines(path: Path) -> Iterator[Any]:
    yield from map(json.loads, filter(bytes.strip, unpacked(path).splitlines()))


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
