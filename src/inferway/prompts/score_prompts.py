"""Texts that are compared -> the ids of the prompts that engines make of them, for one model."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2.defaults import DEFAULT_NAMESPACE

from inferway.errors import HeavyError
from inferway.model import TokenIds
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.render_requests import Encoding
from inferway.prompts.renderer import encode
from inferway.prompts.scoring_input import Join, Scored, left
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
