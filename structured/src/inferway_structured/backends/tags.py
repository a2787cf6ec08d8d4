"""Structural tags: text in which some words begin a part that has a shape, as
{"structures": [{"begin", "schema", "end"}], "triggers"} or as a {"format": …} of xgrammar's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def patterns_of(tag: Any) -> Iterator[str]:
    """Yield the regular expressions beside the schemas."""
    if isinstance(tag, list):
        for one in tag:
            yield from patterns_of(one)
    elif isinstance(tag, dict):
        if tag.get("type") == "regex" and isinstance(tag.get("pattern"), str):
            yield tag["pattern"]
        elif tag.get("type") != "json_schema":
            yield from patterns_of(list(tag.values()))


_REPEATS = frozenset({"star", "plus", "optional", "tags_with_separator", "triggered_tags"})


def repeats_in_repeats(tag: object) -> bool:
    """Return whether an answer may be read in as many ways as a text has cuts: what may come often,
    inside of what may come often."""
    waiting: list[tuple[object, bool]] = [(tag, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, dict):
            repeats = node.get("type") in _REPEATS
            if repeats and inside:
                return True
            inner = (one for word, one in node.items() if word not in ("json_schema", "schema"))
            waiting += [(one, inside or repeats) for one in inner]
        elif isinstance(node, list):
            waiting += [(one, inside) for one in node]
    return False
