"""Chat or text -> the token ids that the engine will see. The prompts room as a library.

    renderer = Renderer()
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest("org/model"))
    renderer.render_chat(RenderChatRequest(key, [{"role": "user", "content": "Hi"}])).input_ids

Names are those of transformers' `apply_chat_template`. Every method may be called from any
thread. The `*_async` twins answer small requests at once and take large ones to a thread, or to
a helper process, so that nobody's text keeps the event loop from its other clients.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakSet

import msgspec

from inferway.errors import (
    HeavyError,
    InvalidRequestError,
    PromptTooLongError,
    RenderError,
)
from inferway.model import Reason
from inferway.prompts.body_size import MAX_TO_RENDER_HERE, BodySize, body_size
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.helper_templates import LargeChats
from inferway.prompts.chat.template_environment import Span
from inferway.prompts.chat.template_jobs import pack
from inferway.prompts.files.model_processes import OutsideEncoder, TrialLoads
from inferway.prompts.files.raw_files import (
    RawFiles,
    fetch_model_files,
    file_versions,
    read_raw_files,
)
from inferway.prompts.freed_memory import give_back_memory
from inferway.prompts.render_requests import (
    Encoding,
    GetOrCreateTokenizerKeyRequest,
    RenderChatRequest,
    RenderRequest,
    RenderResult,
    check_chat,
    check_truncation,
    seen_by_template,
)
from inferway.prompts.tokenizer.token_rows import assistant_mask, truncated
from inferway_structured.sandbox.sandbox import SandboxStats

if TYPE_CHECKING:
    from inferway.prompts.loaded_model import LoadedModel
    from inferway.prompts.tokenizer.tokenizer import Tokenizer

# Of a growing chat most of the tokens are known, and the way to a thread and back costs 60 to
# 300 µs of CPU: what should be rendered in this time is, and leaves the event loop only if much of
# its text is new.
MAX_SECONDS_ON_LOOP = 0.001

MAX_WAITERS = 16  # several times as many as may wait for one model's process

# The simulator's model comes with this distribution: it is not tried first.
_OURS = Path(__file__).resolve().parents[2] / "inferway_sim"


class Rendering(NamedTuple):
    """A chat, the template that writes it, and how its text becomes a model's tokens."""

    model: LoadedModel
    template: ChatTemplate
    chat: ChatInput
    encoding: Encoding
    is_masked: bool = False  # a mask of what the assistant has written is asked for

    def written(self) -> tuple[str, list[Span] | None]:
        """Return the text, and the assistant's places in it for the mask. Raises TemplateError,
        RenderError or HeavyError."""
        self._check()
        if self.is_masked:
            return self.template.render_with_spans(self.chat)
        return self.template.render(self.chat), None

    def packed(self) -> bytes:
        """Return it for a helper process. Raises RenderError (`our-fault`) for what cannot be done
        elsewhere."""
        self._check()
        if self.is_masked:
            raise RenderError("a helper process makes no mask", reason=Reason.OUR_FAULT)
        return pack(self.template.source, self.chat)

    def _check(self) -> None:
        if self.template.given_up is not None:
            raise RenderError(self.template.given_up, reason=Reason.BAD_TEMPLATE)

    def encoded(self, text: str, spans: list[Span] | None = None) -> RenderResult:
        return encode(self.model.tokenizer, text, self.encoding, spans)


_Made = TypeVar("_Made")


class Renderer:
    """Loads each model once, whoever asks; owns the threads and the helper process for large
    requests: close it."""

    def __init__(self, *, num_threads: int = 2, hub: str | None = None) -> None:
        self._hub = hub  # None: HF_ENDPOINT
        self._models: dict[tuple[str, str], Future[LoadedModel]] = {}
        self._versions: dict[tuple[str, str], object] = {}  # of their files, when they were read
        self._by_key: dict[str, LoadedModel] = {}
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="render")
        # Loading takes seconds, or all the time that a trial is given: no request waits for that.
        self._loaders = ThreadPoolExecutor(num_threads, thread_name_prefix="load")
        # Who waits for a process that encodes; many, so that one model's texts hold up no other's.
        self._waiters = ThreadPoolExecutor(MAX_WAITERS, thread_name_prefix="outside")
        self._outside: WeakSet[OutsideEncoder] = WeakSet()
        self.num_off_loop = 0  # requests that were too large for the event loop
        self.large_chats = LargeChats()
        self.trials = TrialLoads()
        self.outside_stats = SandboxStats()  # of all processes that encode
        self._closed = False

    def close(self) -> None:
        """Ends the threads; what they are at is finished first, but for a model's loading."""
        self.trials.close()
        with self._lock:
            self._closed = True
            encoders = list(self._outside)
        for encoder in encoders:
            encoder.close()
        self._loaders.shutdown(wait=True)
        self._waiters.shutdown(wait=True)
        self._threads.shutdown(wait=True)
        self.large_chats.close()

    def get_or_create_tokenizer_key(self, request: GetOrCreateTokenizerKeyRequest) -> str:
        """Raises RenderError if the model's files cannot be had. A model that was loaded with a
        token is loaded anew for a caller with another token, or none: the hub decides. So is one
        whose directory has other files than when it was loaded: it takes the place of what was
        there under its key; if they cannot be read, the next caller tries again."""
        credential = hashlib.sha256((request.token or "").encode()).hexdigest()
        slot = (request.key, credential)
        versions = file_versions(request.model)
        with self._lock:
            loading = self._models.get(slot)
            is_stale = loading is not None and self._versions[slot] != versions
            mine = loading is None or is_stale
            if loading is None or is_stale:
                loading = self._models[slot] = Future()
                self._versions[slot] = versions
        if mine:
            self._load(request, slot, loading)
        model = loading.result()
        if is_stale:
            self._by_key[request.key] = model
        self._by_key.setdefault(request.key, model)
        return request.key

    def _load(
        self,
        request: GetOrCreateTokenizerKeyRequest,
        slot: tuple[str, str],
        loading: Future[LoadedModel],
    ) -> None:
        # Tokenizers' libraries are 5 MiB that a gateway without a model of its own need not have.
        from inferway.prompts.loaded_model import load_model

        try:
            path = _locate(request, self._hub)
            raw = read_raw_files(path, follows_links=request.follows_links)
            if not path.resolve().is_relative_to(_OURS):
                self.trials.check(raw)
            loading.set_result(load_model(raw, self._start_outside))
        except BaseException as e:
            # The next caller tries again; those who wait now get this error.
            with self._lock:
                del self._models[slot]
            loading.set_exception(e)
        give_back_memory()

    def _start_outside(self, raw: RawFiles) -> OutsideEncoder:
        encoder = OutsideEncoder(raw, self.outside_stats)
        with self._lock:
            self._outside.add(encoder)
            closed = self._closed
        if closed:
            encoder.close()
        encoder.wait_until_loaded()
        return encoder

    async def get_or_create_tokenizer_key_async(
        self, request: GetOrCreateTokenizerKeyRequest
    ) -> str:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._loaders, self.get_or_create_tokenizer_key, request)

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
        return self.rendered(self._rendering(request))

    def _rendering(self, request: RenderChatRequest) -> Rendering:
        model = self.loaded(request.key)
        check_chat(request)
        template = model.template(request.chat_template, with_tools=request.tools is not None)
        chat = seen_by_template(request, model.tokenizer.special_tokens)
        return Rendering(model, template, chat, request, request.return_assistant_tokens_mask)

    def rendered(self, rendering: Rendering) -> RenderResult:
        """Render here; for a chat that takes too much here, wait for a helper process. Raises as
        `render_chat` does."""
        try:
            return rendering.encoded(*rendering.written())
        except HeavyError:
            return rendering.encoded(self._heavy_text(rendering))

    def text_of(self, rendering: Rendering) -> str:
        """Return the text alone. Raises as `render_chat` does."""
        try:
            return rendering.written()[0]
        except HeavyError:
            return self._heavy_text(rendering)

    def _heavy_text(self, rendering: Rendering) -> str:
        """Return what a helper process renders, for which the thread waits."""
        return self.large_chats.render_now(rendering.packed(), rendering.template)

    def render(self, request: RenderRequest) -> RenderResult:
        """Render and tokenize the request. Raises InvalidRequestError."""
        model = self.loaded(request.key)
        check_truncation(request.truncate_prompt_tokens)
        encoding = msgspec.convert(request, Encoding, from_attributes=True)
        return encode(model.tokenizer, request.text, encoding, param="prompt")

    async def render_chat_async(self, request: RenderChatRequest) -> RenderResult:
        size = body_size((request.conversation, request.tools, request.documents))
        make = partial(self._rendering, request)
        return await self.render_chat_of(self.loaded(request.key), size, make)

    async def render_chat_of(
        self, model: LoadedModel, size: BodySize, make: Callable[[], Rendering]
    ) -> RenderResult:
        """Render the chat that `make` makes of a body of this size, on the event loop, in a thread
        or in a process, whichever keeps other requests from waiting. Returns and raises as
        `render_chat_async`."""
        if size.to_render > MAX_TO_RENDER_HERE:
            return await self._render_large_chat(model, make)
        is_small = model.tokenizer.is_quick(size.to_render_and_encode)
        try:
            if is_small and not model.tokenizer.is_outside:
                rendering = make()
                return rendering.encoded(*rendering.written())
            if model.render_time.foreseen(size.to_render) <= MAX_SECONDS_ON_LOOP:
                rendering, written = _timed(model, size, make)
                return await self.encode_async(model, rendering.encoding, *written)
            self.num_off_loop += 1
            return await self.in_thread(partial(_encoded_timed, model, size, make), model)
        except HeavyError as e:
            rendering, job = await self.in_thread(partial(_with_job, make))
            # It was so little that the template is to blame: others of its chats are not tried
            # here any more.
            if is_small and rendering.template.heavy is None:
                rendering.template.heavy = str(e)
            text = await self.large_chats.render(job, rendering.template)
            return await self.encode_async(model, rendering.encoding, text)

    async def _render_large_chat(
        self, model: LoadedModel, make: Callable[[], Rendering]
    ) -> RenderResult:
        """Render in the helper process; in a thread what cannot be done there, and what needs the
        model's files."""
        self.num_off_loop += 1
        try:
            rendering, job = await self.in_thread(partial(_with_job, make))
            text = await self.large_chats.render(job)
        except RenderError as e:
            if e.reason != Reason.OUR_FAULT:
                raise
            return await self.in_thread(lambda: self.rendered(make()), model)
        return await self.in_thread(partial(rendering.encoded, text), model)

    async def render_async(self, request: RenderRequest) -> RenderResult:
        return await self.off_loop_if_large(
            self.loaded(request.key), len(request.text), partial(self.render, request)
        )

    async def encode_async(
        self, model: LoadedModel, encoding: Encoding, text: str, spans: list[Span] | None = None
    ) -> RenderResult:
        """Return the result of a chat that has been rendered."""
        tokenizer = model.tokenizer
        is_new = encoding.return_offsets_mapping or spans is not None
        size = len(text) if is_new else tokenizer.num_new_chars(text)
        work = partial(encode, tokenizer, text, encoding, spans)
        return await self.off_loop_if_large(model, size, work)

    async def off_loop_if_large(
        self, model: LoadedModel, size: int, work: Callable[[], _Made]
    ) -> _Made:
        """Return the result of `work`, which reads `size` characters for the model; it runs in a
        thread if that takes long."""
        if model.tokenizer.is_quick(size) and not model.tokenizer.is_outside:
            return work()
        self.num_off_loop += 1
        return await self.in_thread(work, model)

    async def in_thread(self, work: Callable[[], _Made], model: LoadedModel | None = None) -> _Made:
        """Return the result of `work`, worked out in a thread; `model`: the one with whose
        tokenizer it encodes, if it does."""
        waits = model is not None and model.tokenizer.is_outside
        threads = self._waiters if waits else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, work)


def _timed(
    model: LoadedModel, size: BodySize, make: Callable[[], Rendering]
) -> tuple[Rendering, tuple[str, list[Span] | None]]:
    started = time.thread_time()
    try:
        rendering = make()
        return rendering, rendering.written()
    finally:
        model.render_time.took(size.to_render, time.thread_time() - started)


def _encoded_timed(
    model: LoadedModel, size: BodySize, make: Callable[[], Rendering]
) -> RenderResult:
    rendering, written = _timed(model, size, make)
    return rendering.encoded(*written)


def _with_job(make: Callable[[], Rendering]) -> tuple[Rendering, bytes]:
    rendering = make()
    return rendering, rendering.packed()


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


def encode(
    tokenizer: Tokenizer,
    text: str,
    encoding: Encoding,
    spans: list[Span] | None = None,
    *,
    param: str = "messages",
) -> RenderResult:
    """Return a text's tokens. Raises InvalidRequestError for `param`, the field with the text."""
    text = _fitting(text, encoding, param)
    add_special = encoding.add_special_tokens
    keep, side = encoding.truncate_prompt_tokens, encoding.truncation_side
    if not encoding.return_offsets_mapping and spans is None:
        keep_last = keep if side is None else None
        ids = tokenizer.encode(text, add_special_tokens=add_special, keep_last=keep_last)
        return RenderResult(ids if side is None else truncated(ids, keep, side), text)
    ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=add_special)
    num_before = tokenizer.num_specials_before if add_special else 0
    ids = truncated(ids, keep, side, num_before)
    offsets = truncated(offsets, keep, side, num_before)
    mask = None if spans is None else assistant_mask(offsets, spans)
    return RenderResult(ids, text, offsets if encoding.return_offsets_mapping else None, mask)


def _fitting(text: str, encoding: Encoding, param: str) -> str:
    """The text to encode, as vLLM cuts or refuses it before it does (renderers/params.py)."""
    longest = encoding.max_chars
    if longest is None or len(text) <= longest:
        return text
    if encoding.truncate_prompt_tokens is None:
        raise PromptTooLongError(
            f"This model's maximum context length is exceeded: your prompt contains {len(text)}"
            f" characters (more than {longest} characters, which is the upper bound for its"
            " tokens). Please reduce the length of the input prompt.",
            param=param,
        )
    if encoding.truncation_side is None:
        return text
    return text[:longest] if encoding.truncation_side == "right" else text[len(text) - longest :]
