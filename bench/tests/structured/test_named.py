from __future__ import annotations

import json
from typing import Any

import pytest

from inferway_bench.structured.benchmark import is_named

SET = {"type": "array", "uniqueItems": True, "maxItems": 3}


@pytest.mark.parametrize(
    ("schema", "instance", "named", "wanted"),
    [
        (SET, [1, 1], [("", "uniqueItems")], True),
        (SET, [1, 1], [("", "maxItems")], False),
        (SET, [1, 1, 1, 1], [("", "uniqueItems")], False),
        (SET, [1, 1], [("/items", "uniqueItems")], False),
        ({"properties": {"a": SET}}, {"a": [1, 1]}, [("/properties/a", "uniqueItems")], True),
        (
            {"properties": {"a": {"$ref": "#/$defs/s"}}, "$defs": {"s": SET}},
            {"a": [1, 1]},
            [("/$defs/s", "uniqueItems")],
            True,
        ),
        ({"anyOf": [SET, {"type": "null"}]}, [1, 1], [("/anyOf/0", "uniqueItems")], True),
        ({"anyOf": [SET, {"type": "null"}]}, "x", [("/anyOf/0", "uniqueItems")], False),
        ({"contains": {"const": 1}, "minContains": 2}, [1], [("", "contains")], True),
        (SET, [1], [("", "uniqueItems")], False),
        ({"type": 1}, [1], [("", "type")], False),
    ],
)
def test_only_the_keyword_that_is_violated_counts_as_named(
    schema: Any, instance: Any, named: list[tuple[str, str]], wanted: bool
) -> None:
    assert is_named(json.dumps(schema), json.dumps(instance), named) == wanted
