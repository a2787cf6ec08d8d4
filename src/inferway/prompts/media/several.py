"""Media of several modalities in one prompt.

The placeholder of each modality is another token. vLLM (0.32, multimodal/processing/processor.py,
`_plan_prompt_updates`) replaces placeholders in the order of the prompt, each by the next item of
its modality: a template may write them in another order than the messages have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferway.model import TokenIds
from inferway.prompts.media.items import MediaItem
from inferway.prompts.media.rule import Expanded, MediaRule, Span, places, replaced

Known = tuple[Sequence[MediaItem], Expanded]  # the first items of a prompt, and it as far as known


def tokens_of(item: MediaItem, rule: MediaRule) -> Sequence[int] | None:
    """Return the tokens of an item; None if they are not known."""
    return None if item.name is None or item.size is None else rule.expand(item.size)


def in_order(
    ids: TokenIds, items: Sequence[MediaItem], rules: Mapping[str, MediaRule]
) -> Known | None:
    """Return the items up to the first one whose tokens are not known, and the prompt up to there;
    None if an item has no place."""
    found: list[tuple[Span, int]] = []
    for modality, rule in rules.items():
        own = [number for number, item in enumerate(items) if item.modality == modality]
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
