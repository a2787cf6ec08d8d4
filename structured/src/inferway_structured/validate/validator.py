"""A finished text -> does it have the shape that was asked for? Whatever kept it while it came.

JSON is held against its schema by jsonschema_rs; a regex and a Lark grammar are walked byte by
byte by llguidance, in time linear in the text and under its fuel, never by a matcher that goes
back; a choice is looked up. What cannot be told is None, never a guess.
"""

from __future__ import annotations

import json
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
from inferway_structured.validate.schema_walk import graph
from inferway_structured.validate.schemas import expansion

# Characters of the answer times schemas held against each value, times those of the spec: what
# is a few milliseconds in our own thread. More goes to the helper.
_WORK = 8_000_000
_MAX_ANSWER = 8 * 1024 * 1024
_JUDGE = f"{__name__}:is_valid_packed"
_CHUNK = 1024  # bytes walked without letting other threads in


def is_valid_within(spec: Spec, answer: str, helper: Sandbox) -> bool | None:
    """Return what `is_valid` does, worked out in this thread where that is quick, else in the
    helper. None, too, where that one is busy or the text takes it too long."""
    if is_quick(spec, answer):
        return is_valid(spec, answer)
    if len(answer) > _MAX_ANSWER:
        return None
    try:
        said = helper.call(_JUDGE, packed(spec, answer=answer))
    except SandboxError:
        return None
    valid: bool | None = json.loads(said)
    return valid


def is_valid_packed(argument: bytes) -> bytes:
    """Hold the `answer` beside a packed spec against that, in a helper process. Return what
    `is_valid` does, as JSON."""
    given = json.loads(argument)
    return json.dumps(is_valid(unpacked(given), given["answer"])).encode()


def is_quick(spec: Spec, answer: str) -> bool:
    """Return whether `is_valid` is a matter of milliseconds."""
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


def is_valid(spec: Spec, answer: str) -> bool | None:
    """Return whether a text has the shape of a spec that passed its check, however long that takes.
    None: it cannot be told."""
    try:
        match spec.kind:
            case Kind.JSON:
                value = _value(answer)
                return _held(_validator(spec.text, spec.options.additional_properties), value)
            case Kind.JSON_OBJECT:
                return isinstance(_value(answer), dict)
            case Kind.REGEX:
                return _walked("regex", ascii_classes(spec.text), answer)
            case Kind.CHOICE:
                return answer in _choices(spec.text)
            case Kind.GRAMMAR:
                return _walked("lark", _lark(spec.text), answer)
            case Kind.STRUCTURAL_TAG:
                return _structural_tag(spec, answer)
    except _NotJson:
        return False
    except (SpecError, ValueError, RecursionError):
        return None
    except BaseException as e:
        if not is_panic(e):
            raise
        return None


class _NotJson(Exception):
    pass


def _value(answer: str) -> Any:
    """Raises _NotJson, or ValueError for JSON with numbers that Python does not read."""
    answer.encode()
    try:
        return json.loads(answer, parse_constant=_no_constant, parse_float=_finite)
    except json.JSONDecodeError:
        raise _NotJson from None


def _no_constant(_: str) -> NoReturn:
    raise _NotJson


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("out of range")
    return value


def _held(validator: Any, value: Any) -> bool | None:
    if validator is None:
        return None
    if validator.is_valid(value):
        return True
    error = next(iter(validator.iter_errors(value)), None)
    return None if error is None or "Backtrack" in type(error.kind).__name__ else False


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


@lru_cache(maxsize=64)
def _choices(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def _lark(text: str) -> str:
    """Raises SpecError for EBNF that has no words in Lark."""
    if not is_ebnf(text):
        return text
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(text)
    except Exception as e:  # what it cannot put into Lark, it says with all kinds of exceptions
        raise SpecError("cannot be put into Lark") from e


def _walked(kind: Literal["regex", "lark"], text: str, answer: str) -> bool | None:
    """Have a matcher whose tokens are bytes walk the text."""
    import llguidance

    data = answer.encode()
    check_grammar_numbers(text)
    matcher = llguidance.LLMatcher(_bytes(), llguidance.grammar_from(kind, text), log_level=0)
    for at in range(0, len(data), _CHUNK):
        chunk = list(data[at : at + _CHUNK])
        if matcher.validate_tokens(chunk) < len(chunk):
            return None if matcher.is_error() else False
        if not matcher.consume_tokens(chunk):
            return None
    return None if matcher.is_error() else matcher.is_accepting()


@lru_cache(maxsize=1)
def _bytes() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


def _structural_tag(spec: Spec, answer: str) -> bool | None:
    """The form with triggers: after each, a `begin`, JSON by its schema, its `end`. Of xgrammar's
    formats nobody here can tell."""
    tag = json.loads(spec.text)
    structures = tag.get("structures")
    if structures is None:
        return None
    at = 0
    while True:
        found = [place for t in tag["triggers"] if (place := answer.find(t, at)) >= 0]
        if not found:
            return True
        at, valid = _tagged(structures, answer, min(found), spec.options.additional_properties)
        if not valid:
            return valid


def _tagged(
    structures: list[dict[str, Any]], answer: str, at: int, additional_properties: bool
) -> tuple[int, bool | None]:
    """Return where the tag that begins at `at` ends, and the verdict on it."""
    is_told = True
    for structure in structures:
        if not answer.startswith(structure["begin"], at):
            continue
        start = at + len(structure["begin"])
        try:
            _, end = json.JSONDecoder(parse_constant=_no_constant).raw_decode(
                answer, start + len(answer[start:]) - len(answer[start:].lstrip())
            )
        except (ValueError, _NotJson):
            continue
        stop = end + len(answer[end:]) - len(answer[end:].lstrip())
        close = next((p for p in (end, stop) if answer.startswith(structure["end"], p)), None)
        if close is None:
            continue
        validator = _validator(json.dumps(structure["schema"]), additional_properties)
        held = _held(validator, _value(answer[start:end]))
        if held:
            return close + len(structure["end"]), True
        is_told = is_told and held is not None
    return at, False if is_told else None
