"""A model as clients name it, and how its requests become token ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from inferway.config import ModelSettings
from inferway.errors import RenderError, RequestError
from inferway.model import NO_LENGTHS, ContextLengths, Cut, HolderId, Reason, TokenIds, Tokenized
from inferway.openai_api.read_body import CountsMessages
from inferway.openai_api.requests import (
    ChatRequest,
    CountTokensRequest,
    EmbeddingsRequest,
    PromptBody,
    ResponsesRequest,
)
from inferway.openai_api.scores import ScoreRequest
from inferway.prompts.body_size import check_length
from inferway.prompts.chat.responses_input import as_chat, in_its_fields
from inferway.prompts.embeddings_input import as_prompts, check_uncut
from inferway.prompts.media.chat_media import ChatMedia
from inferway.prompts.scoring_input import NO_POOLING, PoolingFacts, TokenizesScores, left, scored
from inferway.prompts.version_rules import OLDER_RULES, VersionRules


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The files and flags that a model's prompts are made from. Engines with equal sources share
    what is loaded."""

    model: str  # as the engine that was first to serve it calls it
    root: str  # directory, tokenizer.json or hub id
    flags: ModelSettings
    key: str = field(init=False)  # made once: it is compared for each engine whenever one changes

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.root + msgspec.json.encode(self.flags).decode())


class PromptSource(CountsMessages, Protocol):
    """Turns the requests for one model into token ids."""

    def within(self, contexts: ContextLengths, rules: VersionRules) -> PromptSource:
        """Return this source for engines with these context lengths and their version's rules."""

    @property
    def local(self) -> LocalPrompts | None:
        """The part of it that works in this process, with the model's own files; None if there is
        none."""


class LocalPrompts(PromptSource, TokenizesScores, Protocol):
    """Prompts that are made in this process (model_prompts.ModelPrompts)."""

    @property
    def encoder(self) -> tuple[str, str]: ...
    @property
    def num_panics(self) -> int: ...
    @property
    def reads_clock(self) -> bool: ...
    @property
    def chat_fault(self) -> RenderError | None: ...
    @property
    def media(self) -> ChatMedia:
        """The reader of pictures and other media in the model's chats."""

    async def before_expansion(self, body: ChatRequest) -> TokenIds:
        """The tokens that a chat has before its pictures are put in. Raises RenderError."""

    @property
    def made_of(self) -> tuple[object, ...]: ...
    def decode(
        self, ids: TokenIds | Sequence[int], *, skip_special_tokens: bool = False
    ) -> str: ...
    def encode(self, text: str) -> TokenIds: ...
    def rendered_text(self, body: ChatRequest) -> str | None:
        """The chat as its template writes it, for people to read; None if there is none."""

    def alternatives(self, model: str) -> Iterable[tuple[str, str, PromptSource]]: ...


@dataclass(frozen=True, slots=True)
class NoPrompts:
    """A model whose tokenizer we do not have (yet): its requests go by load only."""

    reason: Reason
    why: str

    async def tokenize(self, body: PromptBody) -> Tokenized:  # noqa: ARG002
        raise RenderError(self.why, reason=self.reason)

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:  # noqa: ARG002
        raise RenderError(self.why, reason=self.reason)

    def within(self, contexts: ContextLengths, rules: VersionRules) -> NoPrompts:  # noqa: ARG002
        return self

    @property
    def local(self) -> None:
        return None


def made_here(prompts: PromptSource) -> dict[str, Any]:
    """Return the entry of /ready for a model whose prompts are made in this process."""
    report: dict[str, Any] = {"reason": Reason.KV_AWARE}
    if prompts.local is not None and prompts.local.num_panics:
        times = prompts.local.num_panics
        report["why"] = f"but for {times} texts on which its tokenizer has panicked (bad-tokenizer)"
    return report


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as clients name it."""

    name: str
    prompts: PromptSource
    cuts: Sequence[Cut] = ()  # the distinct ones of the engines that serve it
    lora: str | None = None  # the adapter's name, if it is one
    # Where its engines have the adapter from, and which endpoints have it from there: the place of
    # most of them first. None: they have not told.
    lora_paths: Mapping[str | None, Collection[HolderId]] = field(default_factory=dict)
    unfaithful: str | None = None  # how our tokens differ from an engine's, if the probe saw it
    unfaithful_messages: str | None = None  # the same of messages, where only they differ
    counts_messages: bool = False  # all engines that were asked count their tokens as we do
    contexts: ContextLengths = NO_LENGTHS
    rules: VersionRules = OLDER_RULES  # for its prompts, that its engines have
    # its engines say that they keep prompts, and tell of it
    caches_prefixes: bool = False
    pooling: PoolingFacts = NO_POOLING  # that its engines have in common
    engine_name: str | None = None  # an alias: the name that the engine puts into its answers

    def without_engines(self) -> ServedModel:
        """Return the same model for requests that no engine may hear of: what of their prompts only
        an engine can make is not known."""
        if isinstance(self.prompts, NoPrompts):
            return self
        local = self.prompts.local
        unasked = NoPrompts(Reason.REMOTE_LATE, "an engine makes the prompt, and none is asked")
        return replace(self, prompts=unasked if local is None else local)

    @property
    def lora_path(self) -> str | None:
        """The place that the keys of its prompts are made for."""
        return next(iter(self.lora_paths), None)

    async def tokenize_response(self, body: ResponsesRequest) -> Tokenized:
        """Return the ids of the chat that engines make of a response's input."""
        chat = as_chat(body)
        prompts = self.prompts if isinstance(self.prompts, NoPrompts) else self.prompts.local
        if prompts is None:
            # An engine that is asked renders chats; with renderers of vLLM's own, a response may
            # be rendered otherwise (gpt-oss).
            raise RenderError("its prompts are not made here", reason=Reason.RESPONSE_ITEMS)
        try:
            return (await prompts.tokenize(chat)).before_media()  # its items have no `uuid`
        except RequestError as e:
            raise in_its_fields(e) from e

    async def tokenize_embeddings(self, body: EmbeddingsRequest) -> Tokenized:
        """Return the ids of each prompt, where engines keep them: pooling models with bidirectional
        attention keep none. What we would refuse, the engine says in its words."""
        prompts = self._keeping()
        if not body.is_for(self.pooling.task):
            raise left("task: the engine's is another one, or not known")
        try:
            made = [(await prompts.tokenize(each)).before_media() for each in as_prompts(body)]
        except RequestError as e:
            raise left(str(e)) from e
        partly = (each.reason for each in made if not each.reason.is_whole)
        ids = [each for tokenized in made for each in tokenized.token_ids]
        check_uncut(body, ids)
        return Tokenized(ids, next(partly, Reason.KV_AWARE))

    async def tokenize_scores(self, body: ScoreRequest) -> Tokenized:
        """Return the ids of each prompt that engines make of texts which are compared, where they
        keep them."""
        prompts, join = self._keeping(), self.pooling.join
        if join is None:
            raise left("how its engines join texts that are compared is not known")
        try:
            return Tokenized(await prompts.tokenize_scores(scored(body), join))
        except RequestError as e:
            raise left(str(e)) from e

    def _keeping(self) -> LocalPrompts:
        """Return what makes prompts here that engines keep. Raises RenderError."""
        if not self.caches_prefixes:
            raise left("its engines keep no prompts")
        if isinstance(self.prompts, NoPrompts):
            raise RenderError(self.prompts.why, reason=self.prompts.reason)
        if self.prompts.local is None:
            raise left("its prompts are not made here")
        return self.prompts.local

    def check_length(self, num_tokens: int, param: str) -> None:
        """Raise PromptTooLongError if no engine of the model takes a prompt of so many tokens."""
        check_length(num_tokens, self.contexts.most, param)
