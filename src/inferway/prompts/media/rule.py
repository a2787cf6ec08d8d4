"""A rule says which tokens an engine puts in place of a picture: they follow from its size, and
those of a sound from its length.

vLLM (0.32, multimodal/processing/processor.py) renders and tokenizes a chat with one placeholder
for each picture, and then replaces the tokens of each placeholder (`PromptReplacement`). A family
of models is one module here, with `rule(model)`; families.py lists them by architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from inferway.model import TokenIds

JsonObject = Mapping[str, Any]


class Size(NamedTuple):
    """The width and the height of a picture in pixels, as it is seen (EXIF applied)."""

    width: int
    height: int


class Sound(NamedTuple):
    """The length of a sound: its samples, of one channel, and how many of them are a second."""

    num_samples: int
    rate: int


@dataclass(frozen=True, slots=True)
class MediaModel:
    """The parts of a model's files that its rule is made of. `processor` has the members of
    preprocessor_config.json, and those that processor_config.json has for pictures."""

    config: JsonObject
    processor: JsonObject
    token_id: Callable[[str], int | None]  # of a token of the vocabulary, special ones included
    encode: Callable[[str], Sequence[int]]  # without special tokens around the text
    decode: Callable[[TokenIds], str]


class Span(NamedTuple):
    """The tokens of a prompt that stand for one picture."""

    offset: int
    length: int


Expanded = tuple[TokenIds, list[Span]]
Target = tuple[int, ...] | Callable[[int], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MediaRule:
    """The way in which the engines of one model write pictures, or sounds, into a prompt.

    `placeholder` is the text that vLLM writes for a picture where the template takes text
    (`get_placeholder_str`; `{}` in it is the picture's number, from 1); empty if it writes nothing.
    `target` are the tokens of a placeholder in the tokenized chat, by the picture's number where
    they differ, and `expand` returns those that take their place, or None for a size that the
    engine refuses or whose tokens are not known. `finish` changes the prompt with all pictures.
    `by_text` is for targets that are no single token, which text beside them may change: it returns
    the prompt tokenized anew, and the places that the pictures take in it.
    """

    placeholder: str
    target: Target
    expand: Callable[[Any], Sequence[int] | None]  # of a Size, or of a Sound
    finish: Callable[[Expanded], Expanded | None] | None = None
    by_text: Callable[[TokenIds, int], Expanded | None] | None = None


def resizes_with(processor: JsonObject, name: str) -> bool:
    """Return whether pictures are resized by the processor of that name."""
    given = str(processor.get("image_processor_type")).removesuffix("Fast")
    return given == name and processor.get("do_resize", True) is True


def expanded(ids: TokenIds, sizes: Sequence[Size | Sound], rule: MediaRule) -> Expanded | None:
    """Return the prompt with all pictures in it, and the place of each; None if it is not known.

    As the engine does it, the n-th picture takes the n-th place of the target: text of a client
    that is the target, too, counts as one.
    """
    found = places(ids, rule.target, len(sizes))
    if len(found) < len(sizes):
        anew = rule.by_text and rule.by_text(ids, len(sizes))
        if anew is None:
            return None
        ids, found = anew
    made = replaced(ids, found, map(rule.expand, sizes))
    return made if made is None or rule.finish is None else rule.finish(made)


def replaced(
    ids: TokenIds, found: Sequence[Span], expansions: Iterable[Sequence[int] | None]
) -> Expanded | None:
    """Return the prompt with tokens in place of those at the first of these places, and where they
    are then; None if they are not known."""
    pieces: list[Sequence[int] | TokenIds] = []
    spans: list[Span] = []
    end, length = 0, 0
    for tokens, place in zip(expansions, found, strict=False):
        if tokens is None:
            return None
        pieces += [ids[end : place.offset], tokens]
        length += place.offset - end
        spans.append(Span(length, len(tokens)))
        length += len(tokens)
        end = place.offset + place.length
    return np.concatenate([*pieces, ids[end:]]).astype(np.uint32, copy=False), spans


def places(ids: TokenIds, target: Target, count: int) -> list[Span]:
    """Return the places of so many pictures in their order, as far as they are there."""
    if isinstance(target, tuple):
        return _found(ids, target)
    numbered = {place: n for n in range(1, count + 1) for place in _found(ids, target(n))}
    taken: list[Span] = []
    for place in sorted(numbered):
        if numbered[place] > len(taken) + 1:
            break  # the engine takes them in another order
        if numbered[place] == len(taken) + 1:
            taken.append(place)
    return taken


def _found(ids: TokenIds, target: tuple[int, ...]) -> list[Span]:
    """Return where the target is, without overlaps."""
    found: list[Span] = []
    for start in np.flatnonzero(ids == target[0]).tolist():
        is_free = not found or start >= found[-1].offset + len(target)
        if is_free and np.array_equal(ids[start : start + len(target)], target):
            found.append(Span(start, len(target)))
    return found
