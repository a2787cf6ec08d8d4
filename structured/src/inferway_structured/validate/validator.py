"""A finished text -> does it have the shape that was asked for? Whatever kept it while it came.

JSON is held against its schema by jsonschema_rs; a regex and a Lark grammar are walked byte by
byte by llguidance, in time linear in the text and under its fuel, never by a matcher that goes
back; a choice is looked up. What cannot be told is None, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NoReturn

from inferway_structured.backends.schemas.numbers import check_grammar_numbers
from inferway_structured.compile.cost import is_costly
from inferway_structured.errors import SandboxError, SpecError, is_panic
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.spec import Kind, Spec, packed, unpacked
from inferway_structured.validate.ebnf import is_ebnf
from inferway_structured.validate.json_schema_drafts import validator_of
from inferway_structured.validate.respelled import ascii_classes
from inferway_structured.validate.schema_walk import graph, pointer
from inferway_structured.validate.schemas import expansion

# Characters of the answer times schemas held against each value, times those of the spec: what
# is a few milliseconds in our own thread. More goes to the helper.
_WORK = 8_000_000
_MAX_ANSWER = 8 * 1024 * 1024
_KEEPS = f"{__name__}:keeps_packed"
_CHUNK = 1024  # bytes walked without letting other threads in


@dataclass(frozen=True, slots=True)
class Validity:
    """`valid` None: it cannot be told. Else, if not valid: `place` is a JSON pointer into the
    spec, `keyword` what stands there and was not kept; "json" if the text is no JSON at all."""

    valid: bool | None
    place: str = ""
    keyword: str | None = None


VALID = Validity(True)
UNKNOWN = Validity(None)


class Validator:
    """Holds texts against specs, within bounded time. Any thread, not an event loop's."""

    def __init__(self, helper: Sandbox) -> None:
        """`helper`: the owner's, who closes it."""
        self._helper = helper

    def verdict(self, spec: Spec, answer: str) -> Validity:
        """Hold a text against a spec, in this thread where that is quick, else in the helper.
        Unknown where that one is busy or the text takes it too long."""
        if is_quick(spec, answer):
            return verdict(spec, answer)
        if len(answer) > _MAX_ANSWER:
            return UNKNOWN
        try:
            argument = packed(spec, answer=answer)
            said = self._helper.call(_KEEPS, argument)
        except SandboxError:
            return UNKNOWN
        return Validity(*json.loads(said))


def keeps_packed(argument: bytes) -> bytes:
    """Hold the `answer` beside a packed spec against that, in a helper process. Return the fields
    of its `Validity` as JSON."""
    given = json.loads(argument)
    found = verdict(unpacked(given), given["answer"])
    return json.dumps([found.valid, found.place, found.keyword]).encode()


def is_quick(spec: Spec, answer: str) -> bool:
    """Return whether `verdict` is a matter of milliseconds."""
    if spec.kind in (Kind.CHOICE, Kind.JSON_OBJECT):
        return len(answer) <= _WORK // 64
    if is_costly(spec):
        return False
    work = len(answer) * max(len(spec.text), 64)
    if work > _WORK:
        return False
    if spec.kind is Kind.JSON:
        return work * _expansion(spec.text) <= _WORK * 64
    return True


def verdict(spec: Spec, answer: str) -> Validity:
    """Hold a text against a spec that passed its check, however long that takes."""
    try:
        return _VERDICTS[spec.kind](spec, answer)
    except (SpecError, RecursionError):
        return UNKNOWN
    except BaseException as e:
        if not is_panic(e):
            raise
        return UNKNOWN


def _json(spec: Spec, answer: str) -> Validity:
    value = _value(answer)
    if isinstance(value, Validity):
        return value
    validator = _validator(spec.text, spec.options.additional_properties)
    return _held(validator, value)


def _json_object(_: Spec, answer: str) -> Validity:
    value = _value(answer)
    if isinstance(value, Validity):
        return value
    return VALID if isinstance(value, dict) else Validity(False, "", "type")


def _value(answer: str) -> Any:
    """A Validity if it is no JSON, or holds numbers that Python does not read."""
    try:
        answer.encode()
        return json.loads(answer, parse_constant=_no_constant, parse_float=_finite)
    except (json.JSONDecodeError, _NotJson):
        return Validity(False, "", "json")
    except ValueError:
        return UNKNOWN


class _NotJson(Exception):
    pass


def _no_constant(_: str) -> NoReturn:
    raise _NotJson


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("out of range")
    return value


def _held(validator: Any, value: Any) -> Validity:
    if validator is None:
        return UNKNOWN
    try:
        if validator.is_valid(value):
            return VALID
        error = next(iter(validator.iter_errors(value)), None)
    except (ValueError, RecursionError):
        return UNKNOWN
    if error is None or "Backtrack" in type(error.kind).__name__:
        return UNKNOWN
    steps = list(error.schema_path)
    keyword = next((step for step in reversed(steps) if isinstance(step, str)), None)
    return Validity(False, pointer(steps), keyword)


@lru_cache(maxsize=64)
def _validator(text: str, additional_properties: bool) -> Any:
    schema = json.loads(text)
    if not additional_properties:
        with graph(schema) as found:
            schemas = [node.schema for node in found.nodes]
        for each in schemas:
            if "properties" in each or "patternProperties" in each:
                each.setdefault("additionalProperties", False)
    return validator_of(schema)


@lru_cache(maxsize=1024)
def _expansion(text: str) -> int:
    schema = json.loads(text)
    return expansion(schema) if isinstance(schema, dict) else 1


def _choice(spec: Spec, answer: str) -> Validity:
    return VALID if answer in _choices(spec.text) else Validity(False, "", "choice")


@lru_cache(maxsize=64)
def _choices(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def _regex(spec: Spec, answer: str) -> Validity:
    return _walked("regex", ascii_classes(spec.text), answer, "regex")


def _grammar(spec: Spec, answer: str) -> Validity:
    if not is_ebnf(spec.text):
        return _walked("lark", spec.text, answer, "grammar")
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        text = any_to_lark(spec.text)
    except Exception:  # what it cannot put into Lark, it says with all kinds of exceptions
        return UNKNOWN
    return _walked("lark", text, answer, "grammar")


def _walked(kind: Literal["regex", "lark"], text: str, answer: str, keyword: str) -> Validity:
    """Have a matcher whose tokens are bytes walk the text."""
    import llguidance

    try:
        data = answer.encode()
        check_grammar_numbers(text)
        grammar = llguidance.grammar_from(kind, text)
    except (ValueError, SpecError):
        return UNKNOWN
    matcher = llguidance.LLMatcher(_bytes(), grammar, log_level=0)
    if matcher.is_error():
        return UNKNOWN
    for at in range(0, len(data), _CHUNK):
        chunk = list(data[at : at + _CHUNK])
        if matcher.validate_tokens(chunk) < len(chunk):
            return UNKNOWN if matcher.is_error() else Validity(False, "", keyword)
        if not matcher.consume_tokens(chunk):
            return UNKNOWN
    if matcher.is_error():
        return UNKNOWN
    return VALID if matcher.is_accepting() else Validity(False, "", keyword)


@lru_cache(maxsize=1)
def _bytes() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


def _structural_tag(spec: Spec, answer: str) -> Validity:
    """The form with triggers: after each, a `begin`, JSON by its schema, its `end`. Of xgrammar's
    formats nobody here can tell."""
    tag = json.loads(spec.text)
    structures = tag.get("structures")
    if structures is None:
        return UNKNOWN
    at = 0
    while True:
        found = [place for t in tag["triggers"] if (place := answer.find(t, at)) >= 0]
        if not found:
            return VALID
        at = min(found)
        after, one = _tagged(structures, answer, at, spec.options.additional_properties)
        if one is not VALID:
            return one
        at = after


def _tagged(
    structures: list[dict[str, Any]], answer: str, at: int, additional_properties: bool
) -> tuple[int, Validity]:
    """Return where the tag that begins at `at` ends, and the verdict on it."""
    first = Validity(False, "/structures", "begin")
    for i, structure in enumerate(structures):
        if not answer.startswith(structure["begin"], at):
            continue
        start = at + len(structure["begin"])
        try:
            _, end = json.JSONDecoder(parse_constant=_no_constant).raw_decode(
                answer, start + len(answer[start:]) - len(answer[start:].lstrip())
            )
        except (ValueError, _NotJson):
            first = Validity(False, f"/structures/{i}/schema", "json")
            continue
        stop = end + len(answer[end:]) - len(answer[end:].lstrip())
        close = next((p for p in (end, stop) if answer.startswith(structure["end"], p)), None)
        if close is None:
            first = Validity(False, f"/structures/{i}", "end")
            continue
        text = json.dumps(structure["schema"])
        held = _held(_validator(text, additional_properties), _value(answer[start:end]))
        if held.valid:
            return close + len(structure["end"]), VALID
        first = Validity(held.valid, f"/structures/{i}/schema{held.place}", held.keyword)
    return at, first


_VERDICTS: dict[Kind, Callable[[Spec, str], Validity]] = {
    Kind.JSON: _json,
    Kind.JSON_OBJECT: _json_object,
    Kind.REGEX: _regex,
    Kind.CHOICE: _choice,
    Kind.GRAMMAR: _grammar,
    Kind.STRUCTURAL_TAG: _structural_tag,
}
