"""Reports of an answer's shape: in an error, in a header, at the end of a stream. The gateway and
the engine say it in the same words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from inferway_structured.errors import SpecError
from inferway_structured.grammar import Unenforced

if TYPE_CHECKING:
    from inferway_structured.spec import OutputConstraint, Spec
    from inferway_structured.texts import AnswerText

UNENFORCED_HEADER = b"x-inferway-unenforced"
VALID_HEADER = b"x-inferway-valid"
MAX_NAMED = 32  # places in the header; "..." stands for the rest
MAX_HEADER_BYTES = 4096  # of it: names may be as long as a schema


def named(unenforced: Sequence[Unenforced]) -> bytes:
    """Return keywords as the header has them: `/properties/tags uniqueItems, ...`; places as in a
    URI (RFC 6901, section 6), because they hold the client's own names. The spec itself has no
    place."""
    words: list[str] = []
    size = 0
    for each in dict.fromkeys(unenforced):
        word = f"{quote(each.place, safe='/~')} {quote(each.keyword)}".lstrip()
        size += len(word) + 2
        if len(words) == MAX_NAMED or size > MAX_HEADER_BYTES:
            words.append("...")
            break
        words.append(word)
    return ", ".join(words).encode()


def in_request(asked: OutputConstraint, refused: SpecError) -> SpecError:
    """Return an error about a spec as one with its place in the request."""
    if not asked.place or (refused.param or "").startswith(asked.place):
        return refused
    param = asked.place + refused.place
    words = str(refused)
    if refused.place:
        words = words.removeprefix(f"{refused.place}: ")
    return SpecError(f"{param}: {words}", place=refused.place, keyword=refused.keyword, param=param)


def refuse_unenforced(asked: OutputConstraint, unenforced: Sequence[Unenforced]) -> None:
    """Raises SpecError if `strict` was asked, and these keywords are kept by no backend: for
    operators who want it so."""
    if not (asked.strict and unenforced):
        return
    first = unenforced[0]
    param = asked.place + first.place
    raise SpecError(
        f"{param}: {first.keyword!r} cannot be enforced, and `strict` was asked for; leave the"
        " keyword out, or `strict`",
        place=first.place,
        keyword=first.keyword,
        param=param,
    )


def left_free(asked: OutputConstraint) -> Unenforced:
    """Return what names a shape that is not kept at all."""
    return Unenforced("", asked.place)


def keeps_all(
    asked: Sequence[OutputConstraint],
    said: Sequence[AnswerText] | None,
    is_valid: Callable[[Spec, str], bool | None],
) -> bool | None:
    """Return whether every text and every call of every choice has its shape. None where that
    cannot be told, or where nothing was said that a shape is asked of."""
    if said is None:
        return None
    by_tool = {each.tool: each for each in sorted(asked, key=lambda each: not each.free)}
    held = [(by_tool.get(each.function), each.text) for each in said]
    verdicts = [None if one.free else is_valid(one.spec, text) for one, text in held if one]
    if False in verdicts:
        return False
    return None if not verdicts or None in verdicts else True


def validity(valid: bool | None) -> bytes:
    """Return whether an answer has its shape in the words of the header and the comment."""
    return b"unknown" if valid is None else b"true" if valid else b"false"
