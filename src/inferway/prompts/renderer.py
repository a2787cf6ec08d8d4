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
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakSet

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
    GetOrCreateTokenizerKeyRequest,
    RenderChatRequest,
    RenderRequest,
    RenderResult,
    chat_input,
    check_chat,
    check_truncation,
)
from inferway.prompts.tokenizer.token_rows import assistant_mask, truncated
from inferway_structured.sandbox.sandbox import SandboxStats

if TYPE_CHECKING:
    from inferway.prompts.loaded_model import LoadedModel
    from inferway.prompts.tokenizer.tokenizer import Tokenizer

# Above these many characters a request leaves the event loop. Measured on two shared cores:
# fastokens takes 0.4-1.2 ms for 64,000 new characters, HF 1.5 ms for 4,000.
MAX_CHARS_ON_LOOP = {"fastokens": 64_000, "tokenizers": 4_000}

# But of a growing chat most of the tokens are known, and the way to a thread and back costs 60 to
# 300 µs of CPU: what should be rendered in this time is, and leaves the event loop only if much of
# its text is new.
MAX_SECONDS_ON_LOOP = 0.001

MAX_WAITERS = 16  # several times as many as may wait for one model's process

# The simulator's model comes with this distribution: it is not tried first.
_OURS = Path(__file__).resolve().parents[2] / "inferway_sim"


class _Written(NamedTuple):
    """A chat as its template has written it; `spans` if an assistant mask is asked for."""

    request: RenderChatRequest
    text: str
    spans: list[Span] | None = None


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
        self._paces: defaultdict[str, RenderTime] = defaultdict(RenderTime)  # by key
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
        try:
            return self._encoded(self._written(request))
        except HeavyError:
            return self._encoded(_Written(request, self._heavy_text(request)))

    def _written(self, request: RenderChatRequest) -> _Written:
        _, template, chat = self._looked_up(request)
        if request.return_assistant_tokens_mask:
            return _Written(request, *template.render_with_spans(chat))
        return _Written(request, template.render(chat))

    def _encoded(self, written: _Written) -> RenderResult:
        request = written.request
        tokenizer = self.loaded(request.key).tokenizer
        return _encode(tokenizer, written.text, request, written.spans)

    def chat_text(self, request: RenderChatRequest) -> str:
        """The text alone. Raises as `render_chat` does."""
        _, template, chat = self._looked_up(request)
        try:
            return template.render(chat)
        except HeavyError:
            return self._heavy_text(request)

    def _heavy_text(self, request: RenderChatRequest) -> str:
        """Return what a helper process renders, for which the thread waits."""
        template, job = self._job(request)
        return self.large_chats.render_now(job, template)

    def _job(self, request: RenderChatRequest) -> tuple[ChatTemplate, bytes]:
        """Raises RenderError (`our-fault`) for what cannot be done elsewhere."""
        _, template, chat = self._looked_up(request)
        if request.return_assistant_tokens_mask:
            raise RenderError("a helper process makes no mask", reason=Reason.OUR_FAULT)
        return template, pack(template.source, chat)

    def _looked_up(self, request: RenderChatRequest) -> tuple[LoadedModel, ChatTemplate, ChatInput]:
        model = self.loaded(request.key)
        check_chat(request)
        template = model.template(request.chat_template, with_tools=request.tools is not None)
        if template.given_up is not None:
            raise RenderError(template.given_up, reason=Reason.BAD_TEMPLATE)
        return model, template, chat_input(request, model.tokenizer.special_tokens)

    def render(self, request: RenderRequest) -> RenderResult:
        """Render and tokenize the request. Raises InvalidRequestError."""
        model = self.loaded(request.key)
        check_truncation(request.truncate_prompt_tokens)
        return _encode(model.tokenizer, request.text, request, None)

    async def render_chat_async(self, request: RenderChatRequest) -> RenderResult:
        size = body_size((request.conversation, request.tools, request.documents))
        return await self.render_chat_of(request.key, size, lambda: request)

    async def render_chat_of(
        self, key: str, size: BodySize, make: Callable[[], RenderChatRequest]
    ) -> RenderResult:
        """Render the chat that `make` makes of a body of this size, on the event loop, in a thread
        or in a process, whichever keeps other requests from waiting. Returns and raises as
        `render_chat_async`."""
        if size.to_render > MAX_TO_RENDER_HERE:
            return await self._render_large_chat(key, make)
        is_small = self._is_small(key, size.to_render_and_encode)
        try:
            if is_small and not self._is_outside(key):
                return self._encoded(self._written(make()))
            if self._paces[key].foreseen(size.to_render) <= MAX_SECONDS_ON_LOOP:
                return await self._encoded_async(self._timed(key, size, make))
            self.num_off_loop += 1
            return await self._off_loop(lambda: self._encoded(self._timed(key, size, make)), key)
        except HeavyError as e:
            return await self._render_heavy(make, e, mark=is_small)

    def _timed(self, key: str, size: BodySize, make: Callable[[], RenderChatRequest]) -> _Written:
        started = time.thread_time()
        try:
            return self._written(make())
        finally:
            self._paces[key].took(size.to_render, time.thread_time() - started)

    async def _render_heavy(
        self, make: Callable[[], RenderChatRequest], why: HeavyError, *, mark: bool
    ) -> RenderResult:
        """What took too much here, in the helper process. `mark`: it was so little that the
        template is to blame, and others of its chats are not tried here any more."""
        request, (template, job) = await self._off_loop(lambda: self._with_job(make()))
        if mark and template.heavy is None:
            template.heavy = str(why)
        text = await self.large_chats.render(job, template)
        return await self._encoded_async(_Written(request, text))

    async def _render_large_chat(
        self, key: str, make: Callable[[], RenderChatRequest]
    ) -> RenderResult:
        """In the helper process; in a thread what cannot be done there, and what needs the model's
        files."""
        self.num_off_loop += 1
        try:
            request, (_, job) = await self._off_loop(lambda: self._with_job(make()))
            text = await self.large_chats.render(job)
        except RenderError as e:
            if e.reason != Reason.OUR_FAULT:
                raise
            return await self._off_loop(lambda: self.render_chat(make()), key)
        return await self._off_loop(partial(self._encoded, _Written(request, text)), key)

    def _with_job(
        self, request: RenderChatRequest
    ) -> tuple[RenderChatRequest, tuple[ChatTemplate, bytes]]:
        return request, self._job(request)

    async def render_async(self, request: RenderRequest) -> RenderResult:
        return await self.off_loop_if_large(
            request.key, len(request.text), partial(self.render, request)
        )

    async def encode_chat_async(self, request: RenderChatRequest, text: str) -> RenderResult:
        """The result of a chat that was rendered elsewhere."""
        return await self._encoded_async(_Written(request, text))

    async def _encoded_async(self, written: _Written) -> RenderResult:
        request, text = written.request, written.text
        if request.return_offsets_mapping or written.spans is not None:
            size = len(text)
        else:
            size = self.loaded(request.key).tokenizer.num_new_chars(text)
        return await self.off_loop_if_large(request.key, size, partial(self._encoded, written))

    async def off_loop_if_large(self, key: str, size: int, work: Callable[[], _Made]) -> _Made:
        """Return the result of `work`, which reads `size` characters for the model `key`; it runs
        in a thread if that takes long."""
        if self._is_small(key, size) and not self._is_outside(key):
            return work()
        self.num_off_loop += 1
        return await self._off_loop(work, key)

    def _is_small(self, key: str, size: int) -> bool:
        return size <= MAX_CHARS_ON_LOOP[self.loaded(key).tokenizer.encoder]

    def _is_outside(self, key: str) -> bool:
        """Return whether to encode is to wait."""
        return self.loaded(key).tokenizer.is_outside

    async def in_thread(self, work: Callable[[], _Made]) -> _Made:
        """Return the result of `work`, which encodes nothing, worked out in a thread."""
        return await self._off_loop(work)

    async def _off_loop(self, work: Callable[[], _Made], key: str | None = None) -> _Made:
        """`key`: of the model with which `work` encodes, if it does."""
        waits = key is not None and self._is_outside(key)
        threads = self._waiters if waits else self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, work)


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


def _encode(
    tokenizer: Tokenizer,
    text: str,
    request: RenderChatRequest | RenderRequest,
    spans: list[Span] | None,
) -> RenderResult:
    text = _fitting(text, request)
    add_special = request.add_special_tokens
    keep, side = request.truncate_prompt_tokens, request.truncation_side
    if not request.return_offsets_mapping and spans is None:
        keep_last = keep if side is None else None
        ids = tokenizer.encode(text, add_special_tokens=add_special, keep_last=keep_last)
        return RenderResult(ids if side is None else truncated(ids, keep, side), text)
    ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=add_special)
    num_before = tokenizer.num_specials_before if add_special else 0
    ids = truncated(ids, keep, side, num_before)
    offsets = truncated(offsets, keep, side, num_before)
    mask = None if spans is None else assistant_mask(offsets, spans)
    return RenderResult(ids, text, offsets if request.return_offsets_mapping else None, mask)


def _fitting(text: str, request: RenderChatRequest | RenderRequest) -> str:
    """The text to encode, as vLLM cuts or refuses it before it does (renderers/params.py)."""
    longest = request.max_chars
    if longest is None or len(text) <= longest:
        return text
    if request.truncate_prompt_tokens is None:
        raise PromptTooLongError(
            f"This model's maximum context length is exceeded: your prompt contains {len(text)}"
            f" characters (more than {longest} characters, which is the upper bound for its"
            " tokens). Please reduce the length of the input prompt.",
            param="prompt" if isinstance(request, RenderRequest) else "messages",
        )
    if request.truncation_side is None:
        return text
    return text[:longest] if request.truncation_side == "right" else text[len(text) - longest :]


# A moment ago counts more than an hour ago: of what was seen, so much is left with each new chat.
_KEPT = 0.9
# A template may take four times as long for twice as much; nothing is foreseen beyond that.
_TIMES_LARGER = 2


class RenderTime:
    """Predicts how long one model's chats take to render from how long earlier ones took. Any
    thread may call it; of two reports at the same time one may be lost."""

    __slots__ = ("_largest", "_seconds_each")

    def __init__(self) -> None:
        self._largest = 0  # of what was told
        self._seconds_each = 0.0  # the slowest of late

    def took(self, size: int, seconds: float) -> None:
        """A chat of that size, in any unit, has taken so long."""
        self._largest = max(self._largest, size)
        self._seconds_each = max(seconds / size, self._seconds_each * _KEPT)

    def foreseen(self, size: int) -> float:
        """Return the seconds that a chat of this size will take; infinity if it is more than twice
        as large as any chat before."""
        if size > _TIMES_LARGER * self._largest:
            return float("inf")
        return size * self._seconds_each
