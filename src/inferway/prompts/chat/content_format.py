"""Detection of the form of `content` that a chat template wants: text, or a list of parts.

vLLM looks whether the template loops over a message's content (renderers/hf.py, "auto"): if it
does, messages are given as lists of parts ("openai"), else as text ("string"). The same rules
here, on the template's syntax tree: what counts as the messages, as one message, as its content.
Since 0.33 it also follows messages that are kept in a namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


@dataclass(eq=False)
class TemplateFacts:
    """The facts about a template that decide how a conversation is read. It may be one that another
    process renders."""

    source: str
    content_format: ContentFormat  # as vLLM detects it before 0.33
    newer_format: ContentFormat  # as vLLM detects it since 0.33
    knows_developer: bool


class _NotASimpleNameError(Exception):
    """Messages are assigned to something else than a name; vLLM then gives up: "string"."""


def detect_content_format(tree: nodes.Template, *, in_namespaces: bool) -> ContentFormat:
    """Return vLLM's form for `--chat-template-content-format auto`; `in_namespaces`: of 0.33."""
    try:
        return "openai" if any(_content_loops(tree, in_namespaces)) else "string"
    except _NotASimpleNameError:
        return "string"


def _content_loops(tree: nodes.Template, in_namespaces: bool) -> Iterator[nodes.For]:
    items = _message_names(tree, in_namespaces)
    macro_loops, through_macro = _loops_in_macros(tree, items)
    for loop in tree.find_all(nodes.For):
        iterated = loop.iter
        of_message = any(_reads(iterated, item, "content") for item in items)
        by_name = isinstance(iterated, nodes.Name) and (
            iterated.name in through_macro.get(id(loop), ())
            or (iterated.name == "content" and id(loop) not in macro_loops)
        )
        if of_message or by_name:
            _name_of(loop.target)
            yield loop


def _message_names(tree: nodes.Template, in_namespaces: bool) -> list[str]:
    """Loop variables that stand for one message."""
    lists = _names_of_messages(tree, in_namespaces)
    return [
        _name_of(loop.target)
        for loop in tree.find_all(nodes.For)
        if any(_reads(loop.iter, name) for name in lists)
    ]


def _names_of_messages(tree: nodes.Template, in_namespaces: bool) -> list[str]:
    """`messages`, and every variable it, a slice or a filtered copy of it is assigned to; `ns.rest`
    for an attribute of a namespace."""
    names = ["messages"]
    for name in names:  # grows while we walk it
        for assignment in tree.find_all(nodes.Assign):
            assigned = _in_namespace(assignment, name) if in_namespaces else []
            if not assigned and _reads(assignment.node, name):
                if in_namespaces and not isinstance(assignment.target, nodes.Name):
                    continue
                assigned = [_name_of(assignment.target)]
            names += [target for target in assigned if target not in names]
    return names


def _in_namespace(assignment: nodes.Assign, name: str) -> list[str]:
    """The attributes of namespaces that get `name`: by `set ns.x = …`, or by `namespace(x=…)`."""
    target, value = assignment.target, assignment.node
    if isinstance(target, nodes.NSRef):
        return [f"{target.name}.{target.attr}"] if _reads(value, name) else []
    if not (isinstance(target, nodes.Name) and isinstance(value, nodes.Call)):
        return []
    if not (isinstance(value.node, nodes.Name) and value.node.name == "namespace"):
        return []
    return [f"{target.name}.{each.key}" for each in value.kwargs if _reads(each.value, name)]


def _loops_in_macros(
    tree: nodes.Template, items: list[str]
) -> tuple[set[int], dict[int, set[str]]]:
    """All loops inside macros, and for each: the macro's parameters that get a content."""
    inside: set[int] = set()
    parameters: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        getting = _parameters_getting_content(tree, macro, items)
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if getting:
                parameters[id(loop)] = getting
    return inside, parameters


def _parameters_getting_content(
    tree: nodes.Template, macro: nodes.Macro, items: list[str]
) -> set[str]:
    names = [parameter.name for parameter in macro.args]
    getting: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given: list[tuple[str, nodes.Node]] = list(zip(names, call.args, strict=False))
        given += [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in names]
        getting |= {
            name for name, value in given if any(_reads(value, item, "content") for item in items)
        }
    return getting


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Is this expression `name` (or `name[key]`), perhaps filtered, tested or sliced?"""
    while isinstance(node, nodes.Filter | nodes.Test) or _is_slice(node):
        node = node.node  # type: ignore[union-attr]
    if key is None:
        return _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        return (
            _is_name(node.node, name)
            and isinstance(node.arg, nodes.Const)
            and bool(node.arg.value == key)
        )
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_name(node.node, name)


def _is_slice(node: nodes.Node | None) -> bool:
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)


def _is_name(node: nodes.Node | None, name: str) -> bool:
    if isinstance(node, nodes.Getattr):
        base, _, attribute = name.rpartition(".")
        return node.attr == attribute and bool(base) and _is_name(node.node, base)
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _name_of(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NotASimpleNameError
    return target.name
