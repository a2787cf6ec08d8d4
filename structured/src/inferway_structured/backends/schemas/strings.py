"""Formats as patterns, and patterns of what a text is not."""

from __future__ import annotations

import re
from collections.abc import Iterable

# What llguidance knows itself (its json/formats.rs). Its dates have a 29th of February in every
# year, and its times a leap second in every minute: they are ours.
KNOWN_FORMATS = frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
# Formats of the specification that nobody's regex can say in full: named where they stand.
UNENFORCED_FORMATS = frozenset({"regex", "idn-hostname"})

_UNRESERVED = r"[A-Za-z0-9\-._~!$&'()*+,;=:@/]"
_IRI = r"[^\x00-\x20\"<>\\^`{|}\x7f]"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAYS = "(?:0[1-9]|1[0-9]|2[0-8])"
_DATE = (
    f"(?:[0-9]{{4}}-(?:(?:0[1-9]|1[0-2])-{_DAYS}|(?:0[13-9]|1[0-2])-(?:29|30)"
    f"|(?:0[13578]|1[02])-31)|{_LEAP}-02-29)"
)
_HOURS = "(?:[01][0-9]|2[0-3])"
# RFC 3339, 5.6; a leap second where it is written in UTC
_TIME = (
    rf"(?:{_HOURS}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+\-]{_HOURS}:[0-5][0-9])"
    r"|23:59:60(?:\.[0-9]+)?(?:[Zz]|[+\-]00:00))"
)
FORMAT_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
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
    """Return a pattern that every text but these matches."""
    return f"^{_but(sorted(set(texts)))}$"


def _but(texts: list[str]) -> str:
    """Return a pattern of every text but these."""
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
        ways.append(in_rust(rf"[^{other}]") + "(?s:.*)")
    else:
        ways.append(r"(?s:.+)")
    return f"(?:{'|'.join(ways)})"


def one_of(texts: Iterable[str]) -> str:
    """Return a pattern that these match, and nothing else."""
    return f"^(?:{'|'.join(re_literal(text) for text in texts)})$"


def re_literal(text: str) -> str:
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char.isascii() and (char.isalnum() or char in " _"):
        return char
    return f"\\x{{{ord(char):x}}}"


def _in_class(char: str) -> str:
    return f"\\x{{{ord(char):x}}}" if not char.isalnum() or char in _CLASS_SPECIAL else char


_ASSERTIONS = re.compile(r"\(\?(?:=|!|<=|<!)|\\[bB]")  # look-around, and the edges of words
_ENDLESS = frozenset({"", ".*", "^.*$", "^.*", ".*$", "^", "$", r"[\s\S]*", r"^[\s\S]*$"})


def is_everything(pattern: str) -> bool:
    """Return whether every name without a line break matches."""
    return pattern in _ENDLESS


def without_assertions(pattern: str) -> str | None:
    r"""Return the pattern without its look-aheads, look-behinds, `\b` and `\B`: it matches what the
    pattern matches, and more. None where there are none, or where they are not told apart."""
    if not _ASSERTIONS.search(pattern):
        return None
    out, at = [], 0
    while at < len(pattern):
        found = _ASSERTIONS.match(pattern, at)
        if found is None:
            step = 2 if pattern[at] == "\\" else _class_length(pattern, at)
            out.append(pattern[at : at + step])
            at += step
            continue
        end = at + 1 if found[0].startswith("\\") else _closing(pattern, at)
        if end is None:
            return None
        at = end + 1
        if at < len(pattern) and pattern[at] in "?*+{":
            return None
    return "".join(out)


def split_ahead(pattern: str) -> list[tuple[str, bool]]:
    """Return a pattern with look-ahead at its beginning as patterns that a text must match, and
    with True those that it must not; nothing for any other pattern."""
    parts: list[tuple[str, bool]] = []
    rest = pattern[1:] if pattern.startswith("^") else ""
    while rest.startswith(("(?=", "(?!")):
        end = _closing(rest, 0)
        if end is None or rest[end + 1 : end + 2] in tuple("?*+{"):
            return []
        parts.append((f"^(?:{rest[3:end]})", rest[2] == "!"))
        rest = rest[end + 1 :]
    return [*parts, ("^" + rest, False)] if parts and not has_branches(rest) else []


def has_branches(pattern: str) -> bool:
    """Return whether a pattern is alternatives, outside of all groups."""
    at = 0
    while at < len(pattern):
        if pattern[at] == "|":
            return True
        end = _closing(pattern, at) if pattern[at] == "(" else None
        step = 2 if pattern[at] == "\\" else _class_length(pattern, at)
        at = at + step if end is None else end + 1
    return False


def _class_length(pattern: str, at: int) -> int:
    """Return the length of the character class that begins here, or 1."""
    if pattern[at] != "[":
        return 1
    here = at + 1
    while here < len(pattern) and pattern[here] != "]":
        here += 2 if pattern[here] == "\\" else 1
    return here + 1 - at


def _closing(pattern: str, at: int) -> int | None:
    """Return where the group ends that begins here."""
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
    """Respell a pattern where ECMA-262 and Rust's regexes differ: in classes, where Rust has set
    operations, and in the escapes of < and >, which are word boundaries there. And without U+0001
    in classes that llguidance would widen (`_is_widened`)."""
    if "[" not in pattern and not _DIFFERENT.search(pattern):
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
            if _is_widened(part[1:-1]):
                also = rf"^[\x{{1}}]{inside[1:]}" if inside.startswith("^") else ""
                inside = also or rf"{inside}&&[^\x{{1}}]"
            part = f"[{inside}]"
        out.append(part)
    return "".join(out)


# llguidance 1.7.6 quotes a pattern's classes for JSON, and where one has all control characters
# (the line feed does not matter) it lets every short escape come, the quotation mark's and the
# backslash's too, whether the class has them or not: `[^\\]` lets a backslash through. Without one
# control character it does not.
_QUOTED = frozenset({0x22, 0x5C})
_CONTROLS = frozenset(range(0x20)) - {0x0A}
_MAY_HAVE_QUOTED = re.compile(r"[\"\\-]")
_MAY_HAVE_CONTROLS = re.compile(r"[\\\x00-\x1f]")


def _is_widened(inside: str) -> bool:
    """`inside` is what stands between the brackets of a class."""
    negated = inside.startswith("^")
    if not (_MAY_HAVE_QUOTED if negated else _MAY_HAVE_CONTROLS).search(inside):
        return False  # most are done here
    listed = _listed(inside[negated:])
    if negated:
        return bool(listed & _QUOTED) and not listed & _CONTROLS
    return listed >= _CONTROLS and not listed >= _QUOTED


def _listed(items: str) -> set[int]:
    """Return the characters of ASCII in a class."""
    found: set[int] = set()
    chars: list[tuple[int, bool]] = []  # and whether it is a hyphen that is no character
    for item in _ITEM.finditer(items):
        text = item[0]
        if text in _SHORTHANDS:
            found |= _SHORTHANDS[text]
            chars.append((-1, False))
        else:
            code = item[1] or item[2] or item[3]
            point = int(code, 16) if code else _ESCAPED.get(text, ord(text[-1]))
            chars.append((point, text == "-"))
    at = 0
    while at < len(chars):
        point = chars[at][0]
        if at + 2 < len(chars) and chars[at + 1][1] and point >= 0:
            found.update(range(point, min(chars[at + 2][0], 0x7F) + 1))
            at += 3
            continue
        found.add(point)
        at += 1
    return found


_ITEM = re.compile(
    r"\\x\{([0-9a-fA-F]{1,6})\}|\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\.|.", re.DOTALL
)
_ESCAPED = {r"\n": 10, r"\r": 13, r"\t": 9, r"\f": 12, r"\v": 11, r"\b": 8, r"\0": 0}
_SPACES = frozenset({9, 10, 11, 12, 13, 32})
_DIGITS = frozenset(range(0x30, 0x3A))
_WORDS = _DIGITS | frozenset(map(ord, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"))
_SHORTHANDS = {
    **{r"\s": _SPACES, r"\d": _DIGITS, r"\w": _WORDS},
    **{r"\S": frozenset(range(0x80)) - _SPACES, r"\D": frozenset(range(0x80)) - _DIGITS},
    r"\W": frozenset(range(0x80)) - _WORDS,
}


_DIFFERENT = re.compile(r"\\[<>]|\[[^\]]*(?:\[|&&|~~|--)")
_OPERATORS = re.compile(r"(?<!\\)\[|&&|~~|--")
