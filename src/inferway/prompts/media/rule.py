"""A rule says which tokens an engine puts in place of a picture: they follow from its size.

vLLM (0.32, multimodal/processing/processor.py) renders and tokenizes a chat with one placeholder
for each picture, and then replaces the tokens of each placeholder (`PromptReplacement`). A family
of models is one module here, with `rule(model)`; families.py lists them by architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from inferway.model import TokenIds

JsonObject = Mapping[str, Any]


class Size(NamedTuple):
    """The width and the height of a picture in pixels, as it is seen (EXIF applied)."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class MediaModel:
    """The parts of a model's files that its rule is made of. `processor` has the members of
    preprocessor_config.json, and those that processor_config.json has for pictures."""

    config: JsonObject
    processor: JsonObject
    token_id: Callable[[str], int | None]  # of a token of the vocabulary, special ones included
    encode: Callable[[str], Sequence[int]]  # without special tokens around the text


@dataclass(frozen=True, slots=True)
class MediaRule:
    """The way in which the engines of one model write pictures into a prompt.

    `placeholder` is the text that vLLM writes for a picture where the template takes text
    (`get_placeholder_str`; `{}` in it is the picture's number, from 1). `target` are the tokens of
    a placeholder in the tokenized chat, and `expand` returns those that take their place, or None
    for a size that the engine refuses or whose tokens are not known.
    """

    placeholder: str
    target: tuple[int, ...]
    expand: Callable[[Size], Sequence[int] | None]


class Span(NamedTuple):
    """The tokens of a prompt that stand for one picture."""

    offset: int
    length: int


def expanded(
    ids: TokenIds, sizes: Sequence[Size], rule: MediaRule
) -> tuple[TokenIds, list[Span]] | None:
    """Return the prompt with all pictures in it, and the place of each; None if it is not known.

    As the engine does it, the n-th picture takes the n-th place of the target: text of a client
    that is the target, too, counts as one.
    """
    pieces: list[Sequence[int] | TokenIds] = []
    spans: list[Span] = []
    end, length = 0, 0
    for size, start in zip(sizes, places(ids, rule.target), strict=False):
        tokens = rule.expand(size)
        if tokens is None:
            return None
        pieces += [ids[end:start], tokens]
        length += start - end
        spans.append(Span(length, len(tokens)))
        length += len(tokens)
        end = start + len(rule.target)
    if len(spans) != len(sizes):
        return None
    return np.concatenate([*pieces, ids[end:]]).astype(np.uint32, copy=False), spans


def places(ids: TokenIds, target: Sequence[int]) -> list[int]:
    """Return where the target begins, without overlaps."""
    found: list[int] = []
    for start in np.flatnonzero(ids == target[0]).tolist():
        is_free = not found or start >= found[-1] + len(target)
        if is_free and np.array_equal(ids[start : start + len(target)], target):
            found.append(start)
    return found
