"""A spec -> the library that keeps most of it, and what nobody keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from inferway.errors import SpecError
from inferway.structured.backends import llguidance
from inferway.structured.backends.llguidance import LLGuidance
from inferway.structured.backends.schemas import plain
from inferway.structured.backends.schemas.lowering import Lowering, TooLargeError
from inferway.structured.backends.schemas.nodes import Document
from inferway.structured.backends.schemas.texts import How, Words
from inferway.structured.backends.tags import schemas_of, unkept_by_xgrammar
from inferway.structured.backends.xgrammar import MAX_TEXT_CHARS, XGrammar
from inferway.structured.backends.xgrammar import is_installed as xgrammar_is_installed
from inferway.structured.grammar import Unenforced
from inferway.structured.spec import Kind

if TYPE_CHECKING:
    from inferway.structured.backends.vocabulary import Vocabulary
    from inferway.structured.grammar import Compiled
    from inferway.structured.spec import Spec

Made = TypeVar("Made")

_WORDS = Words(llguidance.takes_string, llguidance.patterns_disjoint)


class Verdict(NamedTuple):
    backend: str
    unenforced: Sequence[Unenforced]


class Cascade:
    """Of one engine. Any thread; what it calls drops the GIL where the library does."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._llguidance = LLGuidance(vocabulary)
        self._xgrammar = XGrammar(vocabulary)

    def compile(self, spec: Spec, strict: bool = False) -> Compiled:
        """Raises SpecError: what no library can keep at all, and, if `strict`, what none keeps
        whole, with the place and keyword."""
        try:
            return _first(spec, strict, self._llguidance.compile)
        except SpecError:
            if not _is_xgrammars(spec):
                raise
            unenforced = _xgrammars_residue(spec, strict)
            return self._xgrammar.compile(spec, unenforced)


def verdict(spec: Spec, strict: bool = False) -> Verdict:
    """What `Cascade.compile` would choose, told without a tokenizer. Raises SpecError as it, but
    for what xgrammar is left to judge, which wants one."""

    def tell(said: Spec, unenforced: Sequence[Unenforced]) -> Verdict:
        llguidance.check(said)
        return Verdict(LLGuidance.name, unenforced)

    try:
        return _first(spec, strict, tell)
    except SpecError:
        if not _is_xgrammars(spec):
            raise
        return Verdict(XGrammar.name, _xgrammars_residue(spec, strict))


def _is_xgrammars(spec: Spec) -> bool:
    """Whether xgrammar, where it is, may take what llguidance refuses: its own kinds of grammars
    and structural tags, of a size it is quick with. Never schemas: it drops keywords in silence."""
    kinds = (Kind.GRAMMAR, Kind.STRUCTURAL_TAG)
    return spec.kind in kinds and len(spec.text) <= MAX_TEXT_CHARS and xgrammar_is_installed()


def _xgrammars_residue(spec: Spec, strict: bool) -> Sequence[Unenforced]:
    if spec.kind is not Kind.STRUCTURAL_TAG:
        return ()
    found = [
        one
        for held in schemas_of(json.loads(spec.text))
        for one in unkept_by_xgrammar(held.holder[held.key], held.place)
    ]
    if strict and found:
        raise _not_whole(found)
    return found


def _first(spec: Spec, strict: bool, make: Callable[[Spec, Sequence[Unenforced]], Made]) -> Made:
    """Of the ways to say it, the first that the library takes."""
    refused: list[SpecError] = []
    ways = ways_to_say(spec)
    said, unenforced = next(ways)
    while True:
        try:
            if strict and unenforced:
                raise _not_whole(unenforced)
            return make(said, unenforced)
        except SpecError as error:
            refused.append(error)
            why = str(error)
        try:
            said, unenforced = ways.send(why)
        except StopIteration:
            raise refused[0 if strict else -1] from None


def _not_whole(unenforced: Sequence[Unenforced]) -> SpecError:
    first = unenforced[0]
    return SpecError(
        f"{first.keyword} at {first.place or '/'} cannot be enforced",
        place=first.place,
        keyword=first.keyword,
    )


Way = tuple["Spec", Sequence[Unenforced]]


def ways_to_say(spec: Spec) -> Generator[Way, str, None]:
    """Best first; is sent why the one before was refused. Raises SpecError where there is none."""
    try:
        yield from _ways_to_say(spec)
    except RecursionError:
        raise SpecError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error}") from None


def _ways_to_say(spec: Spec) -> Generator[Way, str, None]:
    if spec.kind is Kind.STRUCTURAL_TAG:
        yield _tag_said(spec)
        return
    if spec.kind is not Kind.JSON:
        yield spec, ()
        return
    closed = not spec.options.additional_properties
    text = None if closed else plain.as_it_came(spec.text)
    if text is not None:
        yield replace(spec, text=text), ()
    document = Document(json.loads(spec.text))
    alone: frozenset[str] = frozenset()
    unsaid: frozenset[str] = frozenset()
    refused: dict[str, str] = {}  # what was said already -> why it was refused
    for how in _HOWS:
        for _ in range(_MAX_CIRCLES):
            lowering = Lowering(
                document, _WORDS, replace(how, closed=closed, alone=alone, unsaid=unsaid)
            )
            try:
                said, unenforced = lowering.run()
            except TooLargeError:
                break
            if said is False:
                raise SpecError("no answer can keep this schema")
            text = "{}" if said is True else json.dumps(said, ensure_ascii=False)
            why = refused.get(text, "")
            if not why:
                why = refused[text] = yield replace(spec, text=text), unenforced
            found = _CIRCLE.search(why)
            place = lowering.place_of(found[1]) if found else None
            if place is None:
                break
            unsaid |= alone & {place}
            alone |= {place}


def _tag_said(spec: Spec) -> Way:
    """With each of its schemas said as if it stood alone."""
    tag = json.loads(spec.text)
    unenforced: list[Unenforced] = []
    for held in list(schemas_of(tag)):
        text = json.dumps(held.holder[held.key], ensure_ascii=False)
        try:
            said, left_out = _first(replace(spec, kind=Kind.JSON, text=text), False, _checked)
        except SpecError as error:
            raise SpecError(
                str(error), place=held.place + error.place, keyword=error.keyword
            ) from None
        held.holder[held.key] = json.loads(said.text)
        unenforced += [replace(one, place=held.place + one.place) for one in left_out]
    return replace(spec, text=json.dumps(tag, ensure_ascii=False)), unenforced


def _checked(said: Spec, unenforced: Sequence[Unenforced]) -> Way:
    llguidance.check(said)
    return said, unenforced


# The library makes what is both of two schemas by writing both out, and refuses a definition that
# it has not done yet; it names the definition. Then
# references to that which meet another schema are left out, and if that is not enough, all of them.
_CIRCLE = re.compile(r"circular references .*/\$defs/(\w+)$", re.MULTILINE)
_MAX_CIRCLES = 8
_HOWS = (
    How(),
    How(doubt=True),
    How(doubt=True, plainly=True),
    How(doubt=True, plainly=True, barely=True),
)
