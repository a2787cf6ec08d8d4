"""The first sentence of a public docstring can be read alone: without the code, and without the
sentence before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "src", ROOT / "structured" / "src", ROOT / "bench" / "src")

# A sentence that begins so refers to something else, or is a clause of one.
BEGINNINGS = """
    And As At But By For From How If In It Its Of On Or So That Their These They This Those To What
    When Where Whether Which Who Whose Why With Without
"""
RELATIVE = "as how that what when where which who whose"

# Verbs that docstrings of functions begin with, and verbs of their clauses. A function whose verb
# is missing here fails the test: say what it does with one of these, or add the verb.
IMPERATIVES = """
    Accept Add Admit Answer Apply Ask Begin Believe Bind Block Book Break Build Call Cancel
    Check Close Compare Compile Complete Compute Connect Count Cut Decide Decode Decorate
    Derive Discard Do Drain Drop Encode End Enter Examine Extend Fail Fill Find Follow Forget
    Free Get Give Go Hand Handle Hash Have Hold Import Install Judge Keep Kill Learn Leave Let
    Listen Load Lock Log Look Make Measure Move Name Note Open Overwrite Parse Prepare Print
    Publish Put Queue Raise Read Record Register Release Remember Remove Render Reset Respell
    Return Route Run Say Send Serve Settle Show Simulate Sleep Spend Stand Start Stop Store
    Stream Take Tell Trouble Try Verify Wait Wake Warn Write Yield
"""
FINITE = """
    are asked asks becomes begins can cannot comes costs does ended fits gets gives goes had
    has have held holds is keeps knows lies lost may must passes reads reuses say says see sees
    serves stands stays stored takes tells wants was were will writes
"""


class Sentence(NamedTuple):
    """The first sentence of a docstring, and where it stands."""

    place: str
    kind: str  # module, class, property or function
    text: str


def first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s+(?=[A-Z`\"(\[])", paragraph, maxsplit=1)[0]


def sentences(path: str, text: str) -> Iterator[Sentence]:
    """Yield the first sentences of a file's public docstrings."""
    tree = ast.parse(text)
    for node in [tree, *_public(tree)]:
        docstring = ast.get_docstring(node)
        if docstring:
            line = getattr(node, "lineno", 1)
            yield Sentence(f"{path}:{line}", _kind(node), first_sentence(docstring))


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | _Definition


def _public(node: ast.Module | ast.ClassDef) -> Iterator[_Documented]:
    for each in node.body:
        if isinstance(each, _Definition) and not each.name.startswith("_"):
            yield each
            if isinstance(each, ast.ClassDef):
                yield from _public(each)


def _kind(node: _Documented) -> str:
    """Return the kind; a group of commands, whose docstring is its help, counts as a property."""
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    decorators = " ".join(ast.unparse(each) for each in node.decorator_list)
    return "property" if "property" in decorators or "group" in decorators else "function"


def can_be_read_alone(sentence: Sentence) -> bool:
    words = re.findall(r"[\w'/-]+", sentence.text)
    if len(words) < 3 or words[0] in BEGINNINGS.split() or sentence.text.startswith("The same"):
        return False
    return sentence.kind != "function" or has_verb(words)


def has_verb(words: list[str]) -> bool:
    """Return whether a sentence begins with a verb, or has more verbs than relative clauses."""
    first = words[0]
    if {first, first.removesuffix("s"), first.removesuffix("es")} & {*IMPERATIVES.split()}:
        return True
    return _num(words, FINITE) > _num(words, RELATIVE)


def _num(words: list[str], listed: str) -> int:
    return sum(word in listed.split() for word in words)


def faults() -> list[Sentence]:
    """Return the sentences of all packages that cannot be read alone."""
    paths = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    each = (found for path in paths for found in sentences(_name(path), path.read_text()))
    return [sentence for sentence in each if not can_be_read_alone(sentence)]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_first_sentences_can_be_read_alone() -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("kind", "text", "passes"),
    [
        ("function", "Return the number of requests that wait.", True),
        ("function", "The engine that is to fetch these blocks stays in the queue.", True),
        ("function", "True if the client has gone.", True),
        ("function", "The number of bytes that the body still has.", False),
        ("function", "Listens.", False),
        ("property", "The number of requests that wait.", True),
        ("property", "Whether the client has gone.", False),
        ("class", "A queued request.", True),
        ("class", "What is known of an engine.", False),
        ("function", "The same for replay requests.", False),
    ],
)
def test_a_sentence_that_needs_the_code_is_found(kind: str, text: str, passes: bool) -> None:
    assert can_be_read_alone(Sentence("", kind, text)) == passes


def test_a_first_sentence_ends_before_the_next_one() -> None:
    assert first_sentence("A key is\nhashed, as `a.b` is. None if not.\n\nMore.") == (
        "A key is hashed, as `a.b` is."
    )
