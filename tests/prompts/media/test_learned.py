"""A rule that engines teach is believed once pictures were seen not to depend on each other."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from inferway.model import TokenIds
from inferway.prompts.media.learned import (
    MOST_PIXELS,
    MOST_SIZES,
    MOST_WANTED,
    SEVERAL,
    LearnedRule,
    blank_png,
    question,
)
from inferway.prompts.media.rule import Size, Span

SIZE, OTHER = Size(40, 30), Size(80, 10)
TEXT, IMAGE, PAD, NEWLINE = 1, 7, 8, 9


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, np.uint32)


def plain(count: int) -> TokenIds:
    """The chat of a question, before its pictures are put in."""
    return ids(TEXT, *([IMAGE, 2, 3] * count), 4)


def rendered(count: int, tokens: Sequence[int]) -> tuple[TokenIds, list[Span]]:
    """The same as an engine renders it that puts these tokens in place of a picture."""
    spans = [Span(1 + n * (len(tokens) + 2), len(tokens)) for n in range(count)]
    return ids(TEXT, *([*tokens, 2, 3] * count), 4), spans


def teach(rule: LearnedRule, size: Size, tokens: Sequence[int]) -> str | None:
    """Answer the questions for a size as an engine does whose pictures are these tokens."""
    rule.want(size)
    while (asked := rule.next_question()) is not None:
        found, spans = rendered(asked[1], tokens)
        why = rule.teach(asked[0], plain(asked[1]), found, spans)
        if why is not None:
            return why
    return None


def test_first_size_is_asked_for_again_with_several_pictures() -> None:
    rule = LearnedRule()
    rule.want(SIZE)
    assert rule.next_question() == (SIZE, 1)

    rule.teach(SIZE, plain(1), *rendered(1, [PAD, PAD, NEWLINE]))
    assert (rule.next_question(), rule.rule) == ((SIZE, SEVERAL), None)

    rule.teach(SIZE, plain(SEVERAL), *rendered(SEVERAL, [PAD, PAD, NEWLINE]))
    assert rule.next_question() is None
    assert rule.rule is not None
    assert (rule.rule.target, rule.rule.expand(SIZE)) == ((IMAGE,), [PAD, PAD, NEWLINE])
    assert rule.rule.expand(OTHER) is None


def test_further_sizes_are_asked_for_once() -> None:
    rule = LearnedRule()
    teach(rule, SIZE, [PAD])
    rule.want(OTHER)
    assert rule.next_question() == (OTHER, 1)

    teach(rule, OTHER, [PAD, PAD])
    rule.want(SIZE)
    rule.want(OTHER)

    assert rule.next_question() is None
    assert rule.rule is not None
    assert rule.rule.expand(OTHER) == [PAD, PAD]


def test_pictures_that_depend_on_those_beside_them_are_never_believed() -> None:
    rule = LearnedRule()
    rule.want(SIZE)
    rule.teach(SIZE, plain(1), *rendered(1, [PAD, PAD]))

    why = rule.teach(SIZE, plain(SEVERAL), *rendered(SEVERAL, [PAD]))

    assert why == "pictures depend on those beside them"
    rule.want(OTHER)
    assert (rule.rule, rule.next_question()) == (None, None)


@pytest.mark.parametrize(
    ("engine", "span"),
    [
        pytest.param(ids(5, PAD, 2, 3, 4), Span(1, 1), id="before"),
        pytest.param(ids(TEXT, PAD, 2, 5, 4), Span(1, 1), id="behind"),
        pytest.param(ids(TEXT, IMAGE, PAD, 2, 3, 4), Span(2, 1), id="beside-the-placeholder"),
        pytest.param(ids(TEXT), Span(1, 0), id="nothing"),
    ],
)
def test_picture_that_changes_tokens_beside_it_is_never_believed(
    engine: TokenIds, span: Span
) -> None:
    rule = LearnedRule()
    rule.want(SIZE)

    assert rule.teach(SIZE, plain(1), engine, [span]) == "a picture changes tokens beside it"
    assert rule.next_question() is None


def test_what_is_wanted_and_kept_is_bounded() -> None:
    rule = LearnedRule()
    for number in range(1, 3 * MOST_WANTED):
        rule.want(Size(number, 1))
    rule.want(Size(MOST_PIXELS, 2))
    answered = 0
    while (asked := rule.next_question()) is not None:
        rule.teach(asked[0], plain(asked[1]), *rendered(asked[1], [PAD]))
        answered += asked[1] == 1
    assert answered <= MOST_WANTED

    for number in range(MOST_SIZES + 200):
        teach(rule, Size(number + 1, 2), [PAD])
    assert rule.rule is not None
    known = [n for n in range(MOST_SIZES + 200) if rule.rule.expand(Size(n + 1, 2)) is not None]
    assert known == list(range(200, MOST_SIZES + 200))


@pytest.mark.parametrize("size", [Size(1, 1), Size(9, 200), Size(4032, 3024)])
def test_blank_pictures_are_small_and_of_their_size(size: Size) -> None:
    data = blank_png(size)

    image = Image.open(io.BytesIO(data))
    image.load()
    assert image.size == size
    assert len(data) < 3_000 + size.width * size.height / 1_000


def test_question_has_as_many_pictures_as_are_asked_for() -> None:
    [message] = question(SIZE, SEVERAL)

    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", *["image_url", "text"] * SEVERAL]
