"""EBNF as xgrammar reads it (`root ::= "a" | b`): whether it holds together.

Which of xgrammar's own additions an engine takes is the engine's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from inferway_structured.errors import SpecError

_COMMENTS = re.compile(r"(#|//).*$")


def is_ebnf(text: str) -> bool:
    """Return whether a grammar is EBNF and not Lark, as vLLM tells them apart
    (v1/structured_output/utils.py `grammar_is_likely_lark`)."""
    return any("::=" in _COMMENTS.sub("", line) for line in text.split("\n"))


def check_ebnf(text: str, max_repeats: int = 10_000) -> None:
    """Raises SpecError with the line. In time linear in the text. `max_repeats`: of all `{n,m}`
    together, which xgrammar spells out."""
    tokens = list(_tokens(text))
    rules: set[str] = set()
    depth = repeats = 0
    for i, token in enumerate(tokens):
        if token.kind == "assign":
            if i == 0 or tokens[i - 1].kind != "name":
                raise _fault("a rule's name is needed before `::=`", text, token.at)
            if depth:
                raise _fault("a bracket of the rule before is not closed", text, token.at)
            rules.add(tokens[i - 1].text)
        if token.kind == "count":
            repeats += max(int(count) for count in re.findall(r"\d+", token.text) or ["0"])
            if repeats > max_repeats:
                raise _fault(f"repeats add up to more than {max_repeats}", text, token.at)
        depth += {"open": 1, "close": -1}.get(token.kind, 0)
        if depth < 0:
            raise _fault("a bracket is closed that was not opened", text, token.at)
    if depth:
        raise _fault("a bracket is not closed", text, len(text))
    if "root" not in rules:
        raise SpecError("not an EBNF grammar: there is no rule `root`", keyword="grammar")
    # xgrammar's own functions, `TagDispatch(...)`, are no rules; nor are their arguments' names and
    # constants.
    functions = any(
        one.kind == "name" and other.kind == "open" and one.text not in rules
        for one, other in pairwise(tokens)
    )
    for token in tokens:
        if token.kind == "name" and token.text not in rules and not functions:
            raise _fault(f"there is no rule {token.text!r}", text, token.at)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


# Each alternative begins with another character, and none can match in two ways.
_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<set>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<assign>::=)
      | (?P<count>\{\s*\d{0,18}\s*,?\s*\d{0,18}\s*\})
      | (?P<name>[A-Za-z_][\w.-]*)
      | (?P<open>\()
      | (?P<close>\))
      | (?P<other>[|*+?=:,/.])
      | (?P<number>\d+)""",
    re.VERBOSE,
)


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _fault(f"{text[at]!r} cannot stand here", text, at)
        if found.lastgroup != "blank":
            yield _Token(str(found.lastgroup), found.group(), at)
        at = found.end()


def _fault(words: str, text: str, at: int) -> SpecError:
    line = text.count("\n", 0, at) + 1
    return SpecError(f"not an EBNF grammar: line {line}: {words}", keyword="grammar")
