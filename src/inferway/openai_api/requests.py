"""bytes -> a typed request. Parsed once; unknown fields are kept beside the typed ones.

A request is a disjoint union: `ChatRequest | CompletionRequest`, chosen by the path it came
to. Only what we act on is typed; everything else stays in `ParsedRequest.fields` and in the
original bytes, which are what the engine gets. Field names and defaults are those of vLLM
0.32 (entrypoints/openai/*/protocol.py). A null is an absent field, as OpenAI's clients send.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

import msgspec

from inferway.errors import InvalidRequestError

JsonObject = dict[str, Any]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What we act on of a `/v1/chat/completions` body."""

    model: str
    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    documents: list[JsonObject] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None  # absent: true
    continue_final_message: bool | None = None  # absent: false
    add_special_tokens: bool | None = None  # absent: false, the template writes them
    reasoning_effort: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None  # absent: left, the last tokens are kept
    cache_salt: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What we act on of a `/v1/completions` body."""

    model: str
    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool | None = None  # absent: true
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None  # absent: left, the last tokens are kept
    cache_salt: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt of the request, text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(item, int) for item in self.prompt):
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]


Body = ChatRequest | CompletionRequest
BodyT = TypeVar("BodyT", ChatRequest, CompletionRequest)


class ParsedRequest(msgspec.Struct, Generic[BodyT], frozen=True):
    """The typed body, and all of the body's fields as they came."""

    body: BodyT
    fields: JsonObject


def parse_chat(raw: bytes) -> ParsedRequest[ChatRequest]:
    """Raises InvalidRequestError naming the field."""
    fields = _decode(raw)
    body = _convert(fields, ChatRequest)
    if not body.messages:
        raise InvalidRequestError("messages: must not be empty", param="messages")
    for i, message in enumerate(body.messages):
        role = message.get("role")
        if not isinstance(role, str):
            param = f"messages[{i}].role"
            found = "nothing" if role is None else f"`{_json_type(role)}`"
            raise InvalidRequestError(f"{param}: expected `str`, got {found}", param=param)
        _check_content(message.get("content"), f"messages[{i}].content")
    return ParsedRequest(body, fields)


def parse_completion(raw: bytes) -> ParsedRequest[CompletionRequest]:
    """Raises InvalidRequestError naming the field."""
    fields = _decode(raw)
    body = _convert(fields, CompletionRequest)
    if not isinstance(body.prompt, str):
        kinds = {type(item) for item in body.prompt}
        if len(kinds) != 1:
            what = "must not be empty" if not kinds else "must not mix text and token ids"
            raise InvalidRequestError(f"prompt: {what}", param="prompt")
    return ParsedRequest(body, fields)


def _check_content(content: object, param: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequestError(
            f"{param}: expected text or a list of parts, got `{_json_type(content)}`", param=param
        )
    for j, part in enumerate(content):
        if not isinstance(part, dict | str):
            where = f"{param}[{j}]"
            raise InvalidRequestError(
                f"{where}: expected an object, got `{_json_type(part)}`", param=where
            )


def _decode(raw: bytes) -> JsonObject:
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequestError(f"body: not valid JSON: {e}") from e
    if not isinstance(fields, dict):
        raise InvalidRequestError(f"body: expected a JSON object, got `{_json_type(fields)}`")
    return fields


_T = TypeVar("_T")


def _convert(fields: JsonObject, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as e:
        raise _field_error(str(e)) from e


# msgspec: "Expected `str`, got `int` - at `$.messages[0].role`", "Object missing required
# field `model`"; the path in front and in OpenAI's spelling.
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<name>\w+)`$")


def _field_error(text: str) -> InvalidRequestError:
    match = _AT.match(text)
    assert match is not None
    what, where = match["what"], match["where"] or ""
    missing = _MISSING.match(what)
    if missing:
        where = f"{where}.{missing['name']}" if where else missing["name"]
        what = "required field is missing"
    return InvalidRequestError(f"{where}: {what[0].lower()}{what[1:]}", param=where or None)


def _json_type(value: object) -> str:
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
