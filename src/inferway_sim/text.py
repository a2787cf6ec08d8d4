"""Token ids <-> text, as the simulated engine needs it. The model is given from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferway.model import TokenIds
from inferway.openai_api.requests import ChatRequest, CountTokensRequest, PromptBody

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TextModel(Protocol):
    """A model's template and tokenizer, without the model."""

    async def tokenize(self, body: PromptBody) -> list[TokenIds]:
        """Return one array per prompt of the request, as the engine sees it. Raises
        RequestError."""

    async def chat_of(self, body: CountTokensRequest) -> ChatRequest:
        """Return the chat that the engine makes of messages. Raises RequestError, or RenderError
        for what is not simulated."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` as it stands, nothing put around it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens left out."""

    @property
    def eos_token_id(self) -> int:
        """The token that ends a reply which came to its own end."""


class Detokenizer:
    """Turns tokens that come one by one into text, never half a character.

    Some tokens depend on their left neighbour (a leading space), so each piece is the
    difference between two decodings that begin at the last piece that was whole.
    """

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._ids: list[int] = []
        self._start = 0  # both decodings begin here
        self._told = 0  # ids whose text has been handed out

    def add(self, token: int, *, is_last: bool = False) -> str:
        """Return the text that `token` completes; empty while a character is open."""
        self._ids.append(token)
        before = self._model.decode(self._ids[self._start : self._told])
        after = self._model.decode(self._ids[self._start :])
        if after.endswith(_UNFINISHED) and not is_last:
            return ""
        self._start, self._told = self._told, len(self._ids)
        return after[len(before) :]
