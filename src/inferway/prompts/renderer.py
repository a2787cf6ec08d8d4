"""Chat or text -> the token ids that the engine will see. The prompts room as a library.

    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest("org/model"))
    renderer.render_chat(RenderChatRequest(key, [{"role": "user", "content": "Hi"}])).input_ids

Names are those of transformers' `apply_chat_template`. Every method may be called from any
thread. The `*_async` twins answer small requests at once and take large ones to a thread, so
that nobody's text keeps the event loop from its other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from inferway.errors import InvalidRequestError, RenderError
from inferway.model import Reason, TokenIds
from inferway.prompts.chat_template import ChatInput, ChatTemplate, Message, Span
from inferway.prompts.hub import fetch_model_files
from inferway.prompts.model_files import ModelFiles, read_model_files
from inferway.prompts.tokenizer import Offsets, Tokenizer

# Above these many characters a request leaves the event loop. Measured on two shared cores:
# fastokens takes 0.4-1.2 ms for 64,000 new characters, HF 1.5 ms for 4,000.
MAX_CHARS_ON_LOOP = {"fastokens": 64_000, "tokenizers": 4_000}


@dataclass(frozen=True, slots=True)
class GetOrCreateTokenizerKeyRequest:
    """`model`: a hub id, a model's directory, or the path of its tokenizer.json."""

    model: str
    is_local: bool = False
    revision: str | None = None
    token: str | None = field(default=None, repr=False)
    download_dir: str | None = None

    @property
    def key(self) -> str:
        return f"{self.model}:{self.revision or 'main'}:{self.is_local}"


@dataclass(frozen=True, slots=True)
class RenderChatRequest:
    """`conversation` is what the template sees; `chat_template` is Jinja, or a template's name."""

    key: str
    conversation: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    return_assistant_tokens_mask: bool = False
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None  # None: true, unless the final message is continued
    chat_template_kwargs: Mapping[str, Any] | None = None
    truncate_prompt_tokens: int | None = None  # keep the last so many
    add_special_tokens: bool = False  # the template writes them
    return_offsets_mapping: bool = False


@dataclass(frozen=True, slots=True)
class RenderRequest:
    key: str
    text: str
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None  # keep the last so many
    return_offsets_mapping: bool = False


@dataclass(frozen=True, slots=True)
class RenderResult:
    """`offset_mapping` is in characters of `text`; it and `assistant_mask` only if asked for."""

    input_ids: TokenIds
    text: str
    offset_mapping: Offsets | None = None
    assistant_mask: NDArray[np.uint8] | None = None


class LoadedModel:
    """One model's tokenizer and compiled templates."""

    def __init__(self, files: ModelFiles) -> None:
        self.own_renderer = files.own_renderer
        self.tokenizer = Tokenizer(files)
        self._sources = files.templates
        self._compiled: dict[str, ChatTemplate] = {}
        # Compiling takes milliseconds that no request should wait for; a template that does not
        # compile is told to those who use it.
        for source in self._sources.values():
            with contextlib.suppress(RenderError):
                self._compile(source)

    @property
    def template_names(self) -> list[str]:
        return sorted(self._sources)

    def template(self, given: str | None = None, *, with_tools: bool = False) -> ChatTemplate:
        """The template `given` by name or as Jinja, else the model's own for such a chat."""
        if given is not None:
            source = self._sources.get(given)
            return self._compile(source) if source is not None else ChatTemplate(given)
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            known = f"; named ones: {sorted(self._sources)}" if self._sources else ""
            raise RenderError(f"the model has no chat template{known}", reason=Reason.NO_TEMPLATE)
        return self._compile(self._sources[name])

    def _compile(self, source: str) -> ChatTemplate:
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = ChatTemplate(source)
        return template


_Request = TypeVar("_Request", RenderChatRequest, RenderRequest)


class Renderer:
    """Loads each model once, whoever asks; owns the threads for large requests: close it."""

    def __init__(self, *, num_threads: int = 2, hub: str | None = None) -> None:
        self._hub = hub  # None: HF_ENDPOINT
        self._models: dict[tuple[str, str], Future[LoadedModel]] = {}
        self._by_key: dict[str, LoadedModel] = {}
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="render")
        self.num_off_loop = 0  # requests that were too large for the event loop

    def close(self) -> None:
        """Ends the threads; what they are at is finished first."""
        self._threads.shutdown(wait=True)

    def get_or_create_tokenizer_key(self, request: GetOrCreateTokenizerKeyRequest) -> str:
        """Raises RenderError if the model's files cannot be had. A model that was loaded with a
        token is loaded anew for a caller with another token, or none: the hub decides."""
        credential = hashlib.sha256((request.token or "").encode()).hexdigest()
        slot = (request.key, credential)
        with self._lock:
            loading = self._models.get(slot)
            mine = loading is None
            if loading is None:
                loading = self._models[slot] = Future()
        if mine:
            self._load(request, slot, loading)
        model = loading.result()
        self._by_key.setdefault(request.key, model)
        return request.key

    def _load(
        self,
        request: GetOrCreateTokenizerKeyRequest,
        slot: tuple[str, str],
        loading: Future[LoadedModel],
    ) -> None:
        try:
            loading.set_result(LoadedModel(read_model_files(_locate(request, self._hub))))
        except BaseException as e:
            # The next caller tries again; those who wait now get this error.
            with self._lock:
                del self._models[slot]
            loading.set_exception(e)

    async def get_or_create_tokenizer_key_async(
        self, request: GetOrCreateTokenizerKeyRequest
    ) -> str:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.get_or_create_tokenizer_key, request)

    def loaded(self, key: str) -> LoadedModel:
        """Raises InvalidRequestError for a key that `get_or_create_tokenizer_key` did not give."""
        model = self._by_key.get(key)
        if model is None:
            raise InvalidRequestError(
                f"key: {key!r} is not loaded; get one from get_or_create_tokenizer_key", param="key"
            )
        return model

    def render_chat(self, request: RenderChatRequest) -> RenderResult:
        """Raises InvalidRequestError, TemplateError (naming the field) or RenderError."""
        model = self.loaded(request.key)
        _check_chat(request)
        template = model.template(request.chat_template, with_tools=request.tools is not None)
        chat = chat_input(request, model.tokenizer.special_tokens)
        spans: list[Span] | None = None
        if request.return_assistant_tokens_mask:
            text, spans = template.render_with_spans(chat)
        else:
            text = template.render(chat)
        return _encode(model.tokenizer, text, request, spans)

    def render(self, request: RenderRequest) -> RenderResult:
        """Raises InvalidRequestError."""
        model = self.loaded(request.key)
        _check_truncation(request.truncate_prompt_tokens)
        return _encode(model.tokenizer, request.text, request, None)

    async def render_chat_async(self, request: RenderChatRequest) -> RenderResult:
        return await self._on_or_off_loop(self.render_chat, request, _conversation_chars(request))

    async def render_async(self, request: RenderRequest) -> RenderResult:
        return await self._on_or_off_loop(self.render, request, len(request.text))

    async def _on_or_off_loop(
        self, render: Callable[[_Request], RenderResult], request: _Request, num_chars: int
    ) -> RenderResult:
        if num_chars <= MAX_CHARS_ON_LOOP[self.loaded(request.key).tokenizer.encoder]:
            return render(request)
        self.num_off_loop += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, render, request)


def _locate(request: GetOrCreateTokenizerKeyRequest, hub: str | None) -> Path:
    path = Path(request.model).expanduser()
    if request.is_local or path.exists():
        if not path.exists():
            raise RenderError(f"model {request.model!r}: no such path", reason=Reason.NO_TOKENIZER)
        return path
    return fetch_model_files(
        request.model,
        revision=request.revision,
        token=request.token,
        download_dir=request.download_dir,
        endpoint=hub,
    )


def _check_chat(request: RenderChatRequest) -> None:
    if not request.conversation:
        raise InvalidRequestError("conversation: must not be empty", param="conversation")
    if request.return_assistant_tokens_mask and request.continue_final_message:
        raise InvalidRequestError(
            "return_assistant_tokens_mask: cannot be combined with continue_final_message",
            param="return_assistant_tokens_mask",
        )
    _check_truncation(request.truncate_prompt_tokens)


def _check_truncation(truncate_prompt_tokens: int | None) -> None:
    if truncate_prompt_tokens is not None and truncate_prompt_tokens < 0:
        raise InvalidRequestError(
            f"truncate_prompt_tokens: must not be negative, got {truncate_prompt_tokens}",
            param="truncate_prompt_tokens",
        )


def chat_input(request: RenderChatRequest, special_tokens: Mapping[str, str]) -> ChatInput:
    """What the template sees: the request's own variables win over special tokens."""
    add_generation_prompt = request.add_generation_prompt
    if add_generation_prompt is None:
        add_generation_prompt = not request.continue_final_message
    return ChatInput(
        messages=request.conversation,
        tools=request.tools,
        documents=request.documents,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=request.continue_final_message,
        variables={**special_tokens, **(request.chat_template_kwargs or {})},
    )


def _encode(
    tokenizer: Tokenizer,
    text: str,
    request: RenderChatRequest | RenderRequest,
    spans: list[Span] | None,
) -> RenderResult:
    add_special, keep_last = request.add_special_tokens, request.truncate_prompt_tokens
    if not request.return_offsets_mapping and spans is None:
        ids = tokenizer.encode(text, add_special_tokens=add_special, keep_last=keep_last)
        return RenderResult(ids, text)
    ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=add_special)
    mask = None if spans is None else _mask(offsets, spans)
    if keep_last is not None:
        first = max(0, len(ids) - keep_last)
        ids, offsets, mask = ids[first:], offsets[first:], None if mask is None else mask[first:]
    return RenderResult(ids, text, offsets if request.return_offsets_mapping else None, mask)


def _mask(offsets: Offsets, spans: list[Span]) -> NDArray[np.uint8]:
    """1 for each token that has a character inside a span."""
    mask = np.zeros(len(offsets), dtype=np.uint8)
    starts, ends = offsets[:, 0], offsets[:, 1]
    for start, end in spans:
        mask[(starts < end) & (ends > start)] = 1
    return mask


def _conversation_chars(request: RenderChatRequest) -> int:
    """How much text a template has to write, roughly."""
    total = 0
    for message in request.conversation:
        content = message.get("content")
        total += len(content) if isinstance(content, str) else _text_chars(content)
        if "tool_calls" in message:
            total += _text_chars(message["tool_calls"])
    return total + _text_chars(request.tools) + _text_chars(request.documents)


def _text_chars(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_text_chars, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_text_chars, value))
    return 0
