"""Bodies that have been parsed: what all of them have, and what makes token ids of them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from inferway.model import Tokenized

if TYPE_CHECKING:
    from inferway.openai_api.requests import (
        ChatRequest,
        CountTokensRequest,
        EmbeddingsRequest,
        PromptBody,
        ResponsesRequest,
    )
    from inferway.openai_api.scores import ScoreRequest

JsonObject = dict[str, Any]
Tokenizing = Coroutine[Any, Any, Tokenized]


class Tokenizes(Protocol):
    """A part that makes token ids of the bodies that engines render as they are."""

    async def tokenize(self, body: PromptBody) -> Tokenized:
        """Raises RequestError, or RenderError for reasons of ours."""


class CountsMessages(Tokenizes, Protocol):
    """A part that makes token ids of messages, too."""

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        """Return the chat that engines make of messages. Raises RenderError."""


class TokenizingModel(Protocol):
    """A model that makes the token ids of requests of any kind, for `tokenized_by`: that raises
    RequestError, or RenderError if a request cannot be tokenized here."""

    @property
    def prompts(self) -> CountsMessages: ...

    async def tokenize_response(self, body: ResponsesRequest) -> Tokenized: ...
    async def tokenize_embeddings(self, body: EmbeddingsRequest) -> Tokenized: ...
    async def tokenize_scores(self, body: ScoreRequest) -> Tokenized: ...
    def check_length(self, num_tokens: int, param: str) -> None:
        """Raise PromptTooLongError if no engine of the model takes a prompt of so many tokens."""


class ReadBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body that has been parsed. Beside what is here, each kind has `path`, where engines take
    it, `given_prompts` and `tokenized_by`."""

    tells_ids: ClassVar[bool] = False  # engines tell the ids of its prompts (`return_token_ids`)
    tells_length: ClassVar[bool] = False  # engines count the tokens of its prompt (`count_tokens`)
    is_rendered: ClassVar[bool] = True  # a template or a tokenizer makes its prompt

    @property
    def chat(self) -> ChatRequest | None:
        """The body itself if it is a chat that engines render as it is."""
        return None

    @property
    def turns(self) -> Sequence[JsonObject] | None:
        """The messages of a conversation, in their order; None if there are none."""
        return None

    @property
    def repeated_turns(self) -> Sequence[Any]:
        """The turns that a client sends again with the next turn of the conversation, in order;
        without the text that Claude Code changes each time."""
        return self.turns or ()

    @property
    def prompt(self) -> object:
        """The prompt that a client gave, where it gave none in another form."""
        return None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Each prompt that is given as text or token ids."""
        return ()

    @property
    def tools(self) -> Sequence[JsonObject] | None:
        """The tools that the model may call."""
        return None

    @property
    def prompt_settings(self) -> tuple[object, ...]:
        """The values that set prompts apart whose `given_prompts` are alike."""
        return ()

    @property
    def answer_limit(self) -> int | None:
        """The number of tokens that the client allows the answer; None: the engine's own limit."""
        return None
