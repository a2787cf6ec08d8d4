"""bytes -> a typed request. Parsed once, straight into its type; nothing of it is lost.

A request is a disjoint union, chosen by the path it came to (kinds.py). Outside this room nobody
asks which of its types a body has: each type answers what `ReadBody` names in its own way.

Only what we act on is typed; everything else stays in the original bytes, which are what the
engine gets, and in `LLMRequest.fields` for who asks. Field names and defaults are those of
vLLM 0.32 (entrypoints/openai/*/protocol.py, entrypoints/anthropic/protocol.py and
entrypoints/pooling/*/protocol.py, entrypoints/scale_out/token_in_token_out/protocol.py).
A null is an absent field, as OpenAI's clients send. What an error says of a missing field is
llm-d's (field notes 3.1, 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from inferway.errors import InvalidRequestError
from inferway.model import Tokenized
from inferway.openai_api.generate import GenerateRequest
from inferway.openai_api.lenient import (
    check_messages,
    convert_leniently,
    field_error,
    json_object,
    json_type,
    lax_prompt,
)
from inferway.openai_api.long_strings import LONG_BYTES, shortened
from inferway.openai_api.read_body import JsonObject, ReadBody, Tokenizing, TokenizingModel
from inferway.openai_api.scores import RerankRequest, ScoreRequest
from inferway.openai_api.shapes import Guided
from inferway.openai_api.token_ids import token_ids_in
from inferway_structured.decoding import UNREADABLE

_T = TypeVar("_T")

# Texts that we do not read, and that vLLM sends to its engine core: in a form that has no lone
# surrogates, so that it answers 500, and would be suspected.
_FOR_THE_CORE = ("stop", "vllm_xargs", "request_id", "session_id")
# How Claude Code's first system text begins, which is another one in each request: vLLM drops it.
BILLING_HEADER = "x-anthropic-billing-header"


class _RenderedRequest(Guided, ReadBody, frozen=True, kw_only=True):
    """What chats and completions have in common, which engines render as they are."""

    tells_ids: ClassVar[bool] = True
    for_the_core: ClassVar[tuple[str, ...]] = (*_FOR_THE_CORE, "bad_words")

    model: str = ""  # absent, null or empty: the engine's own
    echo: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None  # in the answer: the prompt's, too
    use_beam_search: bool | None = None
    n: int | None = None
    add_special_tokens: bool | None = None  # absent: false for a chat, whose template writes them
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None  # absent: left, specials are kept
    kv_transfer_params: JsonObject | None = None  # a chat's may carry the prompt's ids
    ec_transfer_params: JsonObject | None = None
    priority: Any = None  # in the engine's queue
    cache_salt: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    vllm_xargs: Any = None  # may ask for a report


class ChatRequest(_RenderedRequest, frozen=True, kw_only=True):
    """The fields of a `/v1/chat/completions` body that we act on."""

    path: ClassVar[str] = "/v1/chat/completions"
    prompt_field: ClassVar[Literal["messages"]] = "messages"  # that engines render
    id_prefix: ClassVar[str] = "chatcmpl"  # of its answers
    prompts: ClassVar[tuple[()]] = ()
    default_answer_limit: ClassVar[int | None] = None
    prompt_embeds: ClassVar[None] = None
    suffix: ClassVar[None] = None
    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    documents: list[JsonObject] | None = None
    chat_template: str | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool | None = None  # absent: true
    continue_final_message: bool | None = None  # absent: false
    reasoning_effort: str | None = None
    return_prompt_text: bool | None = None
    mm_processor_kwargs: JsonObject | None = None
    media_io_kwargs: JsonObject | None = None
    max_completion_tokens: int | None = None

    @property
    def chat(self) -> ChatRequest:
        return self

    @property
    def turns(self) -> Sequence[JsonObject]:
        return self.messages

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        """The contents of each prompt: a text, token ids, or JSON objects."""
        return (self.messages,)

    @property
    def prompt_settings(self) -> tuple[object, ...]:
        return self.tools, self.documents, self.chat_template, self.chat_template_kwargs

    @property
    def answer_limit(self) -> int | None:
        """The newer of its two names wins."""
        most = self.max_completion_tokens
        return self.max_tokens if most is None else most

    def tokenized_by(self, model: TokenizingModel) -> Tokenizing:
        return model.prompts.tokenize(self)


COMPLETION_TOKENS = 16  # vLLM's `max_tokens` of a completion that does not say how many


class CompletionRequest(_RenderedRequest, frozen=True, kw_only=True):
    """The fields of a `/v1/completions` body that we act on."""

    path: ClassVar[str] = "/v1/completions"
    prompt_field: ClassVar[Literal["prompt"]] = "prompt"  # that engines render
    id_prefix: ClassVar[str] = "cmpl"  # of its answers
    default_answer_limit: ClassVar[int | None] = COMPLETION_TOKENS
    max_completion_tokens: ClassVar[None] = None
    tool_choice: ClassVar[None] = None
    prompt: str | list[str | int | list[int]] | None = None  # absent only beside embeddings
    prompt_embeds: Any = None
    suffix: str | None = None
    logprobs: int | None = None

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

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        return self.prompts

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens

    def tokenized_by(self, model: TokenizingModel) -> Tokenizing:
        return model.prompts.tokenize(self)


class ResponsesRequest(ReadBody, frozen=True, kw_only=True):
    """The fields of a `/v1/responses` body that we act on."""

    path: ClassVar[str] = "/v1/responses"
    model: str = ""  # absent, null or empty: the engine's own
    input: str | list[JsonObject] | None = None
    instructions: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    previous_response_id: str | None = None  # known to the engine that gave it
    previous_input_messages: Any = None
    enable_response_messages: bool | None = None  # in the answer: the prompt, too
    text: Any = None  # its format
    structured_outputs: Any = None
    reasoning: JsonObject | None = None
    chat_template_kwargs: JsonObject | None = None
    truncation: str | UnsetType | None = UNSET  # absent: "disabled"; null is like "auto"
    kv_transfer_params: JsonObject | None = None  # may carry the prompt's ids
    ec_transfer_params: JsonObject | None = None
    priority: Any = None  # in the engine's queue
    cache_salt: str | None = None
    max_output_tokens: int | None = None
    background: bool | None = None  # answered at once, and made later
    stream: bool | None = None
    vllm_xargs: Any = None  # may ask for a report
    truncate_prompt_tokens: ClassVar[None] = None
    for_the_core: ClassVar[tuple[str, ...]] = _FOR_THE_CORE

    @property
    def cuts_nothing(self) -> bool:
        """True if an input that is too long is refused."""
        return self.truncation is UNSET or self.truncation == "disabled"

    @property
    def turns(self) -> Sequence[JsonObject] | None:
        """The items of the input; None if it is a text."""
        return self.input if isinstance(self.input, list) else None

    @property
    def repeated_turns(self) -> Sequence[Any]:
        """The instructions, and the items."""
        turns = self.turns
        return () if turns is None else [self.instructions, *turns]

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        """The input: a text, or items."""
        return (self.input or "",)

    @property
    def prompt_settings(self) -> tuple[object, ...]:
        return self.instructions, self.tools, self.chat_template_kwargs

    @property
    def answer_limit(self) -> int | None:
        return self.max_output_tokens

    def tokenized_by(self, model: TokenizingModel) -> Tokenizing:
        return model.tokenize_response(self)


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a `/v1/messages/count_tokens` body that decide its prompt, and of one of
    `/v1/messages` in the same way. What stands in them is read when the prompt is made."""

    model: str = ""  # absent, null or empty: the engine refuses it
    messages: list[JsonObject]
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    thinking: JsonObject | None = None
    output_config: JsonObject | None = None  # an effort, and the answer's shape
    chat_template_kwargs: JsonObject | None = None

    def passed_on(self) -> JsonObject:
        """Return the fields that the chat which engines make of it has unchanged, beside those
        that decide its prompt."""
        return {}


class MessagesRequest(CountTokensRequest, ReadBody, frozen=True, kw_only=True):
    """The fields of a `/v1/messages` body that we act on."""

    path: ClassVar[str] = "/v1/messages"
    tells_length: ClassVar[bool] = True
    kv_transfer_params: JsonObject | None = None  # may carry the prompt's ids
    ec_transfer_params: JsonObject | None = None
    priority: Any = None  # in the engine's queue
    cache_salt: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    vllm_xargs: Any = None  # may ask for a report
    truncate_prompt_tokens: ClassVar[None] = None
    for_the_core: ClassVar[tuple[str, ...]] = ("stop_sequences", "vllm_xargs")

    @property
    def turns(self) -> Sequence[JsonObject]:
        """The messages, without `system`, in which Claude Code has what changes each time."""
        return self.messages

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        return (self.messages,)

    @property
    def prompt_settings(self) -> tuple[object, ...]:
        """The values that set chats apart whose messages are alike, without Claude Code's billing
        header, which is another one in each request."""
        system = self.system
        if isinstance(system, list):
            system = [b for b in system if not str(b.get("text")).startswith(BILLING_HEADER)]
        return system, self.tools, self.chat_template_kwargs

    @property
    def answer_limit(self) -> int | None:
        return self.max_tokens

    def passed_on(self) -> JsonObject:
        """Return the fields that the chat which engines make of it has unchanged, beside those
        that decide its prompt."""
        names = ("kv_transfer_params", "cache_salt", "max_tokens", "stream", "vllm_xargs")
        return {name: getattr(self, name) for name in names}

    async def tokenized_by(self, model: TokenizingModel) -> Tokenized:
        tokenized = await model.prompts.tokenize(await model.prompts.chat_of(self))
        return tokenized.before_media()  # a message's blocks have no `uuid`


class EmbeddingsRequest(ReadBody, frozen=True, kw_only=True):
    """The fields of a `/v1/embeddings` body that we act on: text, token ids or chats, one or
    many."""

    path: ClassVar[str] = "/v1/embeddings"
    model: str = ""  # absent, null or empty: the engine's own
    # Either will do: vLLM takes what it can read of the two, and ignores the other.
    input: Any = None
    messages: Any = None  # vLLM's: a chat or many
    add_special_tokens: bool | None = None  # absent: false for a chat
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: str | None = None
    # Of a chat alone, and read where its prompt is made.
    add_generation_prompt: Any = None  # absent: false
    continue_final_message: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    priority: Any = None  # in the engine's queue
    cache_salt: str | None = None
    stream: ClassVar[None] = None
    vllm_xargs: ClassVar[None] = None

    @property
    def given(self) -> str | list[Any]:
        """The one of them that can be read."""
        return self.input if isinstance(self.input, str | list) else self.messages

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        """Each of what is given: a text, token ids, or a chat."""
        given = self.given
        is_one = isinstance(given, str) or not given or isinstance(given[0], int | dict)
        return [given] if is_one else given

    def is_for(self, task: str | None) -> bool:  # noqa: ARG002
        """Return whether engines whose models have this pooling task make these prompts: where it
        is another one, they do not answer this path."""
        return True

    def tokenized_by(self, model: TokenizingModel) -> Tokenizing:
        return model.tokenize_embeddings(self)


class ClassifyRequest(EmbeddingsRequest, frozen=True, kw_only=True):
    """The fields of a `/classify` body that we act on. Whatever is in them, the engine answers."""

    path: ClassVar[str] = "/classify"
    add_special_tokens: Any = None  # absent: false for a chat
    truncate_prompt_tokens: Any = None
    truncation_side: Any = None
    padding: Any = None

    @property
    def given(self) -> str | list[Any]:
        """The text, the texts, the token ids or the one chat; empty if it is something else."""
        given: Any = super().given
        if isinstance(given, str):
            return given
        is_chat = isinstance(given, list) and any(isinstance(each, dict) for each in given)
        return given if isinstance(given, list) and is_chat == (given is self.messages) else []

    def is_for(self, task: str | None) -> bool:
        return task == "classify"


class PoolingRequest(ClassifyRequest, frozen=True, kw_only=True):
    """The fields of a `/pooling` body that we act on."""

    path: ClassVar[str] = "/pooling"
    task: Any = None  # absent: the engine's own
    data: Any = None  # for a plugin of the engine's

    def is_for(self, task: str | None) -> bool:
        return task is not None and self.data is None and self.task in (None, task)


PromptBody = ChatRequest | CompletionRequest  # whose prompts we derive as they are
Body = (
    PromptBody
    | ResponsesRequest
    | MessagesRequest
    | EmbeddingsRequest
    | ScoreRequest
    | GenerateRequest
)

CHAT, COMPLETION, RESPONSES = ChatRequest.path, CompletionRequest.path, ResponsesRequest.path
MESSAGES, EMBEDDINGS = MessagesRequest.path, EmbeddingsRequest.path
GENERATE = GenerateRequest.path

REPORT_MODE = ("kv_cache_report_mode", "full")  # in `vllm_xargs` (v1/core/kv_cache_manager.py)


def asks_for_report(body: Body) -> bool:
    """Return whether vLLM will publish events again for the blocks that it finds cached."""
    name, value = REPORT_MODE
    return isinstance(body.vllm_xargs, dict) and body.vllm_xargs.get(name) == value


def reads_cache(body: Body) -> bool:
    """Return whether vLLM looks for the prompts in its cache. For log probabilities of the prompt's
    own tokens it computes all of them (SamplingParams.skip_reading_prefix_cache) and stores them as
    usual. A beam search asks for no such probabilities, whatever the body says."""
    if not isinstance(body, PromptBody):
        return not isinstance(body, GenerateRequest) or body.reads_cache
    asked = body.prompt_logprobs is not None
    if not asked and body.echo:
        # a chat's `top_logprobs` is 0 where it is absent or null, and that asks for them
        asked = isinstance(body, ChatRequest) or body.logprobs is not None
    return not asked or body.use_beam_search is True


def tells_its_reuse(body: Body) -> bool:
    """Return whether the `cached_tokens` of vLLM's answer are those of the whole request. Of
    several prompts vLLM tells the tokens of one (the first to begin, or the last), and of several
    answers those of one, whose prompt may have come with another."""
    if not isinstance(body, PromptBody):
        return not isinstance(body, GenerateRequest) or body.n in (None, 1)
    one_prompt = isinstance(body, ChatRequest) or len(body.prompts) == 1
    return one_prompt and body.n in (None, 1)


_NO_MODEL = "model not found in request body"
_NO_PROMPT = "invalid completions request: must have prompt field"
_NO_MESSAGES = "invalid chat completions request: must have valid messages field"
_NO_INPUT = "invalid responses request: must have input field"
_NO_TURNS = "invalid messages request: must have valid messages field"
_NO_TEXTS = "invalid embeddings request: must have input field"
_NO_IDS = "invalid generate request: must have token_ids field"
_NO_PARAMS = "invalid generate request: must have sampling_params field"
_INPUTS = {"input": "str | array | null", "messages": "array | null"}


def parse_chat(raw: bytes) -> ChatRequest:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _CHAT, {"model": _NO_MODEL, "messages": _NO_MESSAGES})
    if not body.messages:
        text = f"{_NO_MESSAGES} (messages: must not be empty)"
        raise InvalidRequestError(text, param="messages")
    if not _are_plain(body.messages):
        check_messages(body.messages)
    return body


def _are_plain(messages: list[JsonObject]) -> bool:
    """Return whether all have a role and text, as most chats do."""
    try:
        for message in messages:
            if type(message["role"]) is not str or type(message["content"]) is not str:
                return False
    except KeyError:
        return False
    return True


def parse_completion(raw: bytes) -> CompletionRequest:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _COMPLETION, {"model": _NO_MODEL, "prompt": _NO_PROMPT})
    if body.prompt is None:
        if body.prompt_embeds is None:
            raise InvalidRequestError(_NO_PROMPT, param="prompt")
    elif not isinstance(body.prompt, str):
        kinds = {type(item) for item in body.prompt}
        if len(kinds) > 1:  # [1, "2"] are ids, there and here
            body = msgspec.structs.replace(body, prompt=lax_prompt(body.prompt))
            kinds = {type(item) for item in body.prompt or ()}
        if len(kinds) != 1:
            what = "must not be empty" if not kinds else "must not mix text and token ids"
            raise InvalidRequestError(f"prompt: {what}", param="prompt")
    return body


def parse_responses(raw: bytes) -> ResponsesRequest:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _RESPONSES, {"model": _NO_MODEL, "input": _NO_INPUT})
    if body.input is None:
        raise InvalidRequestError(_NO_INPUT, param="input")
    return body


def parse_messages(raw: bytes) -> MessagesRequest:
    """Raises InvalidRequestError naming the field."""
    return decode_body(raw, _MESSAGES, {"model": _NO_MODEL, "messages": _NO_TURNS})


def parse_count_tokens(raw: bytes) -> CountTokensRequest:
    """Raises InvalidRequestError naming the field."""
    return decode_body(raw, _COUNT_TOKENS, {"model": _NO_MODEL, "messages": _NO_TURNS})


def parse_embeddings(raw: bytes) -> EmbeddingsRequest:
    """Raises InvalidRequestError naming the field."""
    body = decode_body(raw, _EMBEDDINGS, {"model": _NO_MODEL, "input": _NO_TEXTS})
    if isinstance(body.input, str | list) or isinstance(body.messages, list):
        return body
    for name, value in (("input", body.input), ("messages", body.messages)):
        if value is not None:
            text = f"{_NO_TEXTS} ({name}: expected `{_INPUTS[name]}`, got `{json_type(value)}`)"
            raise InvalidRequestError(text, param=name)
    raise InvalidRequestError(_NO_TEXTS, param="input")


def parse_classify(raw: bytes) -> ClassifyRequest:
    """Raises InvalidRequestError naming the field."""
    return decode_body(raw, _CLASSIFY, {"model": _NO_MODEL})


def parse_pooling(raw: bytes) -> PoolingRequest:
    """Raises InvalidRequestError naming the field."""
    return decode_body(raw, _POOLING, {"model": _NO_MODEL})


def parse_score(raw: bytes) -> ScoreRequest:
    """Raises InvalidRequestError naming the field."""
    return decode_body(raw, _SCORE, {"model": _NO_MODEL})


def parse_rerank(raw: bytes) -> RerankRequest:
    """Raises InvalidRequestError naming the field."""
    return decode_body(raw, _RERANK, {"model": _NO_MODEL})


def parse_generate(raw: bytes) -> GenerateRequest:
    """Raises InvalidRequestError naming the field."""
    required = {"token_ids": _NO_IDS, "sampling_params": _NO_PARAMS}
    body = decode_body(raw, _GENERATE, required)
    if not len(body.token_ids):
        raise InvalidRequestError(f"{_NO_IDS} (token_ids: must not be empty)", param="token_ids")
    if body.reads_cache and body.sampling_params.get("prompt_logprobs") is not None:
        # for tokens from its cache vLLM 0.32 answers what lay in memory, or its server ends
        raise InvalidRequestError(
            "sampling_params.skip_reading_prefix_cache: expected true or absent beside"
            " prompt_logprobs, which engines know of the tokens alone that they compute",
            param="sampling_params",
        )
    return body


_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)
_RESPONSES = msgspec.json.Decoder(ResponsesRequest)
_MESSAGES = msgspec.json.Decoder(MessagesRequest)
_COUNT_TOKENS = msgspec.json.Decoder(CountTokensRequest)
_EMBEDDINGS = msgspec.json.Decoder(EmbeddingsRequest)
_CLASSIFY = msgspec.json.Decoder(ClassifyRequest)
_POOLING = msgspec.json.Decoder(PoolingRequest)
_SCORE = msgspec.json.Decoder(ScoreRequest)
_RERANK = msgspec.json.Decoder(RerankRequest)
_GENERATE = msgspec.json.Decoder(GenerateRequest, dec_hook=token_ids_in)
_FIELDS = msgspec.json.Decoder(JsonObject)

_NOTHING: Mapping[str, str] = {}


def decode_fields(raw: bytes) -> JsonObject:
    """Return all fields of a body that has been parsed before."""
    fields = standard_fields(raw)
    return json_object(raw) if fields is None else fields


def standard_fields(raw: bytes) -> JsonObject | None:
    """Return all fields of a body that is standard JSON in UTF-8; None for any other body."""
    try:
        return _FIELDS.decode(raw)
    except UNREADABLE:
        return None


def decode_body(
    raw: bytes, decoder: msgspec.json.Decoder[_T], required: Mapping[str, str] = _NOTHING
) -> _T:
    """Raises InvalidRequestError naming the field. `required`: what is said when a field is
    missing or of another type."""
    try:
        long = shortened(raw) if len(raw) > LONG_BYTES else None
        if long is not None:
            short = decoder.decode(long.short)
            if isinstance(short, msgspec.Struct) and long.restore(short):
                return short
        return decoder.decode(raw)
    except RecursionError as e:
        raise InvalidRequestError("body: nested too deeply") from e
    except UNREADABLE as e:
        refused = e
    try:
        fields = json_object(raw)
    except InvalidRequestError:
        if isinstance(refused, msgspec.ValidationError):
            raise
        raise InvalidRequestError(f"body: not valid JSON: {refused}") from refused
    kind: Any = decoder.type  # msgspec 0.23 says that it may be more than a class
    try:
        found: _T = convert_leniently(fields, kind, decoder.dec_hook)
        return found
    except msgspec.ValidationError as e:
        raise field_error(str(e), required) from e
