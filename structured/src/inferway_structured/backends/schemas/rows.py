"""Objects with so many optional properties that llguidance could not step through them.

All that may come next stands in one row of its table, four entries for each optional property, and
a row takes the square of its length: 500 properties take 1 to 3 ms a token, 2,000 take 40, and more
than `max_items_in_row` end the answer. So the optional properties of such an object are said as
patterns of names, one for each schema that they have: in any order, after those that are required.
What then can come twice is still a valid object, of which readers take the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from inferway_structured.backends.schemas.nodes import DATA, parsed
from inferway_structured.backends.schemas.plain import NAMED
from inferway_structured.errors import SpecError

Said = Any

MAX_OPTIONAL = 250  # said as they are
MAX_AT_ONCE = 500  # that may come at one place
_FEW = 16
_MAX_GROUPS = 64  # the library compares the patterns of each two
_SIZES = frozenset({"minProperties", "maxProperties", "patternProperties"})


def with_short_rows(text: str) -> str:
    """Return a schema that makes short rows. Raises SpecError with the place and the limit."""
    if text.count('":') <= MAX_OPTIONAL:
        return text
    if not _may_be_long(parsed(text)):
        return text
    said = json.loads(text)
    grouped = [node for _, node in _schemas(said) if _group(node, MAX_OPTIONAL)]
    if _most_at_once(said)[0] > MAX_AT_ONCE:  # of alternatives
        grouped += [node for _, node in _schemas(said) if _group(node, _FEW)]
    num, place = _most_at_once(said)
    if num > MAX_AT_ONCE:
        raise SpecError(
            f"{num} optional properties may come at one place, {MAX_AT_ONCE} at most can be"
            " enforced; make more of them required, or give more of them the same schema",
            place=place,
            keyword="properties",
        )
    return json.dumps(said, ensure_ascii=False) if grouped else text


def _may_be_long(said: Said) -> bool:
    """Return whether an object or alternatives have so many properties, optional or not. Quick:
    nearly all schemas end here."""
    level = [said] if isinstance(said, _HOLDERS) else []
    while level:
        objects = [node for node in level if isinstance(node, dict)]
        if objects and max(map(len, objects)) > MAX_OPTIONAL:
            return True
        branching = (node for node in objects if "anyOf" in node or "oneOf" in node)
        if any(_num_in_branches(node) > MAX_AT_ONCE for node in branching):
            return True
        level = [
            inner
            for node in level
            for inner in (node.values() if isinstance(node, dict) else node)
            if isinstance(inner, _HOLDERS)
        ]
    return False


_HOLDERS = (dict, list)


def _branches(node: dict[str, Said]) -> Iterator[dict[str, Said]]:
    for word in ("anyOf", "oneOf"):
        branches = node.get(word)
        for branch in branches if isinstance(branches, list) else ():
            if isinstance(branch, dict):
                yield branch


def _num_in_branches(node: dict[str, Said]) -> int:
    listed = (branch.get("properties") for branch in _branches(node))
    return sum(len(properties) for properties in listed if isinstance(properties, dict))


def _schemas(said: Said) -> Iterator[tuple[str, dict[str, Said]]]:
    """Each with its place, before those inside it."""
    waiting = [("", said)]
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, list):
            waiting += [(f"{place}/{at}", inner) for at, inner in enumerate(node)]
        if not isinstance(node, dict):
            continue
        yield place, node
        for word, inner in node.items():
            if word in NAMED and isinstance(inner, dict):
                waiting += [(f"{place}/{word}/{name}", one) for name, one in inner.items()]
            elif word not in DATA:
                waiting.append((f"{place}/{word}", inner))


def _optional(node: dict[str, Said]) -> list[str]:
    properties, required = node.get("properties"), node.get("required", ())
    if not isinstance(properties, dict) or not isinstance(required, list | tuple):
        return []
    needed = {name for name in required if isinstance(name, str)}
    return [name for name, inner in properties.items() if name not in needed and inner is not False]


def _group(node: dict[str, Said], most: int) -> bool:
    """Return whether there were more that may come at once, and a way to say it."""
    optional = _optional(node)
    if _longest_run(node) <= most or not _SIZES.isdisjoint(node):
        return False
    by_schema: dict[str, list[str]] = {}
    for name in optional:
        by_schema.setdefault(json.dumps(node["properties"][name]), []).append(name)
    shared = [group for group in by_schema.items() if len(group[1]) > 1]
    largest = sorted(shared, key=lambda group: -len(group[1]))[:_MAX_GROUPS]
    if not largest:
        return False
    moved = {name for _, names in largest for name in names}
    patterns = {
        f"^(?:{'|'.join(map(re.escape, names))})$": json.loads(inner) for inner, names in largest
    }
    properties = node["properties"]
    kept = {name: inner for name, inner in properties.items() if name not in moved}
    node |= {"properties": kept, "patternProperties": patterns}
    if node.get("additionalProperties") is False and len(moved) == len(optional):
        node["maxProperties"] = len(properties)
    return True


def _most_at_once(said: Said) -> tuple[int, str]:
    """Return how many things certainly stand in one row at most, and where."""
    return max(
        ((max(_longest_run(node), _first_run(node)), place) for place, node in _schemas(said)),
        default=(0, ""),
    )


def _longest_run(node: dict[str, Said]) -> int:
    longest = run = 0
    optional = set(_optional(node))
    for name in node.get("properties", ()) if optional else ():
        run = run + 1 if name in optional else 0
        longest = max(longest, run)
    return longest


def _first_run(node: dict[str, Said]) -> int:
    """Return the first run of all alternatives together: each may begin."""
    total = 0
    for branch in _branches(node):
        optional = set(_optional(branch))
        names = branch.get("properties", ()) if optional else ()
        total += sum(1 for _ in takewhile(optional.__contains__, names))
    return total
