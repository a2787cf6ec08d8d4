r"""Expressions and grammars of other dialects, in the words of the libraries that read them here.

What is written                        means                              is written by
`\ud83d\ude00`                         one character beyond U+FFFF        JavaScript, JSON
`[^]`                                  any character                      JavaScript
`\<`, `\>`, `\é`                       the character itself               those who escape too much
`\Z`, `\e`, `\cA`                      the end, escape, control-A         Python, Perl
`^^a$$`, `^(^a)`                       as one anchor: all is matched      generators
`"a"~2..5` in Lark                     `"a"{2,5}`                         Lark itself

vLLM's libraries take them, and Rust's do not. What no dialect knows (`\y`), or one knows otherwise
than vLLM's library reads it (`\K`, `\R`), stays as it is and is refused.

And `\d`, `\w` and `\s` are spelled out in ASCII for Rust's regexes, llguidance's among them, which
take every script's digits for `\d`: a date was answered in Arabic ones. vLLM's own library
(xgrammar) and JSON Schema's dialect mean ASCII, and so do those who write them.
"""

from __future__ import annotations

import re

_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# An escape, or what may stand in none: each begins with another character.
_PARTS = re.compile(rf"{_PAIR}|\\c[A-Za-z]|\\.|\[\^?\]?|\]|[^\\\[\]]+|.", re.DOTALL)
_ANCHORS_FIRST = re.compile(r"\^+(?=(?:\((?:\?:|\?P?<\w+>)?)*\^)")


def respelled_regex(text: str) -> str:
    """Return the expression in the words of Rust's library. To do it twice changes nothing more."""
    first = _ANCHORS_FIRST.match(text)
    text = _without_last_anchors(text[first.end() :] if first else text)
    if "\\" not in text and "[^]" not in text:
        return text
    made: list[str] = []
    in_class = False
    for found in _PARTS.finditer(text):
        part = found.group()
        if part.startswith("[") and not in_class:
            if part == "[^]" and "]" not in text[found.end() :]:
                part = r"[\s\S]"
            else:
                in_class = True
        elif part == "]":
            in_class = False
        made.append(_escape(part, in_class) if part.startswith("\\") else part)
    return "".join(made)


def _without_last_anchors(text: str) -> str:
    """Return the expression without an anchor that has another one before it, in the groups that
    end there."""
    bare = text.rstrip("$")
    is_escaped = (len(bare) - len(bare.rstrip("\\"))) % 2
    text = text[: len(bare) + is_escaped + 1]
    inside = text[:-1].rstrip(")") if text.endswith("$") else ""
    is_twice = inside.endswith("$") and not inside.endswith("\\$") and len(inside) < len(text) - 1
    return text[:-1] if is_twice else text


def _escape(escape: str, in_class: bool) -> str:
    if len(escape) > 3:
        pair = [int(code, 16) for code in escape.split("\\u")[1:]]
        return chr(0x10000 + ((pair[0] - 0xD800) << 10) + pair[1] - 0xDC00)
    if escape[1:2] == "c" and len(escape) == 3:
        return f"\\x{ord(escape[2]) & 31:02x}"
    if escape == r"\Z" and not in_class:
        return r"\z"
    if escape == r"\e":
        return r"\x1b"
    letter = escape[1:]
    if (letter and not letter.isascii()) or letter in ("<", ">"):
        return letter
    return escape


# Strings, expressions and comments of Lark, which stay as they are, and its counts.
_LARK = re.compile(
    r"""(?P<kept>"(?:[^"\\\n]|\\.)*"|/(?![*/])(?:[^/\\\n]|\\.)+/|//[^\n]*|\#[^\n]*|%[^\n]*)
      | ~[ \t]*(?P<low>\d{1,9})[ \t]*\.\.[ \t]*(?P<high>\d{1,9})""",
    re.VERBOSE,
)


def respelled_lark(text: str) -> str:
    """Return the grammar with counts as Lark's own are read here. To do it twice changes nothing
    more."""
    if ".." not in text:
        return text
    return _LARK.sub(lambda found: found["kept"] or f"{{{found['low']},{found['high']}}}", text)


# Escapes and the ends of classes; a bracket that comes first in one is itself.
_SIGNS = re.compile(r"\\.?|\[\^?\]?|\]", re.DOTALL)
_MEMBERS = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}


def ascii_classes(regex: str) -> str:
    r"""Respell a regular expression so that its classes are those of ASCII. A negated one inside a
    class (`[^\D]`) stays as it is: it cannot be spelled out there."""
    if "\\" not in regex:
        return regex
    depth = 0  # of classes, which may stand in each other

    def spelled(found: re.Match[str]) -> str:
        nonlocal depth
        sign = found.group()
        if sign.startswith("\\"):
            return _in_ascii(sign, inside=depth > 0)
        depth = depth + 1 if sign.startswith("[") else max(depth - 1, 0)
        return sign

    return _SIGNS.sub(spelled, regex)


def _in_ascii(escape: str, *, inside: bool) -> str:
    letter = escape[1:]
    if letter in _MEMBERS:
        return _MEMBERS[letter] if inside else f"[{_MEMBERS[letter]}]"
    if letter.lower() in _MEMBERS and not inside:
        return f"[^{_MEMBERS[letter.lower()]}]"
    return escape
