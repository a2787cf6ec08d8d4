r"""`\d`, `\w` and `\s` of a regular expression, spelled out in ASCII.

Rust's regexes, llguidance's among them, take every script's digits for `\d`: a date was answered in
Arabic ones. vLLM's own library (xgrammar) and JSON Schema's dialect mean ASCII, and so do those who
write them.
"""

from __future__ import annotations

_MEMBERS = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}


def ascii_classes(regex: str) -> str:
    r"""The same expression otherwise. A negated one inside a class (`[^\D]`) stays as it is: it
    cannot be spelled out there."""
    if "\\" not in regex:
        return regex
    made: list[str] = []
    depth = at = 0  # of classes, which may stand in each other
    while at < len(regex):
        sign = regex[at]
        if sign == "\\":
            made.append(_escape(regex[at : at + 2], inside=depth > 0))
            at += 2
            continue
        if sign == "[":
            depth += 1
            opened = "[^" if regex.startswith("[^", at) else "["
            if regex.startswith(opened + "]", at):
                opened += "]"  # a bracket that comes first is itself
            made.append(opened)
            at += len(opened)
            continue
        if sign == "]" and depth:
            depth -= 1
        made.append(sign)
        at += 1
    return "".join(made)


def _escape(escape: str, *, inside: bool) -> str:
    letter = escape[1:]
    if letter in _MEMBERS:
        return _MEMBERS[letter] if inside else f"[{_MEMBERS[letter]}]"
    if letter.lower() in _MEMBERS and not inside:
        return f"[^{_MEMBERS[letter.lower()]}]"
    return escape
