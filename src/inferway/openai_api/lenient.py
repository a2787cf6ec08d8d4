"""A body that our decoder refuses -> what vLLM reads in it, where vLLM takes it.

Nothing here is tried before the decoder of requests.py has failed, so that ordinary requests pay
nothing. The bytes are read by the function that FastAPI reads them with, Python's `json.loads`, so
that gateway and engine cannot differ: a byte order mark, UTF-16 and UTF-32, NaN and Infinity,
numbers of any size, lone surrogates. Then each field that we type gets its value as pydantic makes
it (lax.py). All other fields stay as they are, and nothing is written anew: the engine gets the
client's bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from inferway.errors import InvalidRequestError
from inferway_structured.lax import lax_bool, lax_int

JsonObject = dict[str, Any]
_T = TypeVar("_T")

# An engine may refuse it, or write nothing of the text that is no Unicode.
_ANY_TEXT = "chat_template"


def json_object(raw: bytes) -> JsonObject:
    """Return all fields of a body as `json.loads` reads them: of two fields with one name the last
    one. Raises InvalidRequestError."""
    try:
        value = json.loads(raw)
    except RecursionError as e:
        raise InvalidRequestError("body: nested too deeply") from e
    except ValueError as e:  # not JSON, not its encoding, or a number of over 4,300 digits
        raise InvalidRequestError(f"body: not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise InvalidRequestError(f"body: expected `object`, got `{json_type(value)}`")
    return value


def json_bytes(fields: JsonObject) -> bytes:
    """Return bytes that `json_object` reads as `fields` again; they are ASCII, so that no value is
    lost. Raises InvalidRequestError."""
    try:
        return json.dumps(fields, separators=(",", ":")).encode("ascii")
    except RecursionError as e:
        raise InvalidRequestError("body: nested too deeply") from e


def convert_leniently(
    fields: JsonObject, kind: type[_T], dec_hook: Callable[[type, Any], Any] | None = None
) -> _T:
    """Return `fields` as `kind`, a struct or dict; those in its `for_the_core` hold Unicode alone.
    `dec_hook` makes values of the types that msgspec does not know. Raises
    msgspec.ValidationError for values that pydantic refuses, too, InvalidRequestError for text of
    ours that is no Unicode."""
    if not isinstance(kind, type):
        return msgspec.convert(fields, kind, dec_hook=dec_hook)
    known: JsonObject = {}
    for name, wanted in _fields(cast("Hashable", kind)):
        if name in fields:
            known[name] = _value(fields[name], wanted)
            if name != _ANY_TEXT and not isinstance(wanted, inspect.AnyType):
                _check_unicode(known[name], name)
    for name in getattr(kind, "for_the_core", ()):
        _check_all_unicode(fields.get(name), name)
    return msgspec.convert(known, kind, dec_hook=dec_hook)


@cache
def _fields(kind: Hashable) -> list[tuple[str, inspect.Type]]:
    """Names and types; making them takes 2 ms."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [(field.encode_name, field.type) for field in info.fields]


def _value(value: object, wanted: inspect.Type) -> object:
    """As it is where pydantic makes nothing of it: then `convert` says what is wrong."""
    kinds = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    types = {type(kind) for kind in kinds}
    if value is None:
        return "" if inspect.NoneType not in types and types == {inspect.StrType} else None
    if isinstance(value, list):
        return lax_prompt(value) if _takes_ids(kinds) else value
    if inspect.BoolType in types:
        wants_bool = isinstance(value, bool) or inspect.IntType not in types
        return _converted(lax_bool if wants_bool else lax_int, value)
    return _converted(lax_int, value) if inspect.IntType in types else value


def _converted(convert: Callable[[object], object], value: object) -> object:
    try:
        return convert(value)
    except ValueError:
        return value


def _takes_ids(kinds: tuple[inspect.Type, ...]) -> bool:
    """Return whether it is the prompt of a completion."""
    return any(
        isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.UnionType)
        for kind in kinds
    )


def lax_prompt(prompt: list[Any]) -> list[Any]:
    """Texts stay texts; else all are ids, or all are lists of ids. As it is where they are not."""
    if all(isinstance(item, str) for item in prompt):
        return prompt
    try:
        if all(isinstance(item, list) for item in prompt):
            return [list(map(lax_int, ids)) for ids in prompt]
        return list(map(lax_int, prompt))
    except ValueError:
        return prompt


def _check_unicode(value: object, name: str) -> None:
    """Nothing that we read as text is one to vLLM's tokenizers, hashes and names with half of a
    surrogate pair."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise InvalidRequestError(
                f"{name}: has a lone surrogate (U+D800 to U+DFFF); expected Unicode text, where"
                " they come in pairs",
                param=name,
            ) from e


def _check_all_unicode(value: object, name: str) -> None:
    """And of all that is in it, however deep."""
    left = [value]
    while left:
        item = left.pop()
        _check_unicode(item, name)
        if isinstance(item, list):
            left += item
        elif isinstance(item, dict):
            left += [*item, *item.values()]


def json_type(value: object) -> str:
    """Return the name that errors use for the type of a value."""
    if value is None:
        return "null"
    return {
        bool: "bool",
        int: "int",
        float: "float",
        str: "str",
        list: "array",
        dict: "object",
    }.get(type(value), type(value).__name__)


# msgspec: "Expected `str`, got `int` - at `$.messages[0].role`", "Object missing required
# field `model`"; the path in front and in OpenAI's spelling.
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`$")


def field_error(text: str, required: Mapping[str, str]) -> InvalidRequestError:
    """Return the error of a body for the `text` of msgspec's; `required`: what is said of a field
    that is missing, or of another type."""
    match = _AT.match(text)
    assert match is not None
    what, where = match["what"], match["where"] or ""
    missing = _MISSING.match(what)
    if missing:
        where = f"{where}.{missing['name']}" if where else missing["name"]
        what = "required field is missing"
    text = f"{where or 'body'}: {what[0].lower()}{what[1:]}"
    told = required.get(where)
    if told is not None:
        text = told if missing else f"{told} ({text})"
    return InvalidRequestError(text, param=where or None)


def check_messages(messages: list[JsonObject]) -> None:
    """Raises InvalidRequestError for a chat's message that vLLM refuses."""
    for i, message in enumerate(messages):
        _check_message(message, f"messages[{i}]")


def _check_message(message: JsonObject, where: str) -> None:
    role = message.get("role")
    if not isinstance(role, str):
        param = f"{where}.role"
        found = "nothing" if role is None else f"`{json_type(role)}`"
        raise InvalidRequestError(f"{param}: expected `str`, got {found}", param=param)
    if message.get("content") == {}:  # no parts: pydantic takes it for an iterable of them
        message["content"] = []
    _check_content(message.get("content"), f"{where}.content")


def _check_content(content: object, param: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"{param}: expected text or a list of parts, got `{json_type(content)}`", param=param
        )
    for j, part in enumerate(content):
        if not isinstance(part, dict | str):
            where = f"{param}[{j}]"
            raise InvalidRequestError(
                f"{where}: expected an object, got `{json_type(part)}`", param=where
            )
