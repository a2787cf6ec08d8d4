"""Patterns and formats, as far as the library takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway_structured.backends.schemas.automata import opposite, plainly
from inferway_structured.backends.schemas.nodes import Node
from inferway_structured.backends.schemas.said import Said
from inferway_structured.backends.schemas.strings import (
    FORMAT_PATTERNS,
    KNOWN_FORMATS,
    UNENFORCED_FORMATS,
    in_rust,
    split_ahead,
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
            self._pattern(node, keywords["pattern"], said, also)
        if form in FORMAT_PATTERNS:
            if "pattern" in said:
                also.append({"pattern": FORMAT_PATTERNS[form]})
            else:
                said["pattern"] = FORMAT_PATTERNS[form]
        if self._how.doubt:
            self._shed(node, said)
        out.update(said)

    def written(self, node: Node, pattern: str) -> str:
        """Return a pattern in the library's words, if it has any."""
        written = in_rust(pattern)
        if self.takes(written):
            return written
        return plainly(pattern, node.document.work) or written

    def _parts_of(self, node: Node, pattern: str) -> list[str]:
        """Return what a text must match that a pattern with look-ahead at its beginning matches;
        nothing where that cannot be said."""
        parts = []
        for part, is_opposite in split_ahead(pattern):
            text = opposite(part, node.document.work) if is_opposite else self.written(node, part)
            if text is None:
                return []
            parts.append(text)
        return parts

    def _pattern(self, node: Node, pattern: Any, said: dict[str, Any], also: list[Said]) -> None:
        written = self.written(node, str(pattern))
        if self.takes(written):
            said["pattern"] = written
            return
        parts = self._parts_of(node, str(pattern))
        if parts and all(map(self.takes, parts)):
            also += [{"pattern": part} for part in parts]
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
