"""A request's body -> what shape it asks of the answer, in every way that vLLM can be asked.

chat         response_format, structured_outputs, guided_*, tools
completions  response_format, structured_outputs, guided_*
responses    text.format, structured_outputs, tools
messages     Anthropic's: output_config.format, tools
generate     vLLM's own tokens in, tokens out: sampling_params.structured_outputs

What counts, if several are given, is vLLM 0.32's choice: a `response_format` before
`structured_outputs` of the same kind (another kind beside it is an error, there as here), a tool
call that is required before both, and guided_* if there is nothing else. Beam search keeps none.
A tool's arguments are asked for when a call is required or named, or its `strict` is true
(parser/abstract_parser.py `_apply_structural_tag`).

`guided_json` and its kind are how vLLM up to 0.11 was asked for a shape. Since 0.12 it ignores them
(entrypoints/serve/engine/protocol.py `_REMOVED_GUIDED_FIELDS`), so that its engines enforce what
they ask for only if they are told so in the words of today: `structured_outputs`. What cannot be
kept of them is left out: no such field is a reason to refuse what an engine answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from inferway_structured.errors import InvalidRequestError, SpecError
from inferway_structured.spec import (
    ANY_ARGUMENTS,
    MAKERS,
    Kind,
    Options,
    OutputConstraint,
    TooLongError,
    flag,
    from_fields,
    json_object_spec,
    json_spec,
    json_type,
    structural_tag_spec,
    unexpected,
    whitespace_of,
)

Fields = Mapping[str, Any]
Reader = Callable[[Fields], Iterator[OutputConstraint]]

WHITESPACE = "guided_whitespace_pattern"

# By their names in `structured_outputs`.
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "structural_tag": "structural_tag",
}

# All that `parse_constraints` reads; a body without any of them asks for nothing.
FIELDS = frozenset(
    {
        *("response_format", "structured_outputs", *GUIDED),
        *("tools", "text", "output_config", "sampling_params"),
    }
)
# It reads these beside them.
OPTIONAL_FIELDS = frozenset({"tool_choice", WHITESPACE, "use_beam_search"})

_Raw = msgspec.defstruct(
    "_Raw", [(name, msgspec.Raw, msgspec.Raw()) for name in sorted(FIELDS | OPTIONAL_FIELDS)]
)
_RAW = msgspec.json.Decoder(_Raw)
_ENCODER = msgspec.json.Encoder()

# Of the schemas of all tools: what fits into one shape beside their names. What is over it is free.
MAX_TOOLS_BYTES = 192 * 1024
_TOOL_BYTES = 192  # that each counts for at least


def key_of_fields(path: str, fields: Fields) -> bytes | None:
    """Return bytes that are the same only for what asks for the same, in the same words; None if
    there are none. `fields` are as msgspec reads JSON."""
    try:
        return _joined(path, _ENCODER.encode(fields))
    except (ValueError, TypeError, RecursionError):  # an integer of more than 64 bits, too deep
        return None


def key_of_body(path: str, body: bytes) -> bytes | None:
    """Return what `key_of_fields` does, of a body. Takes some microseconds for 10 kB."""
    try:
        read = _RAW.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _joined(path, *map(bytes, msgspec.structs.astuple(read)))


def _joined(path: str, *parts: bytes) -> bytes:
    lengths = ",".join([str(len(part)) for part in parts])
    return b"\0".join((path.encode("utf-8", "surrogatepass"), lengths.encode(), *parts))


def parse_constraints(path: str, fields: Fields) -> list[OutputConstraint]:
    """Return what a request asks for: one shape of the answer's text at most, and one for each tool
    whose arguments have a shape. `path` is that of the URL; a prefix, a query or a version before
    its end do not matter. Raises SpecError where the shape cannot be read; `param` is its place in
    the body."""
    if FIELDS.isdisjoint(fields):
        return []
    bare = path.partition("?")[0].rstrip("/")
    for suffix, reader in _READERS:
        if bare.endswith(suffix):
            if reader in _WITH_BEAMS and flag(fields, "use_beam_search", ""):
                return _unread(reader, fields)
            return list(reader(fields))
    return []


def _unread(reader: Reader, fields: Fields) -> list[OutputConstraint]:
    """vLLM's `to_beam_search_params` take no shape along."""
    try:
        found = list(reader(fields))
    except SpecError as e:
        found = [OutputConstraint(ANY_ARGUMENTS, e.param or "")]
    return [replace(each.freed("beam search keeps no shape"), ignored=True) for each in found]


def _chat(fields: Fields) -> Iterator[OutputConstraint]:
    choice = _openai_choice(fields)
    calls = list(_tool_calls(fields, choice, _chat_tools))
    if not (choice.required and calls):
        yield from _text(fields)
    yield from calls


def _text(fields: Fields) -> Iterator[OutputConstraint]:
    """The answer's own text: chat and completions."""
    kept = _structured_outputs(fields)
    form = _object(fields, "response_format")
    over = None if form is None else _response_format(form)
    if over is not None:
        kept = over if kept is None else _laid_over(over, kept)
    if kept is not None:
        yield kept
    yield from _guided(fields, "" if kept is None else kept.place)


def _laid_over(over: OutputConstraint, base: OutputConstraint) -> OutputConstraint:
    """`response_format` takes its place in `structured_outputs`, whose options stay."""
    if over.spec.kind is not base.spec.kind:
        raise SpecError(
            f"response_format asks for {over.spec.kind}, {base.place} for {base.spec.kind}:"
            " leave one out",
            param=base.place,
        )
    return replace(over, spec=replace(over.spec, options=base.spec.options))


def _response_format(form: Fields) -> OutputConstraint | None:
    place = "response_format"
    if form.get("type") == "structural_tag":
        return OutputConstraint(structural_tag_spec(form, place), place)
    allowed = "text, json_object, json_schema or structural_tag"
    return _format(form, place, allowed, f"{place}/json_schema")


def _format(form: Fields, place: str, allowed: str, where: str) -> OutputConstraint | None:
    """Return what chat's `response_format` or the Responses API's `text.format` asks for; the
    schema stands at `where`."""
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return OutputConstraint(json_object_spec(True, place), place)
        case "json_schema":
            given = form if where == place else _object(form, "json_schema", place)
            if given is None:
                raise SpecError(f"{where}: is missing", param=where)
            return _schema(given, "schema", where)
        case other:
            raise _unknown(other, allowed, f"{place}/type")


def _schema(fields: Fields, name: str, place: str) -> OutputConstraint:
    where = f"{place}/{name}"
    if fields.get(name) is None:
        raise SpecError(f"{where}: is missing", param=where)
    if not isinstance(fields[name], dict):
        raise unexpected("a JSON Schema (an object)", fields[name], where)
    return OutputConstraint(json_spec(fields[name], where), where, flag(fields, "strict", place))


def _structured_outputs(fields: Fields, place: str = "") -> OutputConstraint | None:
    given = _object(fields, "structured_outputs", place)
    where = f"{place}/structured_outputs".lstrip("/")
    return None if given is None else OutputConstraint(*from_fields(given, where))


def _responses(fields: Fields) -> Iterator[OutputConstraint]:
    choice = _openai_choice(fields)
    calls = list(_tool_calls(fields, choice, _responses_tools))
    if not (choice.required and calls):
        text = _object(fields, "text")
        form, place = None if text is None else _object(text, "format", "text"), "text/format"
        if form is None:
            kept = _structured_outputs(fields)
            place = "" if kept is None else kept.place
        elif fields.get("structured_outputs") is not None:
            words = f"structured_outputs beside {place}: leave one out"
            raise SpecError(words, param="structured_outputs")
        else:
            kept = _format(form, place, "text, json_object or json_schema", place)
        if kept is not None:
            yield kept
        yield from _guided(fields, place)
    yield from calls


def _messages(fields: Fields) -> Iterator[OutputConstraint]:
    choice = _anthropic_choice(fields)
    calls = list(_tool_calls(fields, choice, _anthropic_tools))
    if not (choice.required and calls):
        config = _object(fields, "output_config")
        form = None if config is None else _object(config, "format", "output_config")
        if form is not None and form.get("schema") is not None:
            yield _schema(form, "schema", "output_config/format")
    yield from calls


def _generate(fields: Fields) -> Iterator[OutputConstraint]:
    params = _object(fields, "sampling_params")
    asked = None if params is None else _structured_outputs(params, "sampling_params")
    if asked is not None:
        yield asked


_READERS: tuple[tuple[str, Reader], ...] = (
    ("/chat/completions", _chat),
    ("/chat/completions/batch", _chat),
    ("/completions", _text),
    ("/responses", _responses),
    ("/messages", _messages),
    ("/generate", _generate),
)
_WITH_BEAMS = (_chat, _text)


def _guided(fields: Fields, instead: str = "") -> list[OutputConstraint]:
    """Return the shapes that these fields ask for. None of them is kept if several are given, or
    where `instead` asks for the text's shape."""
    # Up to vLLM 0.11: false is absent there.
    given = [
        name for name in GUIDED if (value := fields.get(name)) is not None and value is not False
    ]
    if len(given) > 1 and not instead:
        return [_free(name, f"{' and '.join(given)}: only one can be kept") for name in given]
    if instead:
        return [_free(name, f"{name}: {instead} is kept instead") for name in given]
    return [_guided_by(fields, name) for name in given]


def _guided_by(fields: Fields, name: str) -> OutputConstraint:
    try:
        options = Options(whitespace_pattern=whitespace_of(fields, WHITESPACE, ""))
        return OutputConstraint(
            MAKERS[GUIDED[name]](fields[name], name, options), name, ignored=True
        )
    except SpecError as e:
        return _free(name, e)


def _free(name: str, why: object) -> OutputConstraint:
    return OutputConstraint(ANY_ARGUMENTS, name, ignored=True).freed(why)


def in_vllms_words(fields: Fields, asked: Sequence[OutputConstraint]) -> dict[str, Any] | None:
    """Return the same request with `structured_outputs`; None if none of these fields is kept."""
    name = next((each.place for each in asked if each.ignored and not each.free), None)
    if name is None:
        return None
    value = fields[name]
    if name == "structural_tag" and not isinstance(value, str):
        value = json.dumps(value)  # vLLM takes its text alone
    outputs = {GUIDED[name]: value}
    if fields.get(WHITESPACE) is not None:
        outputs["whitespace_pattern"] = fields[WHITESPACE]
    kept = {key: each for key, each in fields.items() if key not in (*GUIDED, WHITESPACE)}
    return {**kept, "structured_outputs": outputs}


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolChoice:
    """The tools that a request may or must call. `names` None: any. `known`: one that must be
    called is among the tools, or vLLM refuses the request."""

    required: bool = False
    none: bool = False
    names: frozenset[str] | None = None
    known: bool = True


def _openai_choice(fields: Fields) -> _ToolChoice:
    """Chat's and Responses': a tool is named in `function` there, in the choice itself here."""
    choice = fields.get("tool_choice", "auto")
    if isinstance(choice, str):
        return _ToolChoice(required=choice == "required", none=choice not in ("auto", "required"))
    if choice is None:
        return _ToolChoice(none=True)
    if not isinstance(choice, dict):
        raise unexpected("a string or an object", choice, "tool_choice")
    if choice.get("type") == "allowed_tools":
        return _allowed(choice)
    named = choice.get("function", choice)
    name = named.get("name") if isinstance(named, dict) else None
    if choice.get("type", "function") not in ("function", "custom"):
        return _ToolChoice(none=True)  # a tool of the server's own
    if not isinstance(name, str):
        raise unexpected("a tool's name", name, "tool_choice/function/name")
    return _ToolChoice(required=True, names=frozenset({name}))


def _allowed(choice: Fields) -> _ToolChoice:
    given = choice.get("allowed_tools", choice)  # chat has it one level deeper
    tools = given.get("tools") if isinstance(given, dict) else None
    if not isinstance(tools, list):
        raise unexpected("an array", tools, "tool_choice/tools")
    names = (_name_of(tool) for tool in tools if isinstance(tool, dict))
    return _ToolChoice(
        required=given.get("mode") == "required",
        names=frozenset(name for name in names if isinstance(name, str)),
        known=False,  # vLLM does not look
    )


def _name_of(tool: Fields) -> object:
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, dict) else None


def _anthropic_choice(fields: Fields) -> _ToolChoice:
    choice = _object(fields, "tool_choice")
    match None if choice is None else choice.get("type"):
        case None | "auto":
            return _ToolChoice()
        case "any":
            return _ToolChoice(required=True)
        case "none":
            return _ToolChoice(none=True)
        case "tool":
            assert choice is not None
            name = choice.get("name")
            if not isinstance(name, str):
                raise unexpected("a tool's name", name, "tool_choice/name")
            return _ToolChoice(required=True, names=frozenset({name}))
        case other:
            raise _unknown(other, "auto, any, tool or none", "tool_choice/type")


class _Tool(NamedTuple):
    name: str
    strict: bool
    schema: object  # of its arguments; None: any object
    place: str  # of the schema
    local_name: str = ""  # in its namespace: a choice may name it so, too


def _tool_calls(
    fields: Fields, choice: _ToolChoice, read: Callable[[Fields, str], Iterator[_Tool]]
) -> Iterator[OutputConstraint]:
    """Asked for each tool whose arguments have a shape. Raises SpecError, also when the tool that
    must be called is not there."""
    tools = fields.get("tools")
    if not tools or choice.none:
        return
    if not isinstance(tools, list):
        raise unexpected("an array", tools, "tools")
    found, left = False, MAX_TOOLS_BYTES
    for i, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise unexpected("an object", tool, f"tools/{i}")
        for each in read(tool, f"tools/{i}"):
            if choice.names is not None and choice.names.isdisjoint((each.name, each.local_name)):
                continue
            found = True
            if choice.required or each.strict:
                asked = _arguments(each, left)
                left -= 0 if asked.free else max(len(asked.spec.text), _TOOL_BYTES)
                yield asked
    if choice.required and choice.known and not found:
        raise SpecError(
            "tool_choice: a call is required, but no such tool is in `tools`", param="tool_choice"
        )


def _arguments(tool: _Tool, left: int) -> OutputConstraint:
    """Return the shape of a tool's arguments. None and `{}` are any object. Free where its schema
    has more than so many bytes. Raises SpecError for what vLLM does not take either, and for what
    no strict schema can be."""
    asked, schema = OutputConstraint(ANY_ARGUMENTS, tool.place, tool.strict, tool.name), tool.schema
    if not schema and (schema is None or isinstance(schema, dict)):
        return asked
    if not isinstance(schema, dict):
        raise unexpected("a JSON Schema (an object)", schema, tool.place)
    try:
        return replace(asked, spec=json_spec(schema, tool.place, most=left))
    except TooLongError:
        most = f"{tool.place}: the schemas of all tools have more than {MAX_TOOLS_BYTES} bytes"
        return asked.freed(most)
    except SpecError as e:
        if not asked.may_be_free:
            raise
        return asked.freed(e)


def _chat_tools(tool: Fields, place: str) -> Iterator[_Tool]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise unexpected("an object", function, f"{place}/function")
    yield _function(function, f"{place}/function")


def _function(function: Fields, place: str, schema: str = "parameters") -> _Tool:
    name = function.get("name")
    if not isinstance(name, str):
        raise unexpected("a string", name, f"{place}/name")
    return _Tool(name, flag(function, "strict", place), function.get(schema), f"{place}/{schema}")


def _responses_tools(tool: Fields, place: str) -> Iterator[_Tool]:
    """Functions and, named by both names, those in namespaces. A custom tool takes free text;
    others run on the server."""
    if tool.get("type") == "function":
        yield _function(tool, place)
    elif tool.get("type") == "custom" and isinstance(tool.get("name"), str):
        yield _Tool(tool["name"], False, _CUSTOM, place)
    elif tool.get("type") == "namespace" and isinstance(tool.get("tools"), list):
        for j, inner in enumerate(tool["tools"]):
            if isinstance(inner, dict) and inner.get("type") == "function":
                own = _function(inner, f"{place}/tools/{j}")
                full_name = f"{tool.get('name')}__{own.name}"
                yield own._replace(name=full_name, local_name=own.name)


# What vLLM shows a custom tool as (tool_parsers/utils.py `custom_tool_parameters`).
_CUSTOM = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "The freeform text payload for this tool."}
    },
    "required": ["input"],
    "additionalProperties": False,
}


def _anthropic_tools(tool: Fields, place: str) -> Iterator[_Tool]:
    """Anthropic's own tools (web search and such) have a `type` and no schema."""
    if "input_schema" not in tool:
        return
    schema = tool["input_schema"]
    if isinstance(schema, dict) and "type" not in schema:
        schema = {**schema, "type": "object"}  # as vLLM does
    yield _function(tool, place, "input_schema")._replace(schema=schema)


def _object(fields: Fields, name: str, place: str = "") -> Fields | None:
    """Null is absent, as OpenAI's clients send."""
    value = fields.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise unexpected("an object", value, f"{place}/{name}".lstrip("/"))


def _unknown(value: object, allowed: str, place: str) -> SpecError:
    shown = repr(value) if isinstance(value, str) and len(value) < 40 else "something else"
    return SpecError(f"{place}: expected {allowed}, got {shown}", param=place)


WANTED = (
    "send an object with a `kind` and a `text`, or the fields of a request that ask for a shape, "
    "for example `response_format`"
)


def read_specs(fields: Fields) -> list[OutputConstraint]:
    """Return the specs of a body of /v1/structured/{explain,warm}, at least one: it is a request
    of /v1/chat/completions or /v1/responses, or of the path that a `path` beside it names, or the
    fields of one that ask for a shape; or `{"kind": "regex", "text": "[a-z]+", "options": {...},
    "strict": true}`. What else is in it does not matter. Raises InvalidRequestError if it asks for
    none, SpecError for what cannot be read."""
    if "kind" in fields:
        return [_spelled_out(fields)]
    is_response = "input" in fields or "text" in fields
    path = fields.get("path", "/v1/responses" if is_response else "/v1/chat/completions")
    asked = parse_constraints(path, fields) if isinstance(path, str) else []
    if not asked:
        raise InvalidRequestError(f"the body asks for no shape; {WANTED}")
    return asked


def _spelled_out(fields: Fields) -> OutputConstraint:
    kind, text, options = fields["kind"], fields.get("text", ""), fields.get("options") or {}
    if kind not in list(Kind):
        got = repr(kind[:40]) if isinstance(kind, str) else json_type(kind)
        words = f"kind: expected one of {', '.join(Kind)}, got {got}"
        raise InvalidRequestError(words, param="kind")
    if not isinstance(text, str):
        raise InvalidRequestError(f"text: expected a string, got {json_type(text)}", param="text")
    if not isinstance(options, dict) or not set(options) <= set(Options.__slots__):
        names = ", ".join(Options.__slots__)
        words = f"options: expected an object with no other keys than {names}"
        raise InvalidRequestError(words, param="options")
    try:
        given = msgspec.convert(options, Options)
    except msgspec.ValidationError as e:
        raise InvalidRequestError(f"options: {e}", param="options") from None
    value: object = True if kind == Kind.JSON_OBJECT else text  # read as in a request
    return OutputConstraint(
        MAKERS[kind](value, "text", given), "text", fields.get("strict") is True
    )
