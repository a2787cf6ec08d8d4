"""Chats with pictures of drawn sizes: odd ones, thin ones, large ones, several in one prompt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

_SIDES = (14, 16, 28, 32, 336, 384, 448, 560, 640)  # at which rules have their steps
_TEXTS = ("", "", "\n", "\n\n", "\n\n\n", " ", "What is this? ", "<|im_end|>\n<|im_start|>user\n")


class Drawn(NamedTuple):
    """The text of a rendered chat, and the pictures in it, as width and height."""

    text: str
    sizes: list[tuple[int, int]]


def drawn_pictures(picture: str, seed: int, count: int) -> Iterator[Drawn]:
    """Yield chats in which `picture` is the text that a template writes for one (`{}` is its
    number). Some have that text where no picture is, or a picture without it."""
    rng = random.Random(seed)
    for _ in range(count):
        sizes = [_size(rng) for _ in range(rng.choice([1, 1, 1, 2, 2, 3]))]
        places = [picture.format(i + 1) for i in range(len(sizes))]
        if rng.random() < 0.1:
            places.insert(rng.randrange(len(places) + 1), picture.format(1))
        if rng.random() < 0.05:
            places.pop()
        parts = [rng.choice(_TEXTS) + place + rng.choice(_TEXTS) for place in places]
        yield Drawn(f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n<|im_start|>assistant\n", sizes)


def _size(rng: random.Random) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.5:
        sides = [int(2 ** rng.uniform(3, 11)) for _ in range(2)]
    elif kind < 0.6:
        sides = [rng.randint(1, 40) for _ in range(2)]
    elif kind < 0.7:
        sides = [rng.randint(1, 6), rng.randint(1, 1000)]
    elif kind < 0.75:
        sides = [rng.randint(1, 60), rng.randint(1000, 8000)]
    elif kind < 0.97:
        side = rng.choice(_SIDES)
        sides = [side * rng.randint(1, 4) + rng.randint(-1, 1) for _ in range(2)]
    else:
        sides = [rng.randint(1200, 2600) for _ in range(2)]
    rng.shuffle(sides)
    return sides[0], sides[1]
