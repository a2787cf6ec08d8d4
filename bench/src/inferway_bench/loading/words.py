"""Text of a given number of tokens, for whatever tokenizer there is. Pure.

Each of the words, with the space before it, is one token to GPT-2's, Llama 3's, Qwen's, DeepSeek's,
SmolLM2's and other byte-level vocabularies (a test counts some), and drawn at random they repeat
nothing: equal texts have equal tokens, and others share no block.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random

_WORDS = """
the of and to in is was for that on with as are be this from at by not have or an which it one
had were but all their has there been if more when will would who so no out up into do any your
what some other time only could new these two may then first also such like over should now made
after most people how where just because between even being back about them many well know way
she her him his our you can see get make use work world life day part year years water place
system different number large high small right left long great little own same still found every
house under last never family group government company school state city power public order case
point week against end few major early important next second used country business during
without again around however home both those another each while through much before must off
down very than its my we they he said did using take want find give tell call try need feel
become leave put mean keep let begin help talk turn start show hear play run move believe hold
bring write provide sit stand lose pay meet include continue set learn change lead understand
watch follow stop create speak read allow add spend grow open walk win offer remember love
consider appear buy wait serve die send expect build stay fall cut reach remain suggest raise
pass sell require report decide pull
""".split()  # noqa: SIM905


def text(num_tokens: int, seed: object) -> str:
    """Return this number of words, drawn with `seed`, each with a space before it."""
    return "".join([f" {word}" for word in Random(str(seed)).choices(_WORDS, k=num_tokens)])


@lru_cache(maxsize=1 << 14)
def block(num_tokens: int, seed: str) -> str:
    """Return what `text` does, and keep it: blocks of prompts come again."""
    return text(num_tokens, seed)
