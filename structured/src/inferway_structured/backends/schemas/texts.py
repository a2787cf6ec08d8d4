"""Patterns and formats, as far as the library takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway_structured.backends.schemas.nodes import Node
from inferway_structured.backends.schemas.said import Said
from inferway_structured.backends.schemas.strings import (
    FORMAT_PATTERNS,
    KNOWN_FORMATS,
    UNENFORCED_FORMATS,
    in_rust,
    without_assertions,
)


@dataclass(frozen=True, slots=True)
class Words:
    """The two questions about patterns that a library answers."""

    takes_string: Callable[[Mapping[str, Any]], bool]  # a schema of a string
    patterns_disjoint: Callable[[Sequence[str]], bool]  # no name matches two of them


@dataclass(frozen=True, slots=True)
class How:
    plainly: bool = False  # nothing that multiplies alternatives: it is left out, and named
    barely: bool = False  # nothing of objects that the library may refuse where schemas meet
    closed: bool = False  # objects that do not say so take no additional properties
    doubt: bool = False  # ask about every pattern, not only those that look like trouble
    alone: frozenset[str] = frozenset()  # places to which only references that stand alone are kept
    unsaid: frozenset[str] = frozenset()  # places to which no reference is kept


class Texts:
    def __init__(self, words: Words, how: How, leave_out: Callable[..., None]) -> None:
        """`leave_out` is told a node and keywords of it."""
        self._words = words
        self._how = how
        self._leave_out = leave_out
        self._patterns: dict[str, bool] = {}

    def say(self, node: Node, out: dict[str, Any], also: list[Said]) -> None:
        """Say the `pattern` and `format` of a node."""
        keywords = node.keywords
        said: dict[str, Any] = {}
        form = keywords.get("format")
        if form in UNENFORCED_FORMATS:
            self._leave_out(node, "format")
        elif form in KNOWN_FORMATS:
            said["format"] = form
        if "pattern" in keywords:
            self._pattern(node, keywords["pattern"], said)
        if form in FORMAT_PATTERNS:
            if "pattern" in said:
                also.append({"pattern": FORMAT_PATTERNS[form]})
            else:
                said["pattern"] = FORMAT_PATTERNS[form]
        if self._how.doubt:
            self._shed(node, said)
        out.update(said)

    def _pattern(self, node: Node, pattern: Any, said: dict[str, Any]) -> None:
        written = in_rust(str(pattern))
        if self.takes(written):
            said["pattern"] = written
            return
        self._leave_out(node, "pattern")
        without = without_assertions(written)
        if without is not None and self.takes(without):
            said["pattern"] = without

    def takes(self, pattern: str) -> bool:
        found = self._patterns.get(pattern)
        if found is None:
            doubtful = self._how.doubt or _is_doubtful(pattern)
            found = not doubtful or self._words.takes_string({"pattern": pattern})
            self._patterns[pattern] = found
        return found

    def _shed(self, node: Node, said: dict[str, Any]) -> None:
        """Leaves out what is too much together."""
        lengths = {
            word: node.keywords[word]
            for word in ("minLength", "maxLength")
            if word in node.keywords
        }
        for word in ("format", "pattern"):
            if not said or self._words.takes_string({**said, **lengths}):
                return
            if said.pop(word, None) is not None:
                self._leave_out(node, word)


# What nobody's pattern has that makes no trouble: look-around, anchors inside, escapes of ECMA's.
_DOUBTFUL = re.compile(r"\(\?[=!<]|\\[bBcZzAGkpP0-9]|\[\^?\]|\{,|.\^|\$.")


def _is_doubtful(pattern: str) -> bool:
    return len(pattern) > 200 or _DOUBTFUL.search(pattern) is not None
