"""Texts that are compared with each other (`/score`, `/rerank`), as vLLM 0.32's classes have them
(entrypoints/pooling/scoring/protocol.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from inferway.openai_api.read_body import ReadBody, Tokenizing, TokenizingModel


class ScoreRequest(ReadBody, frozen=True, kw_only=True):
    """The fields of a `/score` body that we act on. Whatever is in them, the engine answers."""

    path: ClassVar[str] = "/score"
    # The names of what is compared with what; vLLM takes any of these pairs.
    sides: ClassVar[Sequence[tuple[str, str]]] = (
        *(("text_1", "text_2"), ("queries", "documents")),
        *(("queries", "items"), ("data_1", "data_2")),
    )
    model: str = ""  # absent, null or empty: the engine's own
    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    instruction: Any = None  # the same in `chat_template_kwargs` wins
    chat_template_kwargs: Any = None
    max_tokens_per_query: Any = 0  # 0: all of them
    max_tokens_per_doc: Any = 0
    truncate_prompt_tokens: Any = None
    truncation_side: Any = None
    padding: Any = None
    priority: Any = None  # in the engine's queue
    cache_salt: str | None = None
    stream: ClassVar[None] = None
    vllm_xargs: ClassVar[None] = None

    @property
    def compared(self) -> tuple[list[Any], list[Any]]:
        """The items on either side; none if not exactly one pair of fields names them."""
        values = [(getattr(self, first), getattr(self, second)) for first, second in self.sides]
        given = [pair for pair in values if None not in pair]
        if len(given) != 1:
            return [], []
        first, second = (each if isinstance(each, list) else [each] for each in given[0])
        return first, second

    @property
    def given_prompts(self) -> Sequence[Sequence[Any]]:
        """Each text that is compared."""
        return [text for side in self.compared for text in side if isinstance(text, str)]

    def tokenized_by(self, model: TokenizingModel) -> Tokenizing:
        return model.tokenize_scores(self)


class RerankRequest(ScoreRequest, frozen=True, kw_only=True):
    """The fields of a `/rerank` body that we act on."""

    path: ClassVar[str] = "/rerank"
    sides: ClassVar[Sequence[tuple[str, str]]] = (("query", "documents"),)
    query: Any = None

    @property
    def compared(self) -> tuple[list[Any], list[Any]]:
        """The query and the documents; none of a list of queries, which the engine refuses."""
        return ([], []) if isinstance(self.query, list) else super().compared
