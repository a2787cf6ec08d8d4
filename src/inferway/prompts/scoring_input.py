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
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Protocol

import msgspec
from jinja2.defaults import DEFAULT_NAMESPACE

from inferway.errors import HeavyError, RenderError
from inferway.model import Reason, TokenIds
from inferway.openai_api.scores import ScoreRequest
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.render_requests import Encoding
from inferway.prompts.renderer import encode
from inferway.prompts.tokenizer.token_rows import TruncationSide, truncated
from inferway.prompts.tokenizer.tokenizer import Tokenizer

# Arguments of the call that renders, which vLLM refuses or does not hand to the template.
_NOT_FOR_TEMPLATES = {
    *("model_config", "tokenizer", "conversation", "chat_template", "tools", "documents"),
    *("add_generation_prompt", "continue_final_message", "tokenize", "padding", "truncation"),
    *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    *("tokenizer_kwargs", "messages", "self", *DEFAULT_NAMESPACE),
}
_MAX_CUTS = 8  # of one text; vLLM cuts it until it has no more tokens than it may

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
    truncation_side: TruncationSide | None

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


@dataclass(frozen=True, slots=True)
class Joiner:
    """Makes prompts with a model's tokenizer and the template of its engines' --chat-template.
    `keep`: the tokens that are left of a prompt; `max_chars`: a longer text has too many."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    keep: int | None
    max_chars: int | None

    def prompts(self, scored: Scored, join: Join) -> list[TokenIds]:
        """Return the ids of each prompt. Raises RequestError or RenderError."""
        first = self._within(scored.first, scored.max_tokens_per_query)
        second = self._within(scored.second, scored.max_tokens_per_doc)
        side = scored.truncation_side
        if join is Join.APART:
            return [self._encoded(text, side, self.max_chars) for text in (*first, *second)]
        # vLLM cuts the tokens alone, not the text before them
        most = self.max_chars if self.keep is None else None
        queries = first * len(second) if len(first) == 1 else first
        pairs = zip(queries, second, strict=True)
        if join is Join.PAIR:
            return [self._pair(*pair, side, most) for pair in pairs]
        if join is Join.JOINED:
            return [self._encoded(a + b, side, most) for a, b in pairs]
        return [self._encoded(self._rendered(*pair, scored), side, most) for pair in pairs]

    def _within(self, texts: list[str], most: int) -> list[str]:
        return [self._cut(text, most) for text in texts] if most else texts

    def _cut(self, text: str, most: int) -> str:
        """The text up to so many tokens (scoring/utils.py, `truncate_text_to_tokens`)."""
        for _ in range(_MAX_CUTS):
            ids, offsets = self.tokenizer.encode_with_offsets(text, add_special_tokens=False)
            if len(ids) <= most:
                return text
            end = min(int(offsets[most - 1][1]), int(offsets[most][0]))
            text = text[: min(end, len(text) - 1)]
        raise left("max_tokens_per_query, max_tokens_per_doc: the engine cuts the text many times")

    def _encoded(self, text: str, side: TruncationSide | None, most: int | None) -> TokenIds:
        encoding = Encoding(
            add_special_tokens=True,
            truncate_prompt_tokens=self.keep if side else None,
            truncation_side=side,
            max_chars=most,
        )
        ids = encode(self.tokenizer, text, encoding, param="documents").input_ids
        return self._kept(ids, side)

    def _pair(
        self, first: str, second: str, side: TruncationSide | None, most: int | None
    ) -> TokenIds:
        if not second:  # transformers makes no pair of it
            return self._encoded(first, side, most)
        if most is not None and len(first) + len(second) > most:
            raise left("documents: longer than the model's context")
        return self._kept(self.tokenizer.encode_pair(first, second), side)

    def _rendered(self, first: str, second: str, scored: Scored) -> str:
        if self.template is None:
            raise left("no chat template of the engine's is known")
        arguments = scored.arguments
        if not _NOT_FOR_TEMPLATES.isdisjoint(arguments):
            raise left("chat_template_kwargs: an argument that is not for templates")
        chat = ChatInput(
            [{"role": "query", "content": first}, {"role": "document", "content": second}],
            add_generation_prompt=False,
            variables={**self.tokenizer.special_tokens, **arguments},
        )
        try:
            return self.template.render(chat)
        except HeavyError as e:
            raise left("the chat template takes too much for these texts") from e

    def _kept(self, ids: TokenIds, side: TruncationSide | None) -> TokenIds:
        """By a tokenizer's default the side is the model's own, and special tokens are kept."""
        if side is None and self.keep is not None and len(ids) > self.keep:
            raise left("truncate_prompt_tokens: which tokens are kept, the engine says")
        return truncated(ids, self.keep, side)


def left(why: str) -> RenderError:
    """Return the error that leaves a request to the engine."""
    return RenderError(why, reason=Reason.EMBEDDINGS)
