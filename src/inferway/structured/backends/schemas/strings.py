"""Formats as patterns, and patterns of what a text is not."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What llguidance knows itself (its json/formats.rs), of those that say the same as RFC 3339 etc.
KNOWN_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
# Formats of the specification that nobody's regex can say in full: named where they stand.
UNENFORCED_FORMATS = frozenset({"regex", "idn-hostname"})

_UNRESERVED = r"[A-Za-z0-9\-._~!$&'()*+,;=:@/]"
_IRI = r"[^\x00-\x20\"<>\\^`{|}\x7f]"
FORMAT_PATTERNS = {
    "json-pointer": r"^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    "uri-reference": (
        rf"^(?:[A-Za-z][A-Za-z0-9+\-.]*:)?(?:{_UNRESERVED}|\[|\]|%[0-9A-Fa-f]{{2}})*"
        rf"(?:\?(?:{_UNRESERVED}|\?|%[0-9A-Fa-f]{{2}})*)?"
        rf"(?:#(?:{_UNRESERVED}|\?|%[0-9A-Fa-f]{{2}})*)?$"
    ),
    "iri": rf"^[A-Za-z][A-Za-z0-9+\-.]*:{_IRI}*$",
    "iri-reference": rf"^{_IRI}*$",
    "uri-template": rf"^(?:{_IRI}|\{{[A-Za-z0-9_%.,:*+#/;?&=!@|]+\}})*$",
    "idn-email": r"^[^@\s]+@[^@\s]+$",
}

_CLASS_SPECIAL = frozenset("\\]^-[&~")


def none_of(texts: Iterable[str]) -> str:
    """A pattern that every text but these matches."""
    return f"^{_but(sorted(set(texts)))}$"


def _but(texts: list[str]) -> str:
    """Of every text but these."""
    if not texts:
        return r"(?s:.*)"
    ways = [] if "" in texts else [""]
    heads: dict[str, list[str]] = {}
    for text in texts:
        if text:
            heads.setdefault(text[0], []).append(text[1:])
    if heads:
        ways += [re_literal(head) + _but(tails) for head, tails in heads.items()]
        other = "".join(_in_class(head) for head in heads)
        ways.append(rf"[^{other}](?s:.*)")
    else:
        ways.append(r"(?s:.+)")
    return f"(?:{'|'.join(ways)})"


def one_of(texts: Iterable[str]) -> str:
    """A pattern that these match, and nothing else."""
    return f"^(?:{'|'.join(re_literal(text) for text in texts)})$"


def re_literal(text: str) -> str:
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char.isascii() and (char.isalnum() or char in " _"):
        return char
    return f"\\x{{{ord(char):x}}}"


def _in_class(char: str) -> str:
    return f"\\x{{{ord(char):x}}}" if not char.isalnum() or char in _CLASS_SPECIAL else char


_LOOKS = re.compile(r"\(\?(?:=|!|<=|<!)")
_ENDLESS = frozenset({"", ".*", "^.*$", "^.*", ".*$", "^", "$", r"[\s\S]*", r"^[\s\S]*$"})


def is_everything(pattern: str) -> bool:
    """Whether every name without a line break matches."""
    return pattern in _ENDLESS


def without_looks(pattern: str) -> str | None:
    """The pattern without its look-aheads and look-behinds: it matches that and more. None where
    there are none, or where they are not told apart."""
    if not _LOOKS.search(pattern):
        return None
    out, at = [], 0
    while at < len(pattern):
        found = _LOOKS.match(pattern, at)
        if found is None:
            step = 2 if pattern[at] == "\\" else _class_length(pattern, at)
            out.append(pattern[at : at + step])
            at += step
            continue
        end = _closing(pattern, at)
        if end is None:
            return None
        at = end + 1
        if at < len(pattern) and pattern[at] in "?*+{":
            return None
    return "".join(out)


def _class_length(pattern: str, at: int) -> int:
    """Of the character class that begins here, or one."""
    if pattern[at] != "[":
        return 1
    here = at + 1
    while here < len(pattern) and pattern[here] != "]":
        here += 2 if pattern[here] == "\\" else 1
    return here + 1 - at


def _closing(pattern: str, at: int) -> int | None:
    """Of the group that begins here, its end."""
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at += _class_length(pattern, at)
            continue
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return at
        at += 1
    return None


def in_rust(pattern: str) -> str:
    """The same pattern where ECMA-262 and Rust's regexes differ: in classes, where Rust has set
    operations, and in the escapes of < and >, which are word boundaries there."""
    if not _DIFFERENT.search(pattern):
        return pattern
    out, at = [], 0
    while at < len(pattern):
        step = 2 if pattern[at] == "\\" else _class_length(pattern, at)
        part = pattern[at : at + step]
        at += step
        if part in ("\\<", "\\>"):
            part = part[1]
        elif len(part) > 2:
            inside = _OPERATORS.sub(lambda found: re_literal(found[0]), part[1:-1])
            part = f"[{inside}]"
        out.append(part)
    return "".join(out)


_DIFFERENT = re.compile(r"\\[<>]|\[[^\]]*(?:\[|&&|~~|--)")
_OPERATORS = re.compile(r"(?<!\\)\[|&&|~~|--")
