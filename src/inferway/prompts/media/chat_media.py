"""A chat with pictures or sounds -> its token ids, and the place and name of each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from inferway.errors import RenderError, UnknownMediaError
from inferway.model import MediaSpan, Reason, TokenIds, Tokenized
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.chat.content_format import ContentFormat
from inferway.prompts.chat.conversation import is_media
from inferway.prompts.media.items import MediaItem, MediaItems, modality, names_of
from inferway.prompts.media.learned import LearnedRule
from inferway.prompts.media.rule import (
    Expanded,
    MediaRule,
    Size,
    Span,
    expanded,
    places,
    replaced,
)
from inferway.prompts.media.text_before import as_parts, text_before_media, unknown, written
from inferway.prompts.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("inferway")

_MOST_DOUBTS = 8

Render = Callable[[ChatRequest], str]
Known = tuple[Sequence[MediaItem], Expanded]  # the first items of a prompt, and it as far as known


@dataclass(frozen=True, slots=True)
class _Chat:
    """A chat with media, and how its template writes it."""

    body: ChatRequest
    items: Sequence[MediaItem]
    content_format: ContentFormat
    render: Render


class ChatMedia:
    """The media of one model's chats. `rule`: how its engines write pictures, `sound_rule`: and
    sounds; None: it is not known, and a chat is known up to its first media item. Any thread may
    call it."""

    def __init__(
        self, tokenizer: Tokenizer, rule: MediaRule | None, sound_rule: MediaRule | None = None
    ) -> None:
        self.learned = LearnedRule()  # for models without a rule for pictures
        self._tokenizer = tokenizer
        self._own_rule = rule
        self._sound_rule = sound_rule
        self._items = MediaItems()
        self._doubts = 0  # in a row

    @property
    def _rule(self) -> MediaRule | None:
        return self._own_rule or self.learned.rule

    @property
    def has_rule(self) -> bool:
        """True if the tokens of pictures are known here."""
        return self._rule is not None

    def before_expansion(
        self, body: ChatRequest, content_format: ContentFormat, render: Render
    ) -> TokenIds:
        """Return the tokens that the chat has before its pictures are put in. Raises
        RenderError."""
        if content_format != "openai":
            raise unknown("the text that engines write for a picture is not known")
        text = written(body, render, as_parts)
        return self._tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))

    def confirm(self) -> None:
        """Note that an engine has made of a chat's pictures what the rule says."""
        self._doubts = 0

    def doubt(self) -> None:
        """Note that an engine holds nothing of a chat's pictures, although it holds what stands
        before them: so many times in a row that is no chance."""
        self._doubts += 1
        if self._doubts >= _MOST_DOUBTS:
            self.drop_rule(f"of {_MOST_DOUBTS} chats in a row no engine holds a block of a picture")

    def drop_rule(self, why: str) -> None:
        """Believe the rules no more, because an engine has contradicted one; said once."""
        if self._rule is None and self._sound_rule is None:
            return
        self._own_rule = self._sound_rule = None
        self.learned.end()
        log.error(
            "the rule for media of this model is wrong, and dropped: %s; from now on chats are"
            " known up to their first picture or sound (reason media-prefix). Fix: restart the"
            " gateway once its version of the rule is that of the engines",
            why,
        )

    def tokenized(
        self,
        body: ChatRequest,
        content_format: ContentFormat,
        render: Render,
        *,
        is_cut: bool = False,
    ) -> Tokenized:
        """Return what is known of a chat with media: at least one token. `is_cut`: its end is kept,
        so that nothing is known before all is. Raises UnknownMediaError, with the names that its
        media get all the same."""
        items = self._items.of(body.messages, body.cache_salt)
        names = names_of(items, with_urls=self._rule is not None and not is_cut)
        try:
            if is_cut:
                raise RenderError("the prompt is cut at its start", reason=Reason.MEDIA)
            found = self._with_media(_Chat(body, items, content_format, render))
            if found is None:
                found = Tokenized(
                    [self._before_media(body, content_format, render)], Reason.MEDIA_PREFIX
                )
        except RenderError as e:
            if e.reason != Reason.MEDIA:
                raise
            raise UnknownMediaError(str(e), names) from e
        return msgspec.structs.replace(found, names=names)

    def _before_media(
        self, body: ChatRequest, content_format: ContentFormat, render: Render
    ) -> TokenIds:
        known = text_before_media(body, content_format, render)
        text = known.text if known.whole else known.text[: known.end]
        ids = self._tokenizer.encode_settled(
            text, known.end, add_special_tokens=bool(body.add_special_tokens)
        )
        if not len(ids):
            raise RenderError("nothing is known before the first media part", reason=Reason.MEDIA)
        return ids

    def _with_media(self, chat: _Chat) -> Tokenized | None:
        """Return the chat up to the first item whose tokens are not known; None if the rules say
        nothing of it."""
        body, items = chat.body, chat.items
        if self._own_rule is None and chat.content_format == "openai":
            for each in items:
                if isinstance(each.size, Size):
                    self.learned.want(each.size)
        rules = self._rules_for(items)
        if not rules or body.mm_processor_kwargs or body.media_io_kwargs:
            return None
        ids = self._tokenizer.encode(
            self._text(chat, rules), add_special_tokens=bool(body.add_special_tokens)
        )
        if len(rules) > 1:
            found = in_order(ids, items, rules)
        else:
            found = self._of_one_kind(ids, items, rules[items[0].modality])
        if found is None or not len(found[1][0]):
            return None
        taken, (ids, spans) = found
        reason = Reason.KV_AWARE if len(taken) == len(items) else Reason.MEDIA_PREFIX
        media = [MediaSpan(item.name or "", *span) for item, span in zip(taken, spans, strict=True)]
        return Tokenized([ids], reason, media)

    def _rules_for(self, items: Sequence[MediaItem]) -> dict[str, MediaRule]:
        """Return the rules for all modalities of these items; none if one has no rule."""
        rules: dict[str, MediaRule] = {}
        for kind, rule in (("image", self._rule), ("audio", self._sound_rule)):
            if rule is not None and any(each.modality == kind for each in items):
                rules[kind] = rule
        return rules if all(each.modality in tuple(rules) for each in items) else {}

    def _of_one_kind(
        self, ids: TokenIds, items: Sequence[MediaItem], rule: MediaRule
    ) -> Known | None:
        """Return the items up to the first one whose tokens are not known, and the prompt up to
        there; None if they have no places."""
        known = next((n for n, item in enumerate(items) if tokens_of(item, rule) is None), None)
        if known is not None:
            targets = places(ids, rule.target, len(items))
            if len(targets) <= known or rule.finish is not None:
                return None
            ids, items = ids[: targets[known].offset], items[:known]
        made = expanded(ids, [each.size for each in items if each.size is not None], rule)
        return None if made is None else (items, made)

    def _text(self, chat: _Chat, rules: Mapping[str, MediaRule]) -> str:
        """Return the text that the engine tokenizes, with a placeholder for each item. Raises
        RenderError for a chat that it refuses."""
        if chat.content_format == "openai":
            return written(chat.body, chat.render, as_parts)
        numbered = {name: map(rule.placeholder.format, count(1)) for name, rule in rules.items()}

        def in_front(parts: list[Any]) -> list[Any]:
            return _placeholders_in_front(parts, numbered)

        return written(chat.body, chat.render, in_front)


def _placeholders_in_front(parts: list[Any], numbered: Mapping[str, Iterator[str]]) -> list[Any]:
    """Return a message's parts as vLLM joins them for a template that takes text: placeholders that
    its text lacks stand in front (renderers/chat_utils.py, `_get_full_multimodal_text_prompt`)."""
    texts = [part for part in parts if not is_media(part)]
    kinds = [modality(part) for part in parts if is_media(part)]
    wanted = [
        next(numbered[kind]) for first in dict.fromkeys(kinds) for kind in kinds if kind == first
    ]
    text = "\n".join(
        [part if isinstance(part, str) else str(part.get("text") or "") for part in texts]
    )
    missing: list[str] = []
    for each in dict.fromkeys(wanted):
        more = wanted.count(each) - text.count(each)
        if more < 0:
            raise unknown(f"a text has more {each!r} than media, which engines refuse")
        missing += [each] * more
    return [*missing, *texts]


def tokens_of(item: MediaItem, rule: MediaRule) -> Sequence[int] | None:
    """Return the tokens of an item; None if they are not known."""
    return None if item.name is None or item.size is None else rule.expand(item.size)


def in_order(
    ids: TokenIds, items: Sequence[MediaItem], rules: Mapping[str, MediaRule]
) -> Known | None:
    """Return the items up to the first one whose tokens are not known, and the prompt up to there;
    None if an item has no place.

    The placeholder of each modality is another token. vLLM (0.32, multimodal/processing/
    processor.py, `_plan_prompt_updates`) replaces placeholders in the order of the prompt, each by
    the next item of its modality: a template may write them in another order than the messages.
    """
    found: list[tuple[Span, int]] = []
    for kind, rule in rules.items():
        own = [number for number, item in enumerate(items) if item.modality == kind]
        found += zip(places(ids, rule.target, len(own)), own, strict=False)
    found.sort()
    taken: list[MediaItem] = []
    expansions: list[Sequence[int]] = []
    for place, number in found:
        tokens = tokens_of(items[number], rules[items[number].modality])
        if tokens is None:
            ids = ids[: place.offset]
            break
        taken.append(items[number])
        expansions.append(tokens)
    else:
        if len(taken) < len(items):
            return None
    made = replaced(ids, [place for place, _ in found], expansions)
    return None if made is None else (taken, made)
