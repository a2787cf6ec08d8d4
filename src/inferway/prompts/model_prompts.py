"""A request's body -> the token ids of its prompts, for one model: what the director calls."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from inferway.config import ModelSettings
from inferway.errors import (
    InferwayError,
    InvalidRequestError,
    RenderError,
    UnknownMediaError,
    crash_report,
    panic_as_error,
)
from inferway.model import ContextLengths, Reason, TokenIds, Tokenized
from inferway.openai_api.requests import (
    COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    PromptBody,
)
from inferway.openai_api.token_ids import token_ids
from inferway.prompts.body_size import BodySize, body_size, check_length
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.content_format import ContentFormat, TemplateFacts
from inferway.prompts.chat.conversation import (
    NO_FLAGS,
    asked_template,
    brings_template,
    chat_input,
    forwarded_ids,
    sees_tools,
    untrusted_template,
)
from inferway.prompts.chat.helper_templates import RequestTemplates
from inferway.prompts.chat.messages_input import (
    MessageRules,
    as_chat,
    disables_thinking,
    has_inline_system,
)
from inferway.prompts.chat.template_jobs import pack
from inferway.prompts.fidelity import other_flags
from inferway.prompts.media.chat_media import ChatMedia
from inferway.prompts.render_requests import (
    Encoding,
    GetOrCreateTokenizerKeyRequest,
    RenderResult,
)
from inferway.prompts.renderer import Renderer, Rendering, encode
from inferway.prompts.score_prompts import Joiner
from inferway.prompts.scoring_input import Join, Scored, left
from inferway.prompts.served import LocalPrompts, ModelSource, NoPrompts, PromptSource
from inferway.prompts.tokenizer.token_rows import truncated
from inferway.prompts.version_rules import OLDER_RULES, VersionRules

log = logging.getLogger("inferway")

# Of one request: keys and matches are made on the event loop, about 10 µs for each prompt.
MAX_PROMPTS = 256
# What writing a pair with a template, or putting it together, takes beside encoding it.
CHARS_EACH_SCORE = 1000


class ModelPrompts:
    """Turns requests for one model into token ids: by its tokenizer and templates (`key` of
    `renderer`), its context length in tokens (None: unknown, then no prompt is too long) and the
    flags of its engines. Raises RenderError for a template that cannot be had."""

    def __init__(
        self,
        renderer: Renderer,
        key: str,
        max_model_len: int | None = None,
        *,
        flags: ModelSettings = NO_FLAGS,
        request_templates: RequestTemplates | None = None,
        max_prompts: int | None = MAX_PROMPTS,
    ) -> None:
        self._renderer = renderer
        self._model = renderer.loaded(key)
        self._media = ChatMedia(
            self._model.tokenizer, self._model.media_rule, self._model.sound_rule
        )
        self.max_model_len = max_model_len
        self._least_model_len = max_model_len  # where engines differ, that of the least
        self._rules = OLDER_RULES
        self._set_flags(flags)
        self._request_templates = request_templates  # None: they are not trusted
        self._max_prompts = max_prompts  # None: as many as a request has

    def _set_flags(self, flags: ModelSettings) -> None:
        self._flags = flags
        given = flags.chat_template
        template = None if given is None else self._model.engine_template(given)
        self._given_template = template
        # One among the engine's own arguments counts where nothing else gives one.
        argument = flags.chat_template_kwargs.get("chat_template")
        self._argument_template = (
            self._model.template(argument) if isinstance(argument, str) else None
        )
        self._message_rules = MessageRules(
            [template] if template is not None else self._model.templates_of_chats(),
            self._text_of_probe,
        )

    @property
    def num_panics(self) -> int:
        """The number of texts on which the model's tokenizer has panicked."""
        return self._model.tokenizer.num_panics

    @property
    def local(self) -> ModelPrompts:
        return self

    @property
    def media(self) -> ChatMedia:
        """The reader of pictures and other media in the model's chats."""
        return self._media

    @property
    def reads_clock(self) -> bool:
        """True if the model's template writes the current time."""
        return any(template.reads_clock for template in self._templates())

    @property
    def chat_fault(self) -> RenderError | None:
        """The error that keeps chats from being rendered here, or None."""
        try:
            self._check_own_renderer()
            if self._given_template is None:
                self._model.template()
        except RenderError as e:
            return e
        return None

    def within(self, contexts: ContextLengths, rules: VersionRules) -> ModelPrompts:
        """Return the same prompts for engines with these context lengths and rules."""
        other = copy.copy(self)
        other._rules = rules
        other.max_model_len, other._least_model_len = contexts.most, contexts.least
        return other

    @property
    def made_of(self) -> tuple[object, ...]:
        """The loaded files: equal where they are the same."""
        return self._model, self._given_template

    def _check_own_renderer(self) -> None:
        if self._model.own_renderer is not None:
            raise RenderError(
                f"chats of this model are rendered by vLLM's own code ({self._model.own_renderer})",
                reason=Reason.OWN_RENDERER,
            )

    @property
    def encoder(self) -> tuple[str, str]:
        """The name of the encoder, and why it is this one."""
        return self._model.tokenizer.encoder, self._model.tokenizer.why

    def decode(self, ids: TokenIds | Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of `ids`."""
        return self._model.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def encode(self, text: str) -> TokenIds:
        """Return the ids of a text, without special tokens around it."""
        return self._model.tokenizer.encode(text, add_special_tokens=False)

    def alternatives(self, model: str) -> Iterator[tuple[str, str, PromptSource]]:
        """Yield flags that its engines may have been started with instead: each with the setting of
        ours that mirrors it, and the same model under it. `model` is its name in the setting."""
        variables = {name for template in self._templates() for name in template.variables()}
        names = self._model.template_names
        for flag, cure, flags in other_flags(model, self._flags, variables, names):
            other = copy.copy(self)
            other._set_flags(flags)
            yield flag, cure, other

    def _templates(self) -> list[ChatTemplate]:
        if self._given_template is not None:
            return [self._given_template]
        found = []
        for name in (None, *self._model.template_names):
            with contextlib.suppress(RenderError):  # who uses it is told
                found.append(
                    self._model.template() if name is None else self._model.named_template(name)
                )
        return found

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        """Return the chat that engines make of messages. Raises RenderError."""
        rules = self._message_rules
        effort = rules.no_thinking_effort
        if effort is None and disables_thinking(body):
            effort = await self._renderer.in_thread(rules.find_no_thinking_effort)
        merge = has_inline_system(body) and rules.merges_inline_system()
        return as_chat(body, merge_inline_system=merge, no_thinking_effort=effort or "none")

    async def tokenize(self, body: PromptBody) -> Tokenized:
        """The client's fault is a RequestError that names the
        field; what we cannot do, although the engine may, is a RenderError."""
        if body.prompt_field == "messages":
            return await self._tokenize_chat(body)
        if body.prompt_embeds is not None:
            raise RenderError("prompt_embeds: they have no token ids", reason=Reason.MEDIA)
        if body.suffix is not None:
            raise RenderError("suffix: the engine joins it on", reason=Reason.OWN_RENDERER)
        self._check_max_tokens("max_tokens", body.max_tokens)
        max_tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        keep = self._kept_tokens(body, max_tokens)
        size = _completion_size(body)
        make = partial(self._completion_ids, body, keep)
        return Tokenized(await self._renderer.off_loop_if_large(self._model, size, make))

    async def tokenize_scores(self, scored: Scored, join: Join) -> list[TokenIds]:
        """Return the ids of each prompt that such engines make of texts which are compared. Raises
        as `tokenize` does."""
        self._check_number(len(scored.first) + len(scored.second), "documents")
        limit = self._least_model_len
        if limit is not None and limit <= scored.most_tokens_of_a_text:
            raise left("max_tokens_per_query, max_tokens_per_doc: no less than the context")
        keep = self._kept_tokens(scored, 0)
        joiner = Joiner(self._model.tokenizer, self._given_template, keep, self._max_chars)
        make = partial(joiner.prompts, scored, join)
        if scored.most_tokens_of_a_text:  # by another encoder, which may have to be unpacked
            found = await self._renderer.in_thread(make, self._model)
        else:
            size = scored.num_chars + CHARS_EACH_SCORE * len(scored.second)
            found = await self._renderer.off_loop_if_large(self._model, size, make)
        for ids in found:
            self._check_length(len(ids), "documents")
        return found

    async def _tokenize_chat(self, body: ChatRequest) -> Tokenized:
        forwarded = forwarded_ids(body)
        if forwarded is not None:
            make = partial(_as_ids, forwarded, "kv_transfer_params.prompt_token_ids")
            ids = await self._renderer.off_loop_if_large(self._model, len(forwarded), make)
            self._check_length(len(ids), "messages")
            return Tokenized([ids])
        try:
            return Tokenized([(await self.render_chat(body)).input_ids])
        except RenderError as e:
            if e.reason != Reason.MEDIA or self._model.media_first or brings_template(body):
                raise
        size = _chat_size(body).to_render_and_encode
        found = await self._renderer.off_loop_if_large(
            self._model, size, partial(self._with_media, body)
        )
        limit = self.max_model_len
        if limit is not None and len(found.token_ids[0]) >= limit:
            raise UnknownMediaError("the prompt is too long: the engine says so", found.names)
        return found

    def _with_media(self, body: ChatRequest) -> Tokenized:
        """Return what is known of a chat with parts that are not text: at least one token."""
        content_format = self._wanted(body, *self._template(body))
        # Where the prompt is cut at its start, even its first token depends on its media.
        is_cut = body.truncate_prompt_tokens is not None
        return self._media.tokenized(body, content_format, self._text, is_cut=is_cut)

    async def before_expansion(self, body: ChatRequest) -> TokenIds:
        """Return the tokens that a chat has before its pictures are put in. Raises RenderError."""

        def make() -> TokenIds:
            content_format = self._wanted(body, *self._template(body))
            return self._media.before_expansion(body, content_format, self._text)

        size = _chat_size(body).to_render_and_encode
        return await self._renderer.off_loop_if_large(self._model, size, make)

    async def render_chat(self, body: ChatRequest) -> RenderResult:
        """Return the chat as text and ids. Raises as `tokenize` does."""
        self._check_own_renderer()
        budget = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        max_tokens = getattr(body, budget)
        self._check_max_tokens(budget, max_tokens)
        source = self._brought_template(body)
        if source is None:
            make = partial(self._rendering, body, max_tokens)
            result = await self._renderer.render_chat_of(self._model, _chat_size(body), make)
        else:
            result = await self._render_brought(body, source, max_tokens)
        self._check_length(len(result.input_ids), "messages")
        return result

    def _rendering(self, body: ChatRequest, max_tokens: int | None = None) -> Rendering:
        template, is_argument = self._template(body)
        chat = self._chat_input(body, template, is_argument=is_argument)
        return Rendering(self._model, template, chat, self._encoding(body, max_tokens))

    def _chat_input(
        self, body: ChatRequest, template: TemplateFacts, *, is_argument: bool
    ) -> ChatInput:
        wanted = self._wanted(body, template, is_argument)
        tokens = self._model.tokenizer.special_tokens
        return chat_input(body, template, wanted, flags=self._flags, special_tokens=tokens)

    def _encoding(self, body: ChatRequest, max_tokens: int | None) -> Encoding:
        return Encoding(
            add_special_tokens=bool(body.add_special_tokens),
            truncate_prompt_tokens=self._kept_tokens(body, max_tokens),
            truncation_side=body.truncation_side,
            max_chars=self._max_chars,
        )

    def _brought_template(self, body: ChatRequest) -> str | None:
        """The Jinja that the engine renders this chat with, if the request has brought it. Raises
        RenderError if it is not trusted."""
        if not brings_template(body):
            return None
        if self._request_templates is None:
            raise untrusted_template()
        source = asked_template(body, self._flags)
        return None if source is None or self._model.is_name(source) else source

    async def _render_brought(
        self, body: ChatRequest, source: str, max_tokens: int | None
    ) -> RenderResult:
        """In the helper process, but for the tokens."""
        templates = self._request_templates
        assert templates is not None
        template = await templates.template(source)

        def prepared() -> tuple[Encoding, bytes]:
            chat = self._chat_input(body, template, is_argument=not body.chat_template)
            return self._encoding(body, max_tokens), pack(source, chat)

        size = _chat_size(body).to_render_and_encode + len(source)
        encoding, job = await self._renderer.off_loop_if_large(self._model, size, prepared)
        text = await templates.render(job)
        return await self._renderer.encode_async(self._model, encoding, text)

    def rendered_text(self, body: ChatRequest) -> str | None:
        """The chat as its template writes it, for people to read; None if no template does, or
        if it is so large that others would have to wait for it."""
        size = _chat_size(body).to_render_and_encode
        if self._model.own_renderer is not None or not self._model.tokenizer.is_quick(size):
            return None
        try:
            return self._text(body)
        except RenderError:
            return None

    def _text_of_probe(self, body: ChatRequest) -> str:
        self._check_own_renderer()
        return self._text(body)

    def _text(self, body: ChatRequest) -> str:
        if self._brought_template(body) is not None:
            raise untrusted_template()
        return self._renderer.text_of(self._rendering(body))

    def _template(self, body: ChatRequest) -> tuple[ChatTemplate, bool]:
        """The template for a chat that brings none: one that it names, one of the engine's, or the
        model's own; and whether it is one of `chat_template_kwargs`."""
        named = asked_template(body, self._flags) if brings_template(body) else None
        if named is not None:
            return self._model.template(named), not body.chat_template
        if self._given_template is None and self._argument_template is not None:
            return self._argument_template, True
        return self._own_template(body), False

    def _own_template(self, body: ChatRequest) -> ChatTemplate:
        if self._given_template is not None:
            return self._given_template
        return self._model.template(with_tools=sees_tools(body, self._flags))

    def _wanted(
        self, body: ChatRequest, template: TemplateFacts, is_argument: bool
    ) -> ContentFormat:
        """The form of content that the template gets. vLLM finds out what one in
        `chat_template_kwargs` wants from the model's own, and takes it for text where there is none
        (`resolve_chat_template_content_format`)."""
        if not is_argument:
            return self._rules.content_format(self._flags, template)
        own = None
        with contextlib.suppress(RenderError):
            own = self._own_template(body)
        return self._rules.content_format(self._flags, own)

    def _completion_ids(self, body: CompletionRequest, keep: int | None) -> list[TokenIds]:
        prompts = body.prompts
        self._check_number(len(prompts), "prompt")
        return [self._prompt_ids(body, prompt, keep) for prompt in prompts]

    def _check_number(self, number: int, param: str) -> None:
        most = self._max_prompts
        if most is not None and number > most:
            raise RenderError(
                f"{param}: {number} in one request, more than {most} are not looked at",
                reason=Reason.MANY_PROMPTS,
            )

    def _prompt_ids(
        self, body: CompletionRequest, prompt: str | list[int], keep: int | None
    ) -> TokenIds:
        if isinstance(prompt, str):
            encoding = Encoding(
                add_special_tokens=body.add_special_tokens is not False,
                truncate_prompt_tokens=keep,
                truncation_side=body.truncation_side,
                max_chars=self._max_chars,
            )
            ids = encode(self._model.tokenizer, prompt, encoding, param="prompt").input_ids
        else:
            ids = truncated(_as_ids(prompt, "prompt"), keep, body.truncation_side)
        self._check_length(len(ids), "prompt")
        return ids

    @property
    def _max_chars(self) -> int | None:
        """A longer text cannot fit, whatever its tokens."""
        if self.max_model_len is None:
            return None
        return self.max_model_len * self._model.tokenizer.max_chars_per_token

    def _kept_tokens(self, body: PromptBody | Scored, max_tokens: int | None) -> int | None:
        """vLLM: -1 keeps what the context holds, perhaps less one token for the answer."""
        keep, limit = body.truncate_prompt_tokens, self.max_model_len
        if keep is None:
            return None
        if keep < -1 or (limit is not None and keep > limit):
            raise InvalidRequestError(
                f"truncate_prompt_tokens: got {keep}, allowed is -1 to"
                f" {'the model length' if limit is None else limit}",
                param="truncate_prompt_tokens",
            )
        # with a side, vLLM first cuts the text to what its context can hold at most
        if (keep < 0 or body.truncation_side) and limit != self._least_model_len:
            raise RenderError(
                "truncate_prompt_tokens: what is kept depends on the engine's context length, and"
                " the model's engines have different ones",
                reason=Reason.UNKNOWN_CONTEXT_LENGTH,
            )
        if keep >= 0:
            return keep
        if limit is None:
            raise RenderError(
                "truncate_prompt_tokens: -1 needs the model's context length, which is not known",
                reason=Reason.UNKNOWN_CONTEXT_LENGTH,
            )
        return limit - self._rules.leaves_room(max_tokens)

    def _check_max_tokens(self, param: str, max_tokens: int | None) -> None:
        limit = self.max_model_len
        if limit is not None and (max_tokens or 0) > limit:
            raise InvalidRequestError(
                f"{param}={max_tokens} cannot be greater than max_model_len={limit}."
                " Please request fewer output tokens.",
                param=param,
            )

    def _check_length(self, num_tokens: int, param: str) -> None:
        check_length(num_tokens, self.max_model_len, param)


def _completion_size(body: CompletionRequest) -> int:
    prompt = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return 4 * len(prompt)  # in characters to encode; the others are ids, too
    return body_size([prompt]).to_render_and_encode


_NO_OTHERS = (None, None, None)


def _chat_size(body: ChatRequest) -> BodySize:
    others = body.tools, body.documents, body.chat_template_kwargs
    return body_size((body.messages,) if others == _NO_OTHERS else (body.messages, *others))


def _as_ids(prompt: list[int], param: str) -> TokenIds:
    try:
        return token_ids(prompt)
    except (OverflowError, TypeError, ValueError) as e:
        raise InvalidRequestError(
            f"{param}: token ids must be integers from 0 to 4294967295", param=param
        ) from e


async def load_prompts(
    renderer: Renderer, request_templates: RequestTemplates | None, source: ModelSource
) -> PromptSource:
    """Load the model's tokenizer and template. Returns NoPrompts with the reason if they cannot be
    had; the model's requests are then routed by load only."""
    name, root = source.model, source.root
    request = GetOrCreateTokenizerKeyRequest(
        root,
        token=os.environ.get("HF_TOKEN") or None,
        follows_links=source.flags.tokenizer is not None,
    )
    try:
        key = await renderer.get_or_create_tokenizer_key_async(request)
        prompts = ModelPrompts(
            renderer,
            key,
            flags=source.flags,
            request_templates=request_templates,
        )
    except BaseException as raised:  # whatever it is: it is this model's, and others are served
        e = panic_as_error(raised)
        if not isinstance(e, InferwayError):
            log.error("the prompts of model %r could not be set up: %s", name, crash_report(e))
        reason = Reason(e.reason) if isinstance(e, RenderError) else Reason.NO_TOKENIZER
        if reason is Reason.BAD_TEMPLATE:
            return NoPrompts(reason, f"model {name!r}: {e}")
        cure = f"give --tokenizer {name}=PATH"
        return NoPrompts(reason, f"model {name!r}: no tokenizer from {root!r}: {e}; {cure}")
    log.info(
        "model %s has its tokenizer from %s, and the encoder %s (%s)",
        name,
        root,
        *prompts.encoder,
    )
    return prompts


_NOT_YET = NoPrompts(Reason.TOKENIZER_LOADING, "scoring is switched off: no tokenizer is loaded")


class OnDemandPrompts:
    """A PromptSource that loads its model when somebody asks for tokens, where scoring is switched
    off: hardly anybody does, and a tokenizer takes 50 MiB. One that could not be had is tried again
    with the next request."""

    def __init__(self, load: Callable[[], Awaitable[PromptSource]]) -> None:
        self._load = load
        self._loading = asyncio.Lock()
        self._loaded: PromptSource = _NOT_YET

    def within(self, contexts: ContextLengths, rules: VersionRules) -> OnDemandPrompts:
        async def load() -> PromptSource:
            return (await self._load()).within(contexts, rules)

        return OnDemandPrompts(load)

    @property
    def local(self) -> LocalPrompts | None:
        return self._loaded.local

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        """Return the chat that engines make of messages. Raises RenderError."""
        await self._load_once()
        return await self._loaded.chat_of(body)

    async def tokenize(self, body: PromptBody) -> Tokenized:
        """Raises RequestError, or RenderError for reasons of ours."""
        await self._load_once()
        return await self._loaded.tokenize(body)

    async def _load_once(self) -> None:
        if isinstance(self._loaded, NoPrompts):
            async with self._loading:
                if isinstance(self._loaded, NoPrompts):
                    self._loaded = await self._load()
