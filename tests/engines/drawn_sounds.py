"""Chats with sounds of drawn lengths and rates, some of them with pictures between them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from tests.engines.tiny_sound import FAMILIES, SOUNDS

_RATES = (16000, 16000, 16000, 8000, 11025, 22050, 24000, 32000, 44100, 48000, 96000)
_TEXTS = ("", "", "\n", " ", "What is this? ", "<|im_end|>\n<|im_start|>user\n")
_MOST_SAMPLES = 3_000_000
_FRAME = 160


class Drawn(NamedTuple):
    """The text of a rendered chat, the sounds in it as number of samples and rate, and the pictures
    as width and height."""

    text: str
    sounds: list[tuple[int, int]]
    sizes: list[tuple[int, int]]


def drawn_sounds(family: str, seed: int, count: int) -> Iterator[Drawn]:
    """Yield chats as a family's template writes them. Some have a placeholder too many, or lack
    one."""
    rng = random.Random(seed)
    picture = FAMILIES[family].picture
    for _ in range(count):
        sounds = [_sound(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
        sizes = [
            (rng.randint(20, 300), rng.randint(20, 300))
            for _ in range(rng.choice([0, 0, 1, 2]) if picture else 0)
        ]
        places = [SOUNDS[family].format(i + 1) for i in range(len(sounds))]
        places += [picture] * len(sizes)
        rng.shuffle(places)
        if rng.random() < 0.1:
            places.append(rng.choice(places))
        if rng.random() < 0.05:
            places.pop()
        parts = [rng.choice(_TEXTS) + place + rng.choice(_TEXTS) for place in places]
        text = f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n<|im_start|>assistant\n"
        yield Drawn(text, sounds, sizes)


def _sound(rng: random.Random) -> tuple[int, int]:
    rate = rng.choice(_RATES)
    kind = rng.random()
    if kind < 0.4:
        return int(10 ** rng.uniform(0, 5.5)), rate
    if kind < 0.8:
        frames = rng.choice([rng.randint(1, 1000), 2999, 3000, 3001, 5000])
        return frames * _FRAME * rate // 16000 + rng.randint(-2, 2), rate
    return rng.randint(1, _MOST_SAMPLES if rng.random() < 0.3 else 300_000), rate
