"""The cascade of backends: a spec -> the library that keeps most of it, and what none keeps."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from inferway_structured.backends import llguidance
from inferway_structured.backends.llguidance import LLGuidance
from inferway_structured.backends.schemas import plain
from inferway_structured.backends.schemas.lowering import Lowering
from inferway_structured.backends.schemas.nodes import (
    CHARS_READ,
    Document,
    TooLargeError,
    Work,
    parsed,
)
from inferway_structured.backends.schemas.texts import How, Words
from inferway_structured.backends.schemas.weight import weight_of
from inferway_structured.backends.xgrammar import XGrammar
from inferway_structured.backends.xgrammar import is_installed as xgrammar_is_installed
from inferway_structured.backends.xgrammar_schemas import said_for_xgrammar
from inferway_structured.compile.cost import estimated_seconds
from inferway_structured.errors import HeavyError, SpecError
from inferway_structured.grammar import Unenforced, Verdict
from inferway_structured.spec import Kind, schemas_of

if TYPE_CHECKING:
    from inferway_structured.backends.stepped import Steppers
    from inferway_structured.backends.vocabulary import Vocabulary
    from inferway_structured.grammar import Compiled
    from inferway_structured.spec import Spec

Made = TypeVar("Made")
Make = Callable[["Spec", Sequence["Unenforced"]], Made]

_WORDS = Words(llguidance.takes_string, llguidance.patterns_disjoint)


class Cascade:
    """Compiles specs for the vocabulary of one engine. Any thread may use it; what it calls drops
    the GIL where the library does."""

    def __init__(self, vocabulary: Vocabulary, steppers: Steppers | None = None) -> None:
        """`steppers`: for what can make a step take long, which else is stepped here."""
        self.vocabulary = vocabulary
        self._steppers = steppers
        self._llguidance = LLGuidance(vocabulary)
        self._xgrammar = XGrammar(vocabulary)

    def compile(self, spec: Spec) -> Compiled:
        """Return the spec, compiled by the library that keeps most of it. Raises SpecError for what
        no library can keep at all."""
        return self._compile(spec, None)

    def compile_light(self, spec: Spec) -> Compiled:
        """Return the spec, compiled, if that is known to take little of time and memory. Raises
        HeavyError for all else, before a library sees it, and SpecError as `compile`."""
        with _lightly(spec) as light:
            return self._compile(spec, light)

    def compile_said(self, said: Spec, found: Verdict, num_bytes: int) -> Compiled:
        """Return a spec compiled as a child has found it out: `said` is what `judge` has returned
        for it, and it was seen to hold so many bytes."""
        if self._steppers and (found.backend == XGrammar.name or _is_ambiguous(said)):
            return self._steppers.compile(found.backend, said, found.unenforced)
        if found.backend == XGrammar.name:
            return self._xgrammar.compile(said, found.unenforced)
        compiled = self._llguidance.compile(said, found.unenforced)
        compiled.num_bytes = max(compiled.num_bytes, num_bytes)
        return compiled

    def _make(self, said: Spec, unenforced: Sequence[Unenforced]) -> Compiled:
        compiled = self._llguidance.compile(said, unenforced)
        weight = min(_weight_of_said(said), MAX_WEIGHT)
        compiled.num_bytes = max(compiled.num_bytes, int(_BYTES_OF_WEIGHT * weight))
        return compiled

    def _compile(self, spec: Spec, light: _Light | None) -> Compiled:
        try:
            return _first(spec, self._make, light)
        except SpecError as error:
            if not xgrammar_is_installed():
                raise
            said, unenforced = _said_for_xgrammar(spec, error, light)
            if self._steppers:
                return self._steppers.compile(XGrammar.name, said, unenforced)
            return self._xgrammar.compile(said, unenforced)


def verdict(spec: Spec) -> Verdict:
    """Return what `Cascade.compile` would choose, told without a tokenizer. Raises SpecError as it,
    but for what xgrammar is left to judge, which wants one."""
    return judge(spec, llguidance.check)[1]


def light_verdict(spec: Spec) -> Verdict:
    """Return the verdict on what is known to take little. Raises HeavyError for all else, before a
    library sees it."""
    with _lightly(spec) as light:
        return _judged(spec, llguidance.check, light)[1]


def judge(spec: Spec, attempt: Callable[[Spec], object]) -> tuple[Spec, Verdict]:
    """Return what the library is given for the spec, and the verdict. `attempt` has the library
    take it, and raises SpecError if it does not. What that may take is bounded by nobody here."""
    return _judged(spec, attempt, None)


def _judged(
    spec: Spec, attempt: Callable[[Spec], object], light: _Light | None
) -> tuple[Spec, Verdict]:
    def tell(said: Spec, unenforced: Sequence[Unenforced]) -> tuple[Spec, Verdict]:
        attempt(said)
        return said, Verdict(LLGuidance.name, unenforced, estimated_seconds(spec))

    try:
        return _first(spec, tell, light)
    except SpecError as error:
        said, unenforced = _said_for_xgrammar(spec, error, light)
        return said, Verdict(XGrammar.name, unenforced, estimated_seconds(spec))


# Schemas that the library makes of one, by `weight_of`: about 0.1 ms and 4 kB each on a busy
# machine. Above the first figure it is compiled where it can be killed, above the second there
# too, but only if no other way to say it is taken: the figure is a bound, and the library may make
# far fewer. 300 schemas drawn from life: 161 in the middle, 15,000 at most; 7 of JSONSchemaBench's
# 300 are above the second figure.
LIGHT = 8_000
MAX_WEIGHT = 200_000
_MAX_TRIED_WEIGHT = sys.float_info.max  # without any bound it is not tried
_BYTES_OF_WEIGHT = 1_500  # half of the most that was seen
_LIGHT_CHARS = 32 * 1024
_LIGHT_REGEX_CHARS = 1_024
_COUNTED = re.compile(r"\{\d*,?\d{2}|\)\{|\\[pP]")


# What a schema may be looked through here, all ways to say it together: 16 to 50 ms, with the GIL.
# Of 820 schemas from life of less than 32 kB, 98 % take less than 3,100, and three more than this.
LIGHT_WORK = 8_000
# Before it is said with fewer keywords, where it can be killed after 2 s.
_MAX_WORK = 100_000


class _Light:
    """The work that one spec may take here: all of its schemas, and all ways to say each."""

    def __init__(self) -> None:
        self.work = Work(LIGHT_WORK)
        self.weight = Work(2 * LIGHT)


@contextmanager
def _lightly(spec: Spec) -> Iterator[_Light]:
    """Raises HeavyError before it takes more."""
    _require_light(spec)
    try:
        yield _Light()
    except TooLargeError:
        raise HeavyError("a schema that may take long") from None


def _require_light(spec: Spec) -> None:
    """Raises HeavyError for what cannot be known to be light from its text. A schema's weight is
    found when it is said in the library's words."""
    match spec.kind:
        case Kind.GRAMMAR:
            heavy = True
        case Kind.REGEX:
            heavy = _is_heavy(spec.text)
        case Kind.CHOICE:
            heavy = len(spec.text) > _LIGHT_CHARS
        case Kind.STRUCTURAL_TAG:
            formats = list(_formats(json.loads(spec.text)))
            patterns = [node.get("pattern") for node, _ in formats if node.get("type") == "regex"]
            heavy = len(spec.text) > _LIGHT_CHARS or _repeats_in_repeats(formats)
            heavy = heavy or any(isinstance(one, str) and _is_heavy(one) for one in patterns)
        case _:
            heavy = False
    if heavy or spec.options.whitespace_pattern is not None:
        raise HeavyError(f"a {spec.kind} that may take long")


def _is_heavy(pattern: str) -> bool:
    return len(pattern) > _LIGHT_REGEX_CHARS or bool(_COUNTED.search(pattern))


def _weigh(said: Spec, light: _Light) -> None:
    weight = _weight_of_said(said)
    if weight > LIGHT:
        raise TooLargeError
    light.weight.spend(weight)


def _is_ambiguous(said: Spec) -> bool:
    """Return whether it may be so, which can make each step take as long as all before it."""
    if said.kind is Kind.STRUCTURAL_TAG:
        return _repeats_in_repeats(_formats(json.loads(said.text)))
    return said.kind is Kind.GRAMMAR


_REPEATS = frozenset({"star", "plus", "optional", "tags_with_separator", "triggered_tags"})


def _formats(tag: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the objects of a structural tag but for its schemas, and whether each is inside of what
    may come often."""
    waiting = [(tag, False)]
    while waiting:
        node, is_inside = waiting.pop()
        if isinstance(node, dict):
            yield node, is_inside
            is_inside = is_inside or node.get("type") in _REPEATS
            node = [one for word, one in node.items() if word not in ("json_schema", "schema")]
        if isinstance(node, list):
            waiting += [(one, is_inside) for one in node]


def _repeats_in_repeats(formats: Iterable[tuple[dict[str, Any], bool]]) -> bool:
    """Return whether an answer may be read in as many ways as a text has cuts: what may come often,
    inside of what may come often."""
    return any(is_inside and node.get("type") in _REPEATS for node, is_inside in formats)


def _weight_of_said(said: Spec) -> float:
    if said.kind is Kind.JSON:
        return weight_of(said.text)
    if said.kind is not Kind.STRUCTURAL_TAG:
        return 1
    schemas = {json.dumps(held.holder[held.key]) for held in schemas_of(json.loads(said.text))}
    return sum(map(weight_of, schemas))


_XGRAMMARS_CHARS = 16_384  # it compiles without a time limit; larger took seconds


def _said_for_xgrammar(spec: Spec, refused: SpecError, light: _Light | None) -> Way:
    """Return how xgrammar, which every engine has, is given what llguidance has refused: its own
    kinds of grammars and structural tags, of a size it is quick with. Never schemas, which have a
    place: it drops keywords in silence. Raises the refusal for all else."""
    kinds = (Kind.GRAMMAR, Kind.STRUCTURAL_TAG)
    if spec.kind not in kinds or refused.place or len(spec.text) > _XGRAMMARS_CHARS:
        raise refused
    if light:
        raise HeavyError("only a library without limits of its own keeps it") from None
    if spec.kind is not Kind.STRUCTURAL_TAG:
        return spec, ()
    tag = json.loads(spec.text)
    unenforced: list[Unenforced] = []
    for held in list(schemas_of(tag)):
        is_arguments = held.holder.get("style", "json") != "json"
        said, left = said_for_xgrammar(held.holder[held.key], held.place, is_arguments=is_arguments)
        if said is False:
            raise SpecError("no answer can keep this schema", place=held.place)
        held.holder[held.key] = said
        unenforced += left
    return replace(spec, text=json.dumps(tag, ensure_ascii=False)), unenforced


def _first(spec: Spec, make: Make[Made], light: _Light | None) -> Made:
    """Return what `make` makes of the first way to say it that the library takes."""
    ways = ways_to_say(spec, light)
    try:
        said, unenforced = next(ways)
    except StopIteration:
        words = "its alternatives multiply to more than can be compiled; simplify it"
        raise SpecError(words) from None
    while True:
        try:
            if light is not None:
                _weigh(said, light)
            return make(said, unenforced)
        except SpecError as error:
            refused, why = error, str(error)
        try:
            said, unenforced = ways.send(why)
        except StopIteration:
            raise refused from None


Way = tuple["Spec", Sequence[Unenforced]]


def ways_to_say(spec: Spec, light: _Light | None = None) -> Generator[Way, str, None]:
    """Yield the ways to say a spec in the library's words, best first, each with what it leaves
    out. It is sent why the one before was refused. Raises SpecError where there is none, and
    TooLargeError where looking for it takes more than what is light."""
    try:
        yield from _ways_to_say(spec, light)
    except RecursionError:
        raise SpecError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise SpecError(f"not JSON: {error}") from None


def _ways_to_say(spec: Spec, light: _Light | None) -> Generator[Way, str, None]:
    if spec.kind is Kind.STRUCTURAL_TAG:
        yield _tag_said(spec, light)
        return
    if spec.kind is not Kind.JSON:
        yield spec, ()
        return
    tried = _Tried()
    for most in (MAX_WEIGHT, _MAX_TRIED_WEIGHT):
        tried.most = most
        yield from _schema_said(spec, light, tried)
        if not tried.has_left_out:
            return
        if light:
            raise TooLargeError


class _Tried:
    """Texts of one schema, and why each was refused."""

    def __init__(self) -> None:
        self.most: float = MAX_WEIGHT
        self.has_left_out = False  # what weighs more
        self.refused: dict[str, str] = {}

    def allows(self, text: str) -> bool:
        allowed = weight_of(text) <= self.most
        self.has_left_out |= not allowed
        return allowed


def _schema_said(spec: Spec, light: _Light | None, tried: _Tried) -> Generator[Way, str, None]:
    closed = not spec.options.additional_properties
    text = None if closed else plain.as_it_came(spec.text)
    refused = tried.refused
    hows = _HOWS
    if text is not None and text not in refused:
        if tried.allows(text):
            refused[text] = yield replace(spec, text=text), ()
        elif light:
            raise TooLargeError
        else:
            hows = _HOWS[-1:]  # with the fewest keywords, or as it came
    document = Document(parsed(spec.text))
    alone: frozenset[str] = frozenset()
    unsaid: frozenset[str] = frozenset()
    for how in hows:
        for _ in range(_MAX_CIRCLES):
            told = replace(how, closed=closed, alone=alone, unsaid=unsaid)
            document.work = light.work if light else Work(_MAX_WORK)
            lowering = Lowering(document, _WORDS, told)
            try:
                said, unenforced = lowering.run()
            except TooLargeError:
                if light:
                    raise
                break
            if said is False:
                raise SpecError("no answer can keep this schema")
            text = "{}" if said is True else json.dumps(said, ensure_ascii=False)
            document.work.left -= len(text) / CHARS_READ
            if not tried.allows(text):
                break
            why = refused.get(text, "")
            if not why:
                why = refused[text] = yield replace(spec, text=text), unenforced
            found = _CIRCLE.search(why)
            circle = lowering.places_of(found[1]) if found else None
            if not circle:
                break
            unsaid |= alone & circle
            alone |= circle


def _tag_said(spec: Spec, light: _Light | None) -> Way:
    """Return the tag with each of its schemas said as if it stood alone, and what is left out."""
    tag = json.loads(spec.text)
    unenforced: list[Unenforced] = []
    said: dict[str, Way] = {}  # a tool's stands there once for each way to begin a call
    for held in list(schemas_of(tag)):
        text = json.dumps(held.holder[held.key], ensure_ascii=False)
        if text not in said:
            try:
                said[text] = _first(replace(spec, kind=Kind.JSON, text=text), _checked, light)
            except SpecError as error:
                raise SpecError(
                    str(error), place=held.place + error.place, keyword=error.keyword
                ) from None
        held.holder[held.key] = json.loads(said[text][0].text)
        unenforced += [replace(one, place=held.place + one.place) for one in said[text][1]]
    return replace(spec, text=json.dumps(tag, ensure_ascii=False)), unenforced


def _checked(said: Spec, unenforced: Sequence[Unenforced]) -> Way:
    llguidance.check(said)
    return said, unenforced


# The library makes what is both of two schemas by writing both out, and refuses a definition that
# it has not done yet; it names the definition, or none of a circle that takes it too deep. Then
# references to that which meet another schema are left out, and if that is not enough, all of them.
_CIRCLE = re.compile(
    r"circular references .*/\$defs/(\w+)$|Schema intersection stack level exceeded", re.MULTILINE
)
_MAX_CIRCLES = 8
_HOWS: Sequence[How] = (
    How(),
    How(doubt=True),
    How(doubt=True, plainly=True),
    How(doubt=True, plainly=True, barely=True),
)
