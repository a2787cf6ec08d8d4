"""A JSON Schema -> within the limits, and a schema at all; or where not.

First what is quick to count, so that nothing hostile reaches a library; then the references; then
the schema's own rules (its meta-schema) and its patterns, by jsonschema_rs, which fetches nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inferway_structured.errors import SpecError
from inferway_structured.validate.json_schema_drafts import (
    is_ordinary,
    is_ordinary_tree,
    validator_of,
)
from inferway_structured.validate.keywords import REFERENCES, pointer
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.regexes import Regex, measured
from inferway_structured.validate.schema_walk import (
    Graph,
    SchemaObject,
    Subschema,
    graph,
    longest_path,
    references_are_alone,
)


def check_schema(schema: Any, limits: SpecLimits, text: str | None = None) -> None:
    """Check a schema. Raises SpecError. In time linear in the schema, times its patterns' bounded
    one. `text`: its canonical text, if that is at hand."""
    if text is None or text.count("{") + text.count("[") > limits.max_nesting:
        check_nesting(schema, limits)
    if not isinstance(schema, dict):
        return
    if text is None:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    has_small_counts = _has_small_counts(text, limits)
    if has_small_counts and not _LINKS.search(text):
        is_valid = is_ordinary_tree(schema, text)
    else:
        with graph(schema) as found:
            if not has_small_counts:
                _check_counts(found, limits)
            odd = _check_graph(found, limits, text)
            is_valid = is_ordinary(found, odd, text)
    if not is_valid:
        validator_of(schema)


# What leads elsewhere, is a name or a pattern, or holds several schemas against one value. A
# property that is called so has a schema: an object.
_LINKS = re.compile(
    r'"(?:\$(?:ref|dynamicRef|recursiveRef|anchor|dynamicAnchor|recursiveAnchor)"'
    r'|(?:pattern|\$?id)": ?"|patternProperties"|(?:allOf|anyOf|oneOf|not|if)"|depend)'
)
# Without these, one string is held against what is said at its place, twice for each of five words.
_MEETING = re.compile(r'"(?:allOf|if|then|else|not|\$dynamicRef|\$recursiveRef)":|"depend')
_LARGE_NUMBER = re.compile('": ?[0-9.]*(?:[0-9]{5}|[eE])')
_MAX_COUNTS = 10  # of less than 10,000 each, are within the limit of all together


def _has_small_counts(text: str, limits: SpecLimits) -> bool:
    """Return whether the text of a schema shows that its counts, and its ways from one sub-schema
    to another, are within the limits. Quick: most schemas need no more."""
    few = min(limits.max_branches, limits.max_object_properties, limits.max_path)
    return (
        text.count(",") < few
        and text.count("{") < few
        and text.count('Items"') + text.count('Properties"') < _MAX_COUNTS
        and not _LARGE_NUMBER.search(text)
    )


def _check_graph(found: Graph, limits: SpecLimits, text: str) -> Sequence[SchemaObject]:
    """Raises SpecError. Return the schemas with patterns that are to be looked at."""
    odd = _check_patterns(found, limits) if '"pattern' in text else []
    _check_references(found)
    # No way is longer than all that leads on, and its end.
    num_leading = sum([bool(node.here or node.below) for node in found.nodes])
    if num_leading >= limits.max_path and longest_path(found) > limits.max_path:
        words = f"sub-schemas lead to each other, over more than {limits.max_path} steps"
        raise SpecError(f"{words}; write fewer definitions, or inside each other")
    has_strings = any(f'"{word}":' in text for word in _STRINGS)
    strings = [n for n in found.nodes if has_strings and not _STRINGS.isdisjoint(n.schema)]
    is_small = len(found.nodes) <= limits.max_expansion
    if found.is_tree and is_small and len(strings) * len(_STRINGS) <= limits.max_conjoined:
        return odd  # not all of them together are too many
    order = _leaves_first(found)
    for node, size in zip(order, _sizes(order), strict=True):
        if size > limits.max_expansion:
            words = "the schemas that one value is held against, references spelled out,"
            raise _over_all(node, words, limits.max_expansion)
    if strings and (_MEETING.search(text) or not references_are_alone(text)):
        ways = _in_order(found.nodes, lambda node: (*node.here, *node.below), lambda *_: None)
        _check_conjoined([*strings, *order], ways, limits)
    return odd


def check_nesting(value: Any, limits: SpecLimits, more: int = 0) -> None:
    """Objects and arrays inside each other, whether they are schemas or not. Raises SpecError."""
    most = limits.max_nesting + more
    if nesting(value, most) > most:
        raise SpecError(f"nested deeper than {most} objects and arrays")


def nesting(value: Any, most: int) -> int:
    """Return how many objects and arrays stand inside each other; counting ends after `most`."""
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level and depth <= most:
        depth += 1
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))  # `dict | list` would be made anew
        ]
    return depth


def _check_counts(found: Graph, limits: SpecLimits) -> None:
    """Each count by itself, and all together."""
    numbers = dict.fromkeys(_ITEM_COUNTS, limits.max_items)
    numbers |= dict.fromkeys(("minLength", "maxLength"), limits.max_length)
    entries = {"enum": limits.max_enum}
    entries |= dict.fromkeys(_NAMES, limits.max_object_properties)
    entries |= dict.fromkeys(_BRANCHES, limits.max_branches)
    bounded = numbers.keys() | entries.keys()
    items = properties = 0
    for node in found.nodes:
        if bounded.isdisjoint(node.schema):
            continue
        most_items = 0
        for keyword, value in node.schema.items():
            if keyword in numbers:
                if _number(value) > numbers[keyword]:
                    raise _over(node, keyword, _short(value), numbers[keyword])
                if keyword in _ITEM_COUNTS:
                    most_items = max(most_items, int(_number(value)))
            elif keyword in entries and isinstance(value, dict | list):
                if keyword == "properties" and isinstance(value, dict):
                    properties += len(value)
                is_schema = keyword == "items" and isinstance(value, dict)
                if len(value) > entries[keyword] and not is_schema:
                    raise _over(node, keyword, f"{len(value)} entries", entries[keyword])
        items += most_items
        if items > limits.max_items_total:
            words = "the counts of items and properties in this schema together"
            raise _over_all(node, words, limits.max_items_total)
        if properties > limits.max_properties:
            raise _over_all(node, "the properties of all objects", limits.max_properties)


_ITEM_COUNTS = frozenset(
    {
        *("minItems", "maxItems", "minContains", "maxContains"),
        *("minProperties", "maxProperties"),
    }
)
_NAMES = ("properties", "patternProperties", "required")
_BRANCHES = ("anyOf", "oneOf", "allOf", "prefixItems", "items")


def patterns(found: Graph) -> Iterator[tuple[Subschema, str, str]]:
    """Yield each regular expression in a schema, with the steps to it: `pattern`, or a name in
    `patternProperties`."""
    for node in found.nodes:
        pattern = node.schema.get("pattern")
        if isinstance(pattern, str):
            yield node, "pattern", pattern
        named = node.schema.get("patternProperties")
        if isinstance(named, dict):
            for name in named:
                yield node, "patternProperties", name


def _check_patterns(found: Graph, limits: SpecLimits) -> Sequence[SchemaObject]:
    """Raises SpecError. Return the patterns that are not of an ordinary syntax, in schemas."""
    odd: list[SchemaObject] = []
    rounds = steps = shorthands = 0
    for count, (node, keyword, text) in enumerate(patterns(found), 1):
        if count > limits.max_patterns:
            raise _over_all(node, "the patterns in this schema", limits.max_patterns)
        place = node.place + pointer([keyword, text] if keyword != "pattern" else [keyword])
        regex = check_pattern(text, limits, place, keyword)
        rounds += regex.repeats if regex.repeats > 1 else 0
        steps += regex.steps
        shorthands += regex.shorthands**2
        if shorthands > limits.max_shorthands**2:
            words = r"\w, \d, \s in these patterns: too many, write `[0-9]` and such"
            raise SpecError(_at(place, words), place=place, keyword=keyword)
        if rounds > limits.max_repeats:
            raise _over_all(node, "the counted repeats of all patterns", limits.max_repeats)
        if steps > limits.max_pattern_steps:
            words = "the steps of following all patterns, where they may be read in many ways,"
            raise _over_all(node, words, limits.max_pattern_steps)
        if not regex.is_ordinary:
            odd.append({keyword: text} if keyword == "pattern" else {keyword: {text: {}}})
    return odd


def check_pattern(
    text: str, limits: SpecLimits, place: str, keyword: str, *, required: bool = False
) -> Regex:
    """Check a regular expression, and return its measures. Raises SpecError. Unless `required`,
    what no engine can follow passes: whoever compiles leaves it out and says so."""
    regex = measured(text)
    words = None
    if regex.unsupported is not None and required:
        words = f"{regex.unsupported}: no engine can follow it while it writes; rewrite it without"
    elif regex.repeats > limits.max_repeats:
        words = f"its counted repeats spell out more than {limits.max_repeats} rounds"
    elif regex.explodes:
        words = (
            "a counted repeat may begin at any character that a loop before it takes: following it"
            " takes states without bound; anchor it, or tell the two apart by their characters"
        )
    if words is not None:
        raise SpecError(_at(place, words), place=place, keyword=keyword)
    return regex


def _check_references(found: Graph) -> None:
    if not found.dangling:
        return
    node, keyword, said = found.dangling[0]
    place = f"{node.place}/{keyword}"
    if said.partition("#")[0]:
        words = (
            f"refers to another document ({_short(said)}); only this one is read, nothing is"
            " fetched: put what it refers to under $defs"
        )
    else:
        words = f"leads nowhere: there is no {_short(said)} in this schema"
    raise SpecError(_at(place, words), place=place, keyword=keyword)


def _leaves_first(found: Graph) -> list[Subschema]:
    """Each node that leads to others about the same value, after those. Raises SpecError for a
    circle of these, which says nothing about any value and never ends."""
    return _in_order(found.nodes, lambda node: node.here, _refuse_circle)


_Edges = Callable[[Subschema], Sequence[tuple[str, Subschema]]]
_AtCircle = Callable[[Subschema, str], None]


def _in_order(nodes: Sequence[Subschema], edges: _Edges, at_circle: _AtCircle) -> list[Subschema]:
    """Return each node that leads to others by its `edges`, after those, and those of a circle in
    any order. `at_circle`: called with an edge that closes one."""
    done: dict[int, Subschema] = {}
    for start in nodes:
        if id(start) not in done and edges(start):
            _add_in_order(start, edges, at_circle, done)
    return list(done.values())


def _add_in_order(
    start: Subschema, edges: _Edges, at_circle: _AtCircle, done: dict[int, Subschema]
) -> None:
    path = {id(start): iter(edges(start))}
    stack = [start]
    while stack:
        node = stack[-1]
        for keyword, child in path[id(node)]:
            if id(child) in path:
                at_circle(node, keyword)
            elif id(child) not in done and (onward := edges(child)):
                path[id(child)] = iter(onward)
                stack.append(child)
                break
        else:
            del path[id(node)]
            done[id(node)] = stack.pop()


def _refuse_circle(node: Subschema, keyword: str) -> None:
    place = f"{node.place}/{keyword}" if keyword in REFERENCES else node.place
    words = "leads back to itself without going into a value: no answer can be held against it"
    raise SpecError(_at(place, words), place=place, keyword=keyword)


def _sizes(order: list[Subschema]) -> Iterator[int]:
    """Yield how many schemas one value is held against at each node, references spelled out."""
    sizes: dict[int, int] = {}
    for node in order:
        size = sizes[id(node)] = 1 + sum([sizes.get(id(child), 1) for _, child in node.here])
        yield size


def expansion(schema: SchemaObject) -> int:
    """The most schemas that one value is held against. Raises SpecError for a circle."""
    with graph(schema) as found:
        return max(_sizes(_leaves_first(found)), default=1)


def _check_conjoined(
    order: Sequence[Subschema], ways: Sequence[Subschema], limits: SpecLimits
) -> None:
    """Check how many patterns one string must match at once, at this value or inside it. `order`:
    of those about one value, `ways`: of all, each after what it leads to."""
    here: dict[int, int] = {}  # none where there is none
    for node in order:
        found = _conjoined(node, here)
        if found:
            here[id(node)] = found
        if found > limits.max_conjoined:
            raise _over_all(node, "the patterns that one string must match", limits.max_conjoined)
    if not here:
        return
    inside: dict[int, Counter[str]] = {}
    for node in ways:
        deep = _inside(node, here, inside)
        if not deep:
            continue
        inside[id(node)] = deep
        if _most(deep) > limits.max_conjoined:
            words = "the patterns that one string inside it must match"
            raise _over_all(node, words, limits.max_conjoined)


def _conjoined(node: Subschema, here: dict[int, int]) -> int:
    """Return how many patterns one string must match at this value."""
    found = either = 0
    if not _STRINGS.isdisjoint(node.schema):
        found = sum(isinstance(node.schema.get(word), str) for word in _STRINGS)
    for word, child in node.here:
        if word in _EITHER:
            either = max(either, here.get(id(child), 0))
        else:
            found += here.get(id(child), 0)
    return found + either


_STRINGS = frozenset({"pattern", "format"})
_EITHER = ("anyOf", "oneOf")
_NOTHING: Counter[str] = Counter()
_ANY_NAME = ""  # of items, and of properties whose schema does not depend on their name alone


def _inside(node: Subschema, here: dict[int, int], inside: dict[int, Counter[str]]) -> Counter[str]:
    """Return how many patterns one string inside this value must match, by its property's name. Of
    a circle, only what is known so far: once around."""
    below = [edge for edge in node.below if (key := id(edge[1])) in here or key in inside]
    beside = [edge for edge in node.here if id(edge[1]) in inside]
    if not below and not beside:
        return _NOTHING
    found: Counter[str] = Counter()
    others: dict[str, int] = {}
    for keyword, child in below:
        deep = max(here.get(id(child), 0), _most(inside.get(id(child))))
        if keyword == "properties" and len(child.step) == 2:
            found[child.step[1]] = max(found[child.step[1]], deep)
        else:
            others[keyword] = max(others.get(keyword, 0), deep)
    found[_ANY_NAME] = sum(others.values())
    if not beside:
        return +found
    either: Counter[str] = Counter()
    for word, child in beside:
        if word in _EITHER:
            either |= inside[id(child)]
        else:
            found += inside[id(child)]
    return +(found + either)


def _most(counts: Counter[str] | None) -> int:
    """At one name; what holds for any comes to it."""
    if not counts:
        return 0
    named = max((n for name, n in counts.items() if name != _ANY_NAME), default=0)
    return named + counts[_ANY_NAME]


def _number(value: object) -> int | float:
    """0 for what is none: the schema's own rules say that."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _over(node: Subschema, keyword: str, found: str, most: int) -> SpecError:
    place = f"{node.place}/{keyword}"
    return SpecError(_at(place, f"{found}, at most {most}"), place=place, keyword=keyword)


def _over_all(node: Subschema, words: str, most: int) -> SpecError:
    return SpecError(_at(node.place, f"{words} pass {most}"), place=node.place)


def _at(place: str, words: str) -> str:
    return f"{place}: {words}" if place else words


def _short(value: object) -> str:
    text = str(value) if isinstance(value, str) else f"{value!r}"[:100]
    return text if len(text) <= 200 else f"{text[:200]}..."
