"""Texts on which encoders are compared: written, real, and drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from inferway.prompts.tokenizer.tokenizer import CHECK_TEXTS

WORDS = [word for text in CHECK_TEXTS for word in text.split()][:200]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u200b"]
SPACES += ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u1680", "\u2009", "\ufeff", " \t \n "]
# Parted by spaces.
_BITS = """
's 'S 'll 'RE ’s 'ſ n't 0 12 345 6789 1,000.50 ٣٤ ½ 二 一二三 Ⅷ ² é ﬁ Ǆ ß İ ı Å ｆｕｌｌ が 한 क्षि
ไทย 👋🏽 🇫🇷 ❤️ 𝔘 𠜎 ! ?! ... … -- — «x» $5 € _ __init__ # ## // /* </s <| |> < > [INST] {{ }} ▁ ▁▁ Ġ
Ċ ##ing <0x0A>
"""
BITS = _BITS.split()
BITS += ["e\u0301", "a\u0308\u0323", "\u0301", "\u212b", "か\u3099", "\u1112\u1161\u11ab", "\u0e33"]
BITS += ["👩\u200d👩\u200d👧", "\ufe0f", "\u200d", "\u200c", "\u202e", "\u00ad", "\ufffd"]
BITS += ["\x00", "\x01", "\x16", "\x1b[0m", "\x7f", "\x80", "\xf1", "\u0378", "\ue000"]


def drawn_texts(seed: int, num_texts: int, added: Sequence[str] = ()) -> list[str]:
    """The same for the same arguments. `added`: tokens that may stand in them, whole or in part."""
    rng = random.Random(seed)
    return [_drawn(rng, list(added)) for _ in range(num_texts)]


def _drawn(rng: random.Random, added: list[str]) -> str:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice([*BITS, *SPACES, "a", "-", "é", "字"]) * rng.randint(1, 400)
    if kind < 0.2:
        return "".join(_any_character(rng) for _ in range(rng.randint(1, 60)))
    return "".join(_piece(rng, added) for _ in range(rng.randint(1, 25)))


def _piece(rng: random.Random, added: list[str]) -> str:
    kind = rng.random()
    if added and kind < 0.3:
        token = rng.choice(added)
        if kind < 0.05:
            return token[: rng.randint(0, len(token))]
        if kind < 0.1:
            return token[rng.randint(0, len(token) - 1) :]
        if kind < 0.12:
            return token.swapcase()
        return token
    if kind < 0.55:
        return rng.choice(SPACES)
    if kind < 0.8:
        return rng.choice(WORDS)
    if kind < 0.95:
        return rng.choice(BITS)
    return _any_character(rng)


def _any_character(rng: random.Random) -> str:
    # Most of what is assigned is below 0x3100; the rest is drawn more rarely.
    limit = rng.choice([0x80, 0x250, 0x1000, 0x3100, 0xD800, 0x20000, 0x110000])
    point = rng.randrange(limit)
    return chr(point) if not 0xD800 <= point < 0xE000 else "\ue123"
