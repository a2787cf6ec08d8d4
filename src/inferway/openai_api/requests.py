"""bytes -> a typed request. Parsed once, straight into its type; nothing of it is lost.

A request is a disjoint union: `ChatRequest | CompletionRequest`, chosen by the path it came
to. Only what we act on is typed; everything else stays in the original bytes, which are what
the engine gets, and in `ParsedRequest.fields` for who asks. Field names and defaults are those
of vLLM 0.32 (entrypoints/openai/*/protocol.py). A null is an absent field, as OpenAI's clients
send.
"""

from __future__ import annotations

import re
from typing import Any, Generic, Literal, TypeVar

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
    response_format: Any = None  # Kimi K3's renderer writes it into the prompt
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None  # absent: left, specials are kept
    echo: bool | None = None
    kv_transfer_params: JsonObject | None = None  # may carry the prompt's ids
    cache_salt: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    vllm_xargs: Any = None  # may ask for a report


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What we act on of a `/v1/completions` body."""

    model: str
    prompt: str | list[str | int | list[int]] | None = None  # absent only beside embeddings
    prompt_embeds: Any = None
    suffix: str | None = None
    add_special_tokens: bool | None = None  # absent: true
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None  # absent: left, specials are kept
    cache_salt: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    vllm_xargs: Any = None  # may ask for a report

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt of the request, text or token ids."""
        if self.prompt is None:
            return []
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(item, int) for item in self.prompt):
            return [self.prompt]  # type: ignore[list-item]
        return self.prompt  # type: ignore[return-value]


Body = ChatRequest | CompletionRequest

REPORT_MODE = ("kv_cache_report_mode", "full")  # in `vllm_xargs` (v1/core/kv_cache_manager.py)


def asks_for_report(body: Body) -> bool:
    """Whether vLLM will publish anew what it finds cached for it."""
    name, value = REPORT_MODE
    return isinstance(body.vllm_xargs, dict) and body.vllm_xargs.get(name) == value


BodyT = TypeVar("BodyT", ChatRequest, CompletionRequest)


class ParsedRequest(Generic[BodyT]):
    """The typed body, and the bytes it came from."""

    __slots__ = ("body", "raw")
    body: BodyT
    raw: bytes

    def __init__(self, body: BodyT, raw: bytes) -> None:
        self.body = body
        self.raw = raw

    @property
    def fields(self) -> JsonObject:
        """All fields as they came, those unknown to us among them. Decoded anew: routing needs
        none of them."""
        fields: JsonObject = msgspec.json.decode(self.raw)
        return fields


def parse_chat(raw: bytes) -> ParsedRequest[ChatRequest]:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _CHAT)
    if not body.messages:
        raise InvalidRequestError("messages: must not be empty", param="messages")
    for i, message in enumerate(body.messages):
        plain = type(message.get("role")) is str and type(message.get("content")) is str
        if not plain:
            _check_message(message, f"messages[{i}]")
    return ParsedRequest(body, raw)


def parse_completion(raw: bytes) -> ParsedRequest[CompletionRequest]:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _COMPLETION)
    if body.prompt is None:
        if body.prompt_embeds is None:
            raise InvalidRequestError("prompt: required field is missing", param="prompt")
    elif not isinstance(body.prompt, str):
        kinds = {type(item) for item in body.prompt}
        if len(kinds) != 1:
            what = "must not be empty" if not kinds else "must not mix text and token ids"
            raise InvalidRequestError(f"prompt: {what}", param="prompt")
    return ParsedRequest(body, raw)


def _check_message(message: JsonObject, where: str) -> None:
    role = message.get("role")
    if not isinstance(role, str):
        param = f"{where}.role"
        found = "nothing" if role is None else f"`{_json_type(role)}`"
        raise InvalidRequestError(f"{param}: expected `str`, got {found}", param=param)
    _check_content(message.get("content"), f"{where}.content")


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


_T = TypeVar("_T")
_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)


def decode_body(raw: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
    """Raises InvalidRequestError naming the field."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as e:
        raise _field_error(str(e)) from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise InvalidRequestError(f"body: not valid JSON: {e}") from e


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
    text = f"{where or 'body'}: {what[0].lower()}{what[1:]}"
    return InvalidRequestError(text, param=where or None)


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
