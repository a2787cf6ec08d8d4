"""A JSON Schema as a graph: its sub-schemas, where they stand, and where references lead.

Words of all drafts are known at once: reading one too many never makes a bound too small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

from inferway_structured.validate.keywords import (
    ELSEWHERE,
    HERE,
    HOLDING_MANY,
    HOLDING_NAMED,
    HOLDING_ONE,
    NAMING,
    REFERENCES,
    escaped,
    unescaped,
)

Json = Any  # as json.loads gives it
SchemaObject = dict[str, Any]

_REFERRING = frozenset(REFERENCES)


@dataclass(slots=True)
class Subschema:
    """A sub-schema that is an object. `place`: its JSON pointer."""

    schema: SchemaObject
    parent: Subschema | None
    step: tuple[str, ...]  # from the parent
    here: Sequence[tuple[str, Subschema]] = ()  # about the same value
    below: Sequence[tuple[str, Subschema]] = ()  # about values inside it

    @property
    def place(self) -> str:
        steps: list[str] = []
        node: Subschema | None = self
        while node is not None:
            steps[:0] = node.step
            node = node.parent
        return "".join(f"/{escaped(step)}" for step in steps)


@dataclass(slots=True)
class Graph:
    """`nodes`: each sub-schema once, the root first. `named`: those with an `$id`, an anchor or the
    like. `dangling`: references that lead nowhere in this document, with their words. `is_tree`:
    none leads to a node.

    Nodes know each other both ways, so nobody but the garbage collector would free them, and all
    threads wait for it. At the end of a `with` they let go of each other.
    """

    nodes: list[Subschema]
    named: list[Subschema]  # by themselves
    references: dict[tuple[str, str], None]  # the keyword, what it says
    dangling: list[tuple[Subschema, str, str]]  # the schema, the keyword, what it says
    is_tree: bool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.parent = None
            node.here = node.below = ()


_ALONE = re.compile(r'\{"\$ref": ?"[^"]*"\}')


def references_are_alone(text: str) -> bool:
    """Return whether the text of a schema shows that nothing stands beside a `$ref`."""
    num = text.count('"$ref":')
    return not num or num == len(_ALONE.findall(text))


def graph(root: Json) -> Graph:
    """Return the graph of a document, in time linear in it: each object becomes a node at most
    once, wherever references lead, also to places that no keyword makes a schema. What is no object
    (`true`) has no nodes."""
    if not isinstance(root, dict):
        return Graph([], [], {}, [], True)
    nodes: dict[int, Subschema] = {}
    top = Subschema(root, None, ())
    waiting = _grow(top, nodes)
    named = _named(waiting)
    names = _names(named)
    # A reference leads from everywhere to the same place, unless there are documents inside.
    is_one = all(node is top for node in names.values())
    targets: dict[str, Json] = {}
    references: dict[tuple[str, str], None] = {}
    dangling: list[tuple[Subschema, str, str]] = []
    is_tree = True
    while waiting:
        node = waiting.pop()
        if _REFERRING.isdisjoint(node.schema):
            continue
        for keyword in REFERENCES:
            said = node.schema.get(keyword)
            if not isinstance(said, str):
                continue
            references[keyword, said] = None
            if not is_one or said not in targets:
                targets[said] = _target(said, node, top, names)
            target = targets[said]
            if target is None:
                dangling.append((node, keyword, said))
            elif isinstance(target, dict):
                known = nodes.get(id(target))
                if known is None:
                    known = Subschema(target, top, _steps(said))
                    grown = _grow(known, nodes)
                    named += _named(grown)
                    waiting += grown
                    is_one = False
                node.here = [*node.here, (keyword, known)]
                is_tree = False
    return Graph(list(nodes.values()), named, references, dangling, is_tree)


def _grow(start: Subschema, nodes: dict[int, Subschema]) -> list[Subschema]:
    """Add all new nodes that keywords make a schema, from `start` on. Return them."""
    nodes[id(start.schema)] = start
    grown = [start]
    for node in grown:  # which grows meanwhile
        if _HOLDING.isdisjoint(node.schema):
            continue
        here: list[tuple[str, Subschema]] = []
        below: list[tuple[str, Subschema]] = []
        for keyword, value in node.schema.items():
            if keyword not in _HOLDING:
                continue
            edges = here if keyword in HERE else [] if keyword in ELSEWHERE else below
            for step, schema in _held(keyword, value):
                if type(schema) is not dict:
                    continue
                child = nodes.get(id(schema))
                if child is None:
                    steps = (keyword,) if step is None else (keyword, str(step))
                    child = nodes[id(schema)] = Subschema(schema, node, steps)
                    grown.append(child)
                edges.append((keyword, child))
        node.here, node.below = here, below
    return grown


def _held(keyword: str, value: Json) -> Iterable[tuple[object, Json]]:
    """Return what a keyword makes schemas, with the step there; None: none."""
    kind = type(value)
    if kind is list:
        return enumerate(value) if keyword in HOLDING_MANY else ()
    if kind is not dict:
        return ()
    if keyword in HOLDING_ONE:
        return ((None, value),)
    return value.items() if keyword in HOLDING_NAMED else ()


_HOLDING = HOLDING_ONE | HOLDING_MANY | HOLDING_NAMED


def _named(nodes: list[Subschema]) -> list[Subschema]:
    return [node for node in nodes if not NAMING.isdisjoint(node.schema)]


def _names(nodes: list[Subschema]) -> dict[str, Subschema]:
    """Return the nodes by `$id`, `id` and `$anchor`."""
    named: dict[str, Subschema] = {}
    for node in nodes:
        for keyword in ("$id", "id"):
            name = node.schema.get(keyword)
            if isinstance(name, str):
                named.setdefault(name.rstrip("#"), node)
                named.setdefault(name.rstrip("#").rpartition("/")[2], node)  # said relatively
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = node.schema.get(keyword)
            if isinstance(name, str):
                named.setdefault(f"#{name}", node)
    return named


def _target(said: str, node: Subschema, top: Subschema, names: dict[str, Subschema]) -> Json:
    """Return what a reference leads to; None if that is nowhere in this document."""
    document, _, fragment = said.partition("#")
    if document:
        named = names.get(document) or names.get(document.rpartition("/")[2])
        if named is None:
            return None
        roots = [named]
    else:
        roots = [top]
        up: Subschema | None = node
        while up is not None:  # the documents inside the document that `node` stands in
            if isinstance(up.schema.get("$id", up.schema.get("id")), str):
                roots.append(up)
            up = up.parent
    if fragment and not fragment.startswith("/"):
        named = names.get(f"#{fragment}")
        return None if named is None else named.schema
    for root in roots:
        found = _followed(root.schema, fragment)
        if found is not None:
            return found
    return None


def _steps(said: str) -> tuple[str, ...]:
    fragment = unquote(said.partition("#")[2])
    return tuple(map(unescaped, fragment.split("/")[1:]))


def _followed(root: SchemaObject, fragment: str) -> Json:
    at: Json = root
    for step in _steps(f"#{fragment}"):
        if isinstance(at, dict) and step in at:
            at = at[step]
        elif isinstance(at, list) and step.isdecimal() and int(step[:9]) < len(at):
            at = at[int(step[:9])]
        else:
            return None
    return at if isinstance(at, dict | bool) else None


def longest_path(found: Graph) -> int:
    """Return a length that no way through the graph exceeds that sees no node twice: how deep
    whoever follows references by recursion may get. Exact without circles; a circle counts with all
    its nodes, and with those of its parts that no keyword leads to."""
    lengths: dict[int, int] = {}
    for circle in _circles(found.nodes):
        onward = 0
        for node in circle:
            for _, child in (*node.here, *node.below):
                alone = not child.here and not child.below
                onward = max(onward, lengths.get(id(child), int(alone)))  # of the circle's own: 0
        for node in circle:
            lengths[id(node)] = len(circle) + onward
    return lengths.get(id(found.nodes[0]), 1) if found.nodes else 0


def _circles(nodes: list[Subschema]) -> Iterator[list[Subschema]]:
    """Yield the strongly connected parts of what leads to others, those that others lead to first:
    Tarjan's, without recursion. What leads nowhere is left out: most are so."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_: dict[int, Subschema] = {}
    for start in nodes:
        if id(start) in index or not (start.here or start.below):
            continue
        work = [(start, iter((*start.here, *start.below)))]
        index[id(start)] = low[id(start)] = len(index)
        open_[id(start)] = start
        while work:
            node, rest = work[-1]
            me = id(node)
            for _, child in rest:
                if not (child.here or child.below):
                    continue
                other = id(child)
                if other not in index:
                    index[other] = low[other] = len(index)
                    open_[other] = child
                    work.append((child, iter((*child.here, *child.below))))
                    break
                if other in open_:
                    low[me] = min(low[me], index[other])
            else:
                work.pop()
                if work:
                    parent = id(work[-1][0])
                    low[parent] = min(low[parent], low[me])
                if low[me] == index[me]:
                    part = [open_.popitem()[1]]
                    while part[-1] is not node:
                        part.append(open_.popitem()[1])
                    yield part
