"""Writes the code of templates that are rendered in this process: what a `BoundedContext` counts
stands in it, and what a template may use at all is in the tables here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import FILTERS
from jinja2.runtime import LoopContext

# The largest of 347 real templates has 19 kB.
MAX_SOURCE_CHARS = 64 << 10
SHORT = 1024  # characters that cost nothing to read or copy
_MAX_TERMS = 8  # of a sum that is measured as a whole
_LARGE = 1 << 62
_UNITS_OF_CALL = 64  # of a macro

# Methods of str that are called where they stand, with what stands in the template.
_PLAIN_METHODS = ("startswith", "endswith", "strip", "lstrip", "rstrip")

# Filters that count for themselves, or take no time; those that go through the items of what they
# are given, and through all in it.
_UNCOUNTED = (
    "length count default d first last abs items string trim join tojson indent replace format"
)
_OF_ITEMS = "list reject rejectattr select selectattr map"
_OF_ALL = "capitalize lower reverse safe title upper int float dictsort sort unique"
_HOW_COUNTED = {
    **dict.fromkeys(_UNCOUNTED.split(), ""),
    **dict.fromkeys(_OF_ITEMS.split(), "context.apart("),
    **dict.fromkeys(_OF_ALL.split(), "context.whole("),
}
_OF_MAP = "trim string tojson capitalize lower safe title upper int float"

# Tests that look at the type of a value, or at a number; and that compare.
_QUICK = (
    "defined undefined none string mapping iterable sequence number integer float boolean true"
    " false callable odd even sameas divisibleby"
)
_COMPARING = "eq equalto == ne != gt greaterthan > ge >= lt < le <= in"
_QUICK_TESTS = frozenset(_QUICK.split())
_TESTS = _QUICK_TESTS.union(_COMPARING.split())
# Which argument of a filter names another filter, or a test.
_NAMES = {
    "map": (0, frozenset(_OF_MAP.split())),
    "select": (0, _TESTS),
    "reject": (0, _TESTS),
    "selectattr": (1, _TESTS),
    "rejectattr": (1, _TESTS),
}

_NOT_HERE = (
    nodes.Block,
    nodes.Extends,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.EvalContextModifier,
    nodes.Pow,
)

# All that a dict has besides its items, and what of a loop the sandbox lets through.
OF_DICT = frozenset(dir(dict))
_SAFE_OF_LOOP = frozenset(
    name
    for name in vars(LoopContext)
    if isinstance(vars(LoopContext)[name], property) and not name.startswith("_")
) | {"index0"}


def why_heavy(source: str, tree: nodes.Template) -> str | None:
    """Return why a template must not be rendered in this process at all, or None if it may be
    tried."""
    if len(source) > MAX_SOURCE_CHARS:
        return f"the chat template has more than {MAX_SOURCE_CHARS} characters"
    unknown = next(filter(None, map(_unknown, tree.find_all(nodes.Node))), None)
    return None if unknown is None else f"the chat template uses {unknown}"


def _unknown(node: nodes.Node) -> str | None:
    """What a template must not use here, if the node is it."""
    if isinstance(node, nodes.Call | nodes.Filter | nodes.Test) and (
        node.dyn_args is not None or node.dyn_kwargs is not None
    ):
        return "a list of arguments"
    if isinstance(node, nodes.Filter) and node.name in FILTERS and not _is_known(node):
        return f"the filter {node.name!r}"
    if isinstance(node, nodes.Test) and node.name not in _TESTS:
        return f"the test {node.name!r}"
    if isinstance(node, nodes.Name) and node.name in ("varargs", "kwargs", "lipsum"):
        return node.name
    if isinstance(node, nodes.For) and node.recursive:
        return "a recursive loop"
    return type(node).__name__ if isinstance(node, _NOT_HERE) else None


def _is_known(node: nodes.Filter) -> bool:
    """Return whether what the filter does is counted."""
    if node.name == "map" and any(given.key == "default" for given in node.kwargs):
        return False
    if node.node is None and node.name != "trim":  # it is given what a block writes
        return False
    place, known = _NAMES.get(node.name, (0, frozenset()))
    named = node.args[place : place + 1] if known else ()
    are_known = all(isinstance(each, nodes.Const) and each.value in known for each in named)
    return node.name in _HOW_COUNTED and are_known


class BoundedCompiler(CodeGenerator):
    """Writes the code of templates: what a BoundedContext counts, and what `BoundedSandbox` does
    with items, counters of loops and short texts where it stands, for to call it takes longer than
    to do it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._around: dict[int, tuple[str, str]] = {}  # what stands around a node
        self._macros: dict[int, int] = {}  # their bodies, and their units

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("concat = context.concat")

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        before, after = self._around.pop(id(node), ("", ""))
        if _is_made(node):
            before, after = f"{before}context.made(", f"){after}"
        if before:
            self.write(before)
        super().visit(node, *args, **kwargs)
        if after:
            self.write(after)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._around[id(node.iter)] = "context.loop(", f", {_num_nodes(node)})"
        super().visit_For(node, frame)

    def macro_body(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> Any:
        self._macros[id(node.body)] = _UNITS_OF_CALL + _num_nodes(node)
        return super().macro_body(node, frame)

    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        units = self._macros.get(id(body))
        if units is not None:
            self.writeline(f"context.spend({units})")
        super().blockvisit(body, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Write a comparison without a count where one side stands in the template: it is short."""
        left = node.expr
        for operand in node.ops:
            right = operand.expr
            if operand.op in ("in", "notin"):
                self._count(left, "context.read(")
                self._count(right, "context.searched(")
            elif not isinstance(left, nodes.Const) and not isinstance(right, nodes.Const):
                self._count(left, "context.read(")
            left = right
        super().visit_Compare(node, frame)

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        if node.name not in _QUICK_TESTS:
            for each in (node.node, *node.args):
                self._count(each, "context.read(")
        super().visit_Test(node, frame)

    def visit_Filter(self, node: nodes.Filter, frame: Frame) -> None:
        count = _HOW_COUNTED.get(node.name)
        if count:
            if node.node is not None:
                is_of_filter = node.name == "map" and bool(node.args)
                self._count(node.node, "context.whole(" if is_of_filter else count)
            for each in (*node.args, *(given.value for given in node.kwargs)):
                self._count(each, "context.short(")
        super().visit_Filter(node, frame)

    def _count(self, node: nodes.Expr, how: str) -> None:
        if not isinstance(node, nodes.Const) and not (
            isinstance(node, nodes.List | nodes.Tuple)
            and all(isinstance(item, nodes.Const) for item in node.items)
        ):
            self._around[id(node)] = how, ")"

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        key = node.arg
        if isinstance(key, nodes.Const) and type(key.value) is str:
            self._write_item(node.node, key.value, "getitem", frame)
            return
        if isinstance(key, nodes.Slice):
            self._count(node.node, "context.copied(")
        elif not isinstance(key, nodes.Add | nodes.Sub | nodes.Neg):
            self._count(key, "context.read(")
        super().visit_Getitem(node, frame)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        of_loop = isinstance(node.node, nodes.Name) and node.node.name == "loop"
        if of_loop and node.attr in _SAFE_OF_LOOP:
            self.write(f"(_of.{node.attr} if type(_of := ")
            self.visit(node.node, frame)
            self.write(f") is LoopContext else environment.getattr(_of, {node.attr!r}))")
        elif node.attr not in OF_DICT:
            self._write_item(node.node, node.attr, "getattr", frame)
        else:
            super().visit_Getattr(node, frame)

    def _write_item(self, of: nodes.Expr, name: str, otherwise: str, frame: Frame) -> None:
        self.write(f"(_of[{name!r}] if type(_of := ")
        self.visit(of, frame)
        self.write(f") is dict and {name!r} in _of else environment.{otherwise}(_of, {name!r}))")

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        method = node.node
        if (
            forward_caller
            or not isinstance(method, nodes.Getattr)
            or not _is_plain(node, method.attr)
        ):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        variables = {"_loop_vars": "_loop_vars"} if frame.loop_frame else {}
        variables |= {"_block_vars": "_block_vars"} if frame.block_frame else {}
        self.write(f"(_of.{method.attr}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(") if type(_of := ")
        self.visit(method.node, frame)
        self.write(f") is str and len(_of) <= {SHORT} else environment.call(context, ")
        self.write(f"environment.getattr(_of, {method.attr!r})")
        self.signature(node, frame, variables)
        self.write("))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        terms = [node.right]
        left = node.left
        while isinstance(left, nodes.Add) and len(terms) < _MAX_TERMS:
            terms.append(left.right)
            left = left.left
        self.write("(_sum if type(_sum := ")
        self._write_row([left, *reversed(terms)], " + ", frame)
        self.write(f") is str and len(_sum) <= {SHORT} else context.made(_sum))")

    def visit_Sub(self, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"(_sum if -{_LARGE} < (_sum := ")
        self._write_row([node.left, node.right], " - ", frame)
        self.write(f") < {_LARGE} else context.made(_sum))")

    def visit_Mul(self, node: nodes.BinExpr, frame: Frame) -> None:
        self.write("context.times(")
        self._write_row([node.left, node.right], ", ", frame)
        self.write(")")

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        self.write("context.remainder(")
        self._write_row([node.left, node.right], ", ", frame)
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("context.tilde((")
        self._write_row(node.nodes, ", ", frame)
        self.write("))")

    def _write_row(self, row: Iterable[nodes.Expr], between: str, frame: Frame) -> None:
        for place, each in enumerate(row):
            self.write(between if place else "")
            self.visit(each, frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """Evaluate nothing: Jinja's own would make the text of `{{ 'x' * 10**9 }}`."""
        if not isinstance(node, nodes.TemplateData | nodes.Const):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:  # noqa: ARG002
        self.write("(_out if type(_out := ")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:  # noqa: ARG002
        self.write(") is str else context.text(_out))")


def _is_made(node: nodes.Node) -> bool:
    """Return whether it makes a list, a tuple or a dict of other things than stand there."""
    parts: list[nodes.Expr] = []
    if isinstance(node, nodes.Dict):
        parts = [part for pair in node.items for part in (pair.key, pair.value)]
    elif isinstance(node, nodes.List | nodes.Tuple) and getattr(node, "ctx", "load") == "load":
        parts = node.items
    return any(not isinstance(part, nodes.Const) for part in parts)


def _num_nodes(node: nodes.Node) -> int:
    return sum(1 for _ in node.find_all(nodes.Node))


def _is_plain(call: nodes.Call, method: str) -> bool:
    """A method of str that is called with what stands in the template."""
    rest = (*call.kwargs, call.dyn_args, call.dyn_kwargs)
    are_known = all(isinstance(given, nodes.Const) for given in call.args)
    return method in _PLAIN_METHODS and are_known and not any(rest)
