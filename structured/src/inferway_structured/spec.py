"""The shape that an answer must have, as one value, whichever way it was asked for.

`requests.parse_constraints` reads it from a request's body, `from_vllm` from what vLLM made of one;
both give the same spec, so that what a gateway has seen is found again in an engine.

Text is canonical: JSON without blanks, a schema without what only describes and with its keywords
in one order, all else in the order given, a name that comes twice once (the last value counts, as
in vLLM and every library here); expressions and Lark in one spelling (respelled.py). Whoever
checks, compiles or validates reads this text, never the client's, so that all of them read the
same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn

from inferway_structured.backends.schemas.nodes import was_written
from inferway_structured.errors import SpecError
from inferway_structured.lax import lax_bool
from inferway_structured.validate.ebnf import is_ebnf
from inferway_structured.validate.keywords import (
    FORMATS,
    HOLDING_MANY,
    HOLDING_NAMED,
    HOLDING_ONE,
    NAMING,
    REFERENCES,
    escaped,
)
from inferway_structured.validate.respelled import respelled_lark, respelled_regex

MAX_TAG_BYTES = 8 * 1024 * 1024  # that vLLM makes of tools: each schema up to twelve times
MAX_TEXT_BYTES = 256 * 1024  # of one spec; 300 schemas of JSONSchemaBench: the largest has 150 kB


class Kind(StrEnum):
    """The kinds of specs, named as vLLM's StructuredOutputOptions
    (v1/structured_output/backend_types.py)."""

    JSON = "json"  # text: a JSON Schema
    JSON_OBJECT = "json_object"  # text: empty; any JSON object
    REGEX = "regex"  # text: the expression; the whole answer matches it
    CHOICE = "choice"  # text: a JSON array of strings; the answer is one of them
    GRAMMAR = "grammar"  # text: Lark or EBNF
    STRUCTURAL_TAG = "structural_tag"  # text: JSON, free text with shaped parts in it


@dataclass(frozen=True, slots=True)
class Options:
    """The ways in which a JSON answer may be written, where the request restricts them."""

    any_whitespace: bool = True
    additional_properties: bool = True  # of objects that do not say so themselves
    whitespace_pattern: str | None = None  # between JSON tokens; None: the backend's own


class TooLongError(SpecError):
    """A shape has more bytes than it may have."""


@dataclass(frozen=True)
class Spec:
    """`text` is canonical: JSON without blanks, its properties in the order given, because they
    are written in that order. Equal specs are compiled once."""

    kind: Kind
    text: str
    options: Options = Options()

    @cached_property
    def key(self) -> str:
        """128 bits in hex, the same in every process and on every machine."""
        parts = "\0".join((self.kind, repr(self.options), self.text))
        return blake2b(parts.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """A spec as it stands in a request."""

    spec: Spec
    place: str  # where in the body, for error.param: "response_format/json_schema/schema"
    strict: bool = False  # OpenAI's word: every keyword is to be enforced
    tool: str | None = None  # the arguments of calls to this tool, not the answer's text
    ignored: bool = False  # by vLLM 0.32, which does not read it: the plugin alone may keep it
    free: str = ""  # why it is not kept: the text, or the arguments of calls, may be any

    @property
    def may_be_free(self) -> bool:
        """vLLM takes what it ignores, and a tool that is not strict, whatever they say."""
        return self.ignored or (self.tool is not None and not self.strict)

    def freed(self, why: object) -> OutputConstraint:
        spec = replace(ANY_ARGUMENTS, options=self.spec.options)
        return replace(self, spec=spec, free=str(why))


# Of a tool without a schema (vLLM's tool_parsers/utils.py `_params_or_empty_object`).
ANY_ARGUMENTS = Spec(Kind.JSON, '{"type":"object","properties":{}}')


def from_vllm(params: object) -> Spec:
    """Return what vLLM's StructuredOutputsParams (GuidedDecodingParams up to 0.11) ask for. Raises
    SpecError; `param` begins with "structured_outputs"."""
    fields = {name: getattr(params, name, None) for name in (*MAKERS, *OPTION_NAMES)}
    place, tag = "structured_outputs", fields["structural_tag"]
    if tag is not None and all(fields[name] is None for name in MAKERS if name != "structural_tag"):
        where = f"{place}/structural_tag"
        return structural_tag_spec(tag, where, options_of(fields, place), MAX_TAG_BYTES)
    return from_fields(fields, place)[0]


def from_fields(fields: Mapping[str, object], place: str) -> tuple[Spec, str]:
    """Return the one spec that `structured_outputs` asks for, and its place. Raises SpecError if it
    asks for none or for several, as vLLM does."""
    given = [name for name in MAKERS if fields.get(name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise SpecError(f"{place}: one of {', '.join(MAKERS)}, got {found}", param=place)
    name = given[0]
    where = f"{place}/{name}"
    return MAKERS[name](fields[name], where, options_of(fields, place)), where


OPTION_NAMES = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def options_of(fields: Mapping[str, object], place: str) -> Options:
    """Return the options in `structured_outputs`, where they have vLLM's names. Raises
    SpecError."""
    return Options(
        any_whitespace=not flag(fields, "disable_any_whitespace", place),
        additional_properties=not flag(fields, "disable_additional_properties", place),
        whitespace_pattern=whitespace_of(fields, "whitespace_pattern", place),
    )


def whitespace_of(fields: Mapping[str, object], name: str, place: str) -> str | None:
    """Return the pattern in a field, None if it has none. Raises SpecError."""
    pattern = fields.get(name)
    return None if pattern is None else text_of(pattern, f"{place}/{name}".lstrip("/"))


def flag(fields: Mapping[str, object], name: str, place: str) -> bool:
    """Absent or null is False; else as vLLM reads it ("true", 1). Raises SpecError."""
    value = fields.get(name)
    try:
        return value is not None and lax_bool(value)
    except ValueError as e:
        where = f"{place}/{name}".lstrip("/")
        text = f"{where}: expected true or false, got {json_type(value)}"
        raise SpecError(text, param=where) from e


def json_spec(
    schema: object, place: str, options: Options = Options(), most: int = MAX_TEXT_BYTES
) -> Spec:
    """Return the spec of a schema, or of its text. Raises SpecError, and TooLongError if it has
    more than `most` bytes."""
    if isinstance(schema, str):
        schema = parsed(schema, place)
        if not isinstance(schema, dict | bool):
            raise unexpected("a JSON Schema", schema, place)
    elif not isinstance(schema, dict):
        raise unexpected("a JSON Schema (an object)", schema, place)
    ordered = in_one_order(schema, place, most)
    text = _written(ordered, place, most)
    was_written(text, ordered)
    return Spec(Kind.JSON, text, options)


def in_one_order(schema: object, place: str, most: int = MAX_TEXT_BYTES) -> object:
    """Return a schema without what only describes, and with the keywords of each schema in it in
    one order, so that those who write it otherwise ask for the same. The properties of an answer
    come as the schema lists them, so what lists them keeps its order. Raises SpecError for a schema
    that is nested too deeply, or has more than `most` bytes: after so many it ends."""
    order = _Order(place, most, DESCRIBING)
    try:
        made = order.of(schema)
        if order.has_names and not order.references:
            return _Order(place, most, DESCRIBING | NAMING).of(schema)
        if _INTO_DESCRIPTION.search("\n".join(order.references)):
            return _Order(place, most, frozenset()).of(schema)
    except RecursionError:
        raise _too_deep(place) from None
    return made


DESCRIBING = frozenset(
    {
        *("title", "description", "$comment", "default", "examples", "example"),
        *("deprecated", "readOnly", "writeOnly"),
    }
)
_LISTING = frozenset(
    {
        *("properties", *REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
        *("dependentSchemas", "dependencies"),
    }
)


_INTO_DESCRIPTION = re.compile(f"/(?:{'|'.join(map(re.escape, sorted(DESCRIBING)))})")


class _Order:
    def __init__(self, place: str, most: int, left_out: frozenset[str]) -> None:
        self.references: list[str] = []
        self.has_names = False
        self._place = place
        self._most = self._left = most
        self._left_out = _LISTING | left_out

    def of(self, schema: object) -> object:
        if type(schema) is not dict:
            return schema
        words = [word for word in schema if word not in self._left_out]
        words.sort()
        words += [word for word in schema if word in _LISTING]
        size = sum(map(len, words)) + 4 * len(words)  # quotes, a colon, and a byte at least
        made: dict[str, object] = {}
        for word in words:
            value = made[word] = schema[word]
            kind = type(value)
            if kind is str:
                size += len(value)
                if word in REFERENCES:
                    self.references.append(value)
                elif word == "format" and value not in FORMATS:
                    del made[word]
                elif word in NAMING:
                    self.has_names = True
            elif kind is dict or kind is list:
                made[word] = self._inside(word, value)
        self._take(size)
        return made

    def _inside(self, word: str, value: Any) -> object:
        is_dict = type(value) is dict
        if is_dict and word in HOLDING_NAMED:
            self._take(sum(map(len, value)) + 4 * len(value))
            return {name: self.of(one) for name, one in value.items()}
        if is_dict and word in HOLDING_ONE:
            return self.of(value)
        if not is_dict and word in HOLDING_MANY:
            self._take(len(value))
            return [self.of(one) for one in value]
        self._take(_size_of_names(value) or size_at_least(value, self._left))
        return value

    def _take(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            raise _too_long(self._place, self._most)


def _size_of_names(value: Any) -> int:
    """Return about the bytes of an array of strings; 0 of all else."""
    try:
        return len("".join(value)) + 3 * len(value) if type(value) is list else 0
    except TypeError:
        return 0


def json_object_spec(value: object, place: str, options: Options = Options()) -> Spec:
    """Raises SpecError unless `value` is true, as vLLM reads it."""
    try:
        is_true = lax_bool(value)
    except ValueError:
        is_true = False
    if not is_true:
        raise SpecError(f"{place}: true or absent, got {json_type(value)}", param=place)
    return Spec(Kind.JSON_OBJECT, "", options)


def regex_spec(value: object, place: str, _: Options = Options()) -> Spec:
    """Return the spec of a regular expression. Raises SpecError."""
    return Spec(Kind.REGEX, respelled_regex(text_of(value, place)))


def choice_spec(value: object, place: str, _: Options = Options()) -> Spec:
    """A choice that is given twice is one choice. Raises SpecError."""
    if isinstance(value, str):  # vLLM takes the array's text, too
        value = parsed(value, place)
    if not isinstance(value, list | tuple):
        raise unexpected("an array of strings", value, place)
    if not value:
        raise SpecError(f"{place}: an empty array, one choice at least is needed", param=place)
    for i, choice in enumerate(value):
        if not isinstance(choice, str):
            raise unexpected("a string", choice, f"{place}/{i}")
    return Spec(Kind.CHOICE, canonical(list(dict.fromkeys(value)), place))


def grammar_spec(value: object, place: str, _: Options = Options()) -> Spec:
    """Return the spec of a grammar. Raises SpecError."""
    text = text_of(value, place)
    if not text.strip():
        raise SpecError(f"{place}: the grammar is empty", param=place)
    return Spec(Kind.GRAMMAR, text if is_ebnf(text) else respelled_lark(text))


def structural_tag_spec(
    value: object, place: str, options: Options = Options(), most: int = MAX_TEXT_BYTES
) -> Spec:
    """Return the spec of either form of vLLM's structural tags, or of its text: `structures` with
    `triggers`, or a `format` of xgrammar's. Raises SpecError."""
    if isinstance(value, str):
        value = parsed(value, place, most)
    if not isinstance(value, dict):
        raise unexpected("an object", value, place)
    if "structures" in value:
        tag = {"type": "structural_tag", **_structures(value, place)}
    elif isinstance(value.get("format"), dict):
        tag = {"type": "structural_tag", "format": value["format"]}
    else:
        raise SpecError(
            f"{place}: `structures` with `triggers`, or a `format`, is needed", param=place
        )
    text = canonical(tag, place, most)
    tag = json.loads(text)  # ours, to be changed
    for held in list(schemas_of(tag, place)):
        held.holder[held.key] = in_one_order(held.holder[held.key], place, most)
    return Spec(Kind.STRUCTURAL_TAG, _written(tag, place, most), options)


class TagSchema(NamedTuple):
    """A schema, and where it stands in the tag."""

    holder: dict[str, Any]
    key: str
    place: str


def schemas_of(tag: Any, place: str = "") -> Iterator[TagSchema]:
    """Yield the schemas in a structural tag. Raises SpecError for a `type` that is no string."""
    if isinstance(tag, list):
        for at, one in enumerate(tag):
            yield from schemas_of(one, f"{place}/{at}")
    if not isinstance(tag, dict):
        return
    if not isinstance(tag.get("type", ""), str):
        raise unexpected("a string", tag["type"], f"{place}/type")
    for key, inner in tag.items():
        here = f"{place}/{escaped(key)}"
        is_schema = (key == "schema" and "begin" in tag) or (
            key == "json_schema" and isinstance(tag.get("type"), str)
        )
        if is_schema and isinstance(inner, dict | bool):
            yield TagSchema(tag, key, here)
        else:
            yield from schemas_of(inner, here)


def _structures(tag: Mapping[str, object], place: str) -> dict[str, object]:
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise unexpected("a non-empty array", structures, f"{place}/structures")
    if not isinstance(triggers, list) or not triggers:
        raise unexpected("a non-empty array of strings", triggers, f"{place}/triggers")
    for i, trigger in enumerate(triggers):
        if not isinstance(trigger, str) or not trigger:
            raise unexpected("a non-empty string", trigger, f"{place}/triggers/{i}")
    return {
        "structures": [
            _structure(structure, triggers, f"{place}/structures/{i}")
            for i, structure in enumerate(structures)
        ],
        "triggers": triggers,
    }


def _structure(structure: object, triggers: list[str], place: str) -> dict[str, object]:
    if not isinstance(structure, dict):
        raise unexpected("an object", structure, place)
    begin, end, schema = (structure.get(name) for name in ("begin", "end", "schema"))
    for name, text in (("begin", begin), ("end", end)):
        if not isinstance(text, str):
            raise unexpected("a string", text, f"{place}/{name}")
    assert isinstance(begin, str)
    if not any(begin.startswith(trigger) for trigger in triggers):
        raise SpecError(f"{place}/begin: does not begin with a trigger", param=f"{place}/begin")
    if schema is not None and not isinstance(schema, dict | bool):
        raise unexpected("a JSON Schema (an object)", schema, f"{place}/schema")
    return {"begin": begin, "schema": {} if schema is None else schema, "end": end}


Maker = Callable[[object, str, Options], Spec]

# By the names that `structured_outputs` has for them.
MAKERS: Mapping[str, Maker] = {
    "json": json_spec,
    "regex": regex_spec,
    "choice": choice_spec,
    "grammar": grammar_spec,
    "json_object": json_object_spec,
    "structural_tag": structural_tag_spec,
}


def text_of(value: object, place: str) -> str:
    """Return a string that can be written as UTF-8 and is not too long. Raises SpecError."""
    if not isinstance(value, str):
        raise unexpected("a string", value, place)
    _check_size(len(value), place)
    if not value.isascii():
        _check_size(len(_encoded(value, place)), place)
    return value


def parsed(text: str, place: str, most: int = MAX_TEXT_BYTES) -> object:
    """Return what a JSON text says. Raises SpecError where it is no JSON; NaN and Infinity are
    none."""
    _check_size(len(text), place, most)
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as e:
        at = f"line {e.lineno} column {e.colno}"
        raise SpecError(f"{place}: not valid JSON at {at}: {e.msg.lower()}", param=place) from None
    except RecursionError:
        raise _too_deep(place) from None
    except ValueError as e:  # a number of more digits than Python reads, or no number
        is_constant = len(str(e)) < 10
        why = f"{e} is no number in JSON" if is_constant else "a number has too many digits"
        raise SpecError(f"{place}: not valid JSON: {why}", param=place) from None


def canonical(value: object, place: str, most: int = MAX_TEXT_BYTES) -> str:
    """Return a value as JSON text. Raises SpecError where JSON has no words for it: a number too
    large, half of a surrogate pair."""
    _check_size(size_at_least(value, most), place, most)
    return _written(value, place, most)


def _written(value: object, place: str, most: int = MAX_TEXT_BYTES) -> str:
    """Return what `canonical` does, of what is known not to be far too large."""
    try:
        text = _ENCODER.encode(value)
    except RecursionError:
        raise _too_deep(place) from None
    except ValueError:
        raise SpecError(f"{place}: holds a number out of range", param=place) from None
    except TypeError as e:
        raise SpecError(f"{place}: not JSON: {e}", param=place) from None
    _check_size(len(text if text.isascii() else _encoded(text, place)), place, most)
    return text


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
)


def size_at_least(value: object, enough: int) -> int:
    """Return no more than the bytes of a value's JSON; counting ends soon after `enough`. So a
    large body costs its time in steps that let other threads in, and a value too large is never
    written."""
    size = -2  # the brackets around `value` are ours
    waiting: list[Any] = [[value]]
    while waiting and size <= enough:
        inside = waiting.pop()
        items = inside
        if type(inside) is dict:
            size += sum(map(len, inside)) + 3 * len(inside)  # quotes and a colon
            items = inside.values()
        size += 2 + max(len(inside) - 1, 0)
        if size + len(inside) > enough:
            return size + len(inside)  # an item has one byte at least
        for item in items:
            kind = type(item)
            if kind is str:
                size += len(item) + 2
            elif kind is dict or kind is list:
                waiting.append(item)
            else:
                size += 1
    return size


def json_type(value: object) -> str:
    """Return what JSON calls a value, for messages: the value itself may be anything, of any
    size."""
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string"}
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    return "an array" if isinstance(value, list | tuple) else names.get(type(value), "neither")


def unexpected(wanted: str, value: object, place: str) -> SpecError:
    """Return the error for a value of another type. `place` is in the request."""
    return SpecError(f"{place}: expected {wanted}, got {json_type(value)}", param=place)


def _encoded(text: str, place: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        code = f"\\u{ord(text[e.start]):04x}"
        raise SpecError(
            f"{place}: holds {code}, half of a surrogate pair, which is no character", param=place
        ) from None


def _check_size(size: int, place: str, most: int = MAX_TEXT_BYTES) -> None:
    if size > most:
        raise _too_long(place, most)


def _too_long(place: str, most: int) -> TooLongError:
    words = f"longer than {most} bytes; move what is not needed to shape the answer elsewhere"
    return TooLongError(f"{place}: {words}", param=place)


def _too_deep(place: str) -> SpecError:
    return SpecError(f"{place}: nested too deeply", param=place)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def fields_of(spec: Spec) -> dict[str, object]:
    """Return the spec spelled out, as another process, or an engine, reads it."""
    return {"kind": spec.kind, "text": spec.text, "options": asdict(spec.options)}


def packed(spec: Spec, **more: object) -> bytes:
    """Return the spec spelled out as JSON, with more that a helper process is to know."""
    return json.dumps({**fields_of(spec), **more}).encode()


def unpacked(given: Mapping[str, object]) -> Spec:
    """Return the spec that `fields_of` has spelled out."""
    options = given["options"]
    assert isinstance(options, dict)
    return Spec(Kind(str(given["kind"])), str(given["text"]), Options(**options))
