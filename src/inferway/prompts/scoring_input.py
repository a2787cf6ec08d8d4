"""Texts that are compared (`/score`, `/rerank`) -> the prompts that vLLM makes of them.

vLLM (entrypoints/pooling/scoring/io_processor.py) has four ways, and what decides between them are
flags of its own, so that an engine is asked which one it has (fleet/pooling_probe.py):

apart      an embedding model: each text is a prompt, first those of the one side
template   a classifier with --chat-template: a chat of a query and a document
pair       one without: the tokenizer's pair of texts, with the special tokens that it has for them
joined     the same with `use_sep_token: false`: the one text behind the other

Late interaction (`token_embed`) reads no prompt from its cache, nor do other tasks on each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol

import msgspec

from inferway.errors import RenderError
from inferway.model import Reason, TokenIds
from inferway.openai_api.scores import ScoreRequest

_Texts = Annotated[list[str], msgspec.Meta(min_length=1)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]


class Join(StrEnum):
    """The way in which an engine makes prompts of texts that are compared."""

    APART = "apart"
    TEMPLATE = "template"
    PAIR = "pair"
    JOINED = "joined"


class PoolingFacts(msgspec.Struct, frozen=True):
    """The task that an engine's model has at `/pooling`, and its join; None is not known."""

    task: str | None = None
    join: Join | None = None


NO_POOLING = PoolingFacts()


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that decide its prompts, all of them as vLLM reads them."""

    first: _Texts
    second: _Texts
    max_tokens_per_query: _Limit
    max_tokens_per_doc: _Limit
    instruction: str | None
    chat_template_kwargs: dict[str, Any] | None
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The variables of the template beside its messages."""
        given = self.chat_template_kwargs or {}
        return given if self.instruction is None else {"instruction": self.instruction, **given}

    @property
    def num_chars(self) -> int:
        """The characters of all prompts together, if the texts are joined."""
        num_times = len(self.second) if len(self.first) == 1 else 1
        return num_times * sum(map(len, self.first)) + sum(map(len, self.second))

    @property
    def most_tokens_of_a_text(self) -> int:
        """The larger limit of those to which texts are cut before they are joined; 0: none is."""
        return max(self.max_tokens_per_query, self.max_tokens_per_doc)


class TokenizesScores(Protocol):
    """A part that makes the prompts of texts that are compared."""

    async def tokenize_scores(self, scored: Scored, join: Join) -> list[TokenIds]:
        """Return the ids of each prompt that engines with this join make. Raises RequestError, or
        RenderError for reasons of ours."""


def scored(body: ScoreRequest) -> Scored:
    """Raises RenderError for what is left to the engine, be it that it refuses it."""
    if body.padding not in (None, "do_not_pad"):
        raise left("padding: the engine fills the prompt up")
    first, second = body.compared
    names = Scored.__struct_fields__[2:]
    fields = {name: getattr(body, name) for name in names}
    try:
        found = msgspec.convert({"first": first, "second": second, **fields}, Scored)
    except msgspec.ValidationError as e:
        raise left(str(e)) from e
    if len(first) not in (1, len(second)):
        raise left("one text is compared with many, or each with its own")
    return found


def left(why: str) -> RenderError:
    """Return the error that leaves a request to the engine."""
    return RenderError(why, reason=Reason.EMBEDDINGS)
