"""Writes the code of templates that are rendered in this process: steps in loops, macros and rows
of statements, and `Work` for what can grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.compiler import Frame

from inferway.prompts.chat.template_environment import Compiler
from inferway.prompts.chat.template_work import SHORT

# The largest of 347 real templates has 19 kB, and 80 nodes in a statement.
MAX_SOURCE_CHARS, MAX_STATEMENT_NODES = 64 << 10, 250
_STATEMENTS_PER_STEP = 8


def why_heavy(source: str, tree: nodes.Template) -> str | None:
    """Return why a template must not be rendered in this process at all, or None if it may be
    tried."""
    if len(source) > MAX_SOURCE_CHARS:
        return f"the chat template has more than {MAX_SOURCE_CHARS} characters"
    other = next(tree.find_all(_NOT_HERE), None)
    if other is not None:
        return f"the chat template uses {type(other).__name__}"
    if any(getattr(call, "dyn_args", None) for call in tree.find_all(_CALLS)):
        return "the chat template gives a call a list of arguments"
    if {"varargs", "kwargs"} & {name.name for name in tree.find_all(nodes.Name)}:
        return "the chat template uses varargs or kwargs"
    if any(_num_nodes(each) > MAX_STATEMENT_NODES for each in tree.find_all(nodes.Stmt)):
        return f"the chat template has a statement of more than {MAX_STATEMENT_NODES} parts"
    return None


_NOT_HERE = (
    nodes.Block,
    nodes.Extends,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.EvalContextModifier,
)
_CALLS = (nodes.Call, nodes.Filter, nodes.Test)

# Tests that look at the type of a value, or at a number.
_QUICK_TESTS = (
    "defined undefined none string mapping iterable sequence number integer float boolean true"
    " false callable odd even sameas divisibleby"
)
_IS_QUICK = frozenset(_QUICK_TESTS.split())


def _num_nodes(node: nodes.Node) -> int:
    """Without the statements inside, but for those that are tried one after the other."""
    tried = node.elif_ if isinstance(node, nodes.If) else ()
    inside = [n for n in node.iter_child_nodes() if not isinstance(n, nodes.Stmt) or n in tried]
    return 1 + sum(map(_num_nodes, inside))


def _operator(of_work: str) -> Callable[[BoundedCompiler, nodes.BinExpr, Frame], None]:
    def visit(self: BoundedCompiler, node: nodes.BinExpr, frame: Frame) -> None:
        self._write_call(of_work, node, frame)

    return visit


_OF_WORK = (
    *("step", "join", "text", "made", "add", "multiply", "power", "remainder"),
    *("copied", "compared"),
)


class BoundedCompiler(Compiler):
    is_plain_text = f"is str and len(_of) <= {SHORT}"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._since_step = 0  # statements, at most
        self._bodies: set[int] = set()
        self._before: dict[int, str] = {}  # what stands in front of a node, with a bracket open

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("_work = context.work")
        self.writeline("concat = _work.concat")
        for name in _OF_WORK:
            self.writeline(f"_{name} = _work.{name}")

    def blockvisit(self, body: Iterable[nodes.Node], frame: Frame) -> None:
        before = self._since_step
        if id(body) in self._bodies:
            self._since_step = _STATEMENTS_PER_STEP
        super().blockvisit(self._with_steps(body), frame)
        if id(body) in self._bodies and not body:
            self.writeline("_step()")
        self._since_step = max(before, self._since_step)  # it may be passed over

    def _with_steps(self, body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
        for statement in body:
            if self._since_step >= _STATEMENTS_PER_STEP:
                self.writeline("_step()")
                self._since_step = 0
            self._since_step += 1
            yield statement

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._bodies.add(id(node.body))
        if node.test is not None:
            self._before[id(node.test)] = "(_step() or "
        super().visit_For(node, frame)

    def macro_body(self, node: nodes.Macro | nodes.CallBlock, frame: Frame) -> Any:
        self._bodies.add(id(node.body))
        return super().macro_body(node, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        before = self._before.pop(id(node), None)
        if before is None:
            return super().visit(node, *args, **kwargs)
        self.write(before)
        super().visit(node, *args, **kwargs)
        self.write(")")
        return None

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Write a comparison without a check where one side is a constant of the template: it is
        short."""
        left = node.expr
        for operand in node.ops:
            right = operand.expr
            if operand.op in ("in", "notin"):
                self._read_whole(right)
            elif not isinstance(left, nodes.Const) and not isinstance(right, nodes.Const):
                self._read_whole(left)
            left = right
        super().visit_Compare(node, frame)

    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        if node.name not in _IS_QUICK:
            for each in (node.node, *node.args, *(given.value for given in node.kwargs)):
                self._read_whole(each)
        super().visit_Test(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            self._before[id(node.node)] = "_copied("
        super().visit_Getitem(node, frame)

    def _read_whole(self, node: nodes.Expr) -> None:
        if not isinstance(node, nodes.Const) and not (
            isinstance(node, nodes.List | nodes.Tuple)
            and all(isinstance(item, nodes.Const) for item in node.items)
        ):
            self._before[id(node)] = "_compared("

    visit_Mul = _operator("multiply")
    visit_Pow = _operator("power")

    def visit_Mod(self, node: nodes.BinExpr, frame: Frame) -> None:
        if not isinstance(node.right, nodes.Const):
            self._write_call("remainder", node, frame)
            return
        by = repr(node.right.value)
        self.write(f"(_left % {by} if type(_left := ")
        self.visit(node.left, frame)
        self.write(f") is int else _remainder(_left, {by}))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        """Write an addition without a check where both sides are short texts, unless evaluating the
        right side could change the left one."""
        inside = next(node.right.find_all(nodes.BinExpr), None)
        if inside is not None or isinstance(node.right, nodes.BinExpr):
            self._write_call("add", node, frame)
            return
        self.write("(_sum if type(_sum := (_left := ")
        self.visit(node.left, frame)
        self.write(") + (_right := ")
        self.visit(node.right, frame)
        self.write(f")) is str and len(_sum) <= {SHORT} else _add(_left, _right, _sum))")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("_join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _write_call(self, of_work: str, node: nodes.BinExpr, frame: Frame) -> None:
        self.write(f"_{of_work}(")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._write_made(node, super().visit_List, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._write_made(node, super().visit_Dict, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._write_made(node, super().visit_Tuple, frame)
        else:
            super().visit_Tuple(node, frame)

    def _write_made(self, node: Any, write: Callable[[Any, Frame], None], frame: Frame) -> None:
        is_made = any(not isinstance(part, nodes.Const) for part in _parts(node))
        self.write("_made(" if is_made else "(")
        write(node, frame)
        self.write(")")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:  # noqa: ARG002
        self.write("(_out if type(_out := ")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:  # noqa: ARG002
        self.write(") is str else _text(_out))")


def _parts(node: nodes.List | nodes.Tuple | nodes.Dict) -> list[nodes.Expr]:
    if isinstance(node, nodes.Dict):
        return [part for pair in node.items for part in (pair.key, pair.value)]
    return node.items
