r"""Which regexes of a tokenizer take time in proportion to a text, whatever the text.

The libraries bound what they try at one place of a text, not in all of it: `(a+)+b|.` takes seconds
for 2,000 characters, and `\s+$` for 20,000 spaces (DeepSeek Coder V2). So a tokenizer's regexes are
those of real models, word for word, or of a form in which a place of a text is looked at twice at
most; texts of all other tokenizers are encoded where CPU time is bounded (`outside_encoder.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import tokenizers

_SHORT_FORMS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_DIGITS = (r"\p{N}", r"\p{N}{1}", r"\p{N}{1,2}", r"\p{N}{1,3}", r"\p{N}+")
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _known() -> Iterator[str]:
    r"""With line ends as `\r` and `\n`. Each takes time in proportion to a text: an alternative
    that fails has looked at a bounded number of characters, or at one run of characters of a class,
    and one of the alternatives behind it takes that run, or all of it but the last. `\s*[\r\n]` and
    `\s+(?!\S)` go back over blanks, which `\s+` takes, or `\s` where `\s+(?!\S)` has left one."""
    for digits in _DIGITS:
        yield from _words(digits)
        yield from _cased_words(digits)
    yield from _gpt2()
    yield from _deepseek()
    # Bloom: one class, however it is written.
    yield r" ?[^(\s|[.,!?…。，、।۔،])]+"
    # Laguna: behind as many line ends as there are, there is no other.
    yield r"(?:\r?\n)+(?!\r?\n)"
    # EXAONE's mixtures of experts: what follows its first letter may be missing, so it never fails.
    yield (
        rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    )


def _words(digits: str) -> Iterator[str]:
    """GPT-4's, and what others have made of it."""
    others = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    words = rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    # GPT-4, Llama 3, Phi 4, OLMo 2, GLM 4 and 5, Granite 4, LFM 2; Qwen 1.5 to 3; MiniCPM 5
    yield f"{_SHORT_FORMS}|{words}|{others}|{_BLANKS}"
    yield f"{words}|{others}|{_BLANKS}"
    # Seed
    yield rf"{_SHORT_FORMS}|{words}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
    # Qwen 3.5
    yield (
        rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
    )
    # As tiktoken writes GPT-4's, first and now; Ling, LLaDA
    short_forms = r"'(?i:[sdmt]|ll|ve|re)"
    yield (
        rf"{short_forms}|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    )
    yield (
        rf"{short_forms}|[^\r\n\p{{L}}\p{{N}}]?+\p{{L}}++|{digits}+| ?[^\s\p{{L}}\p{{N}}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    )


def _cased_words(digits: str) -> Iterator[str]:
    """GPT-4o's, and what others have made of it. A run of capitals that no small letter follows is
    given back by the first alternative, as far as its last letter without case, and taken by the
    second."""
    before, others = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+"
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    # GPT-4o, gpt-oss, Llama 4, MiniMax M2; without the short forms Mistral and Nemotron 3
    for after in (f"{_SHORT_FORMS}?", ""):
        words = f"{before}[{upper}]*[{lower}]+{after}|{before}[{upper}]+[{lower}]*{after}"
        yield rf"{words}|{digits}|{others}[\r\n/]*|{_BLANKS}"
    # Kimi K2 and K3
    no_han = r"&&[^\p{Han}]"
    words = (
        f"{before}[{upper}{no_han}]*[{lower}{no_han}]+{_SHORT_FORMS}?"
        f"|{before}[{upper}{no_han}]+[{lower}{no_han}]*{_SHORT_FORMS}?"
    )
    yield rf"[\p{{Han}}]+|{words}|{digits}|{others}[\r\n]*|{_BLANKS}"


def _gpt2() -> Iterator[str]:
    """As others have written it out; and as tiktoken does, first and now."""
    words = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    for short_forms in ("'s|'t|'re|'ve|'m|'ll|'d", "'(?:[sdmt]|ll|ve|re)"):
        yield rf"{short_forms}|{words}|\s+"
        yield f"{short_forms}|{words}"
    yield r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def _deepseek() -> Iterator[str]:
    words = (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+"
    )
    yield rf"{words}[\r\n]*|{_BLANKS}"  # DeepSeek V3 to V4, Hunyuan
    yield rf"{words}|[\r\n]|\s+(?!\S)|\s+"  # Spark 2.5


_KNOWN = frozenset(_known())

# One character of a text; no groups, no references, no classes within classes.
_ATOM = (
    r"(?:[^\\\[\](){}*+?|^$]|\\[pP]\{\^?\w+\}|\\[sSdDwWrnt]|\\[^\w\s]"
    r"|\[\^?(?:[^\\\[\]]|\\[pP]\{\^?\w+\}|\\[sSdDwWrnt]|\\[^\w\s])+\])"
)
# Only the first may be missing, and only the last is repeated: at each place of a text two ways at
# most, each of a bounded length but for what it takes.
_ALTERNATIVE = rf"(?:{_ATOM}\?)?{_ATOM}+(?:[+*]|\{{\d(?:,\d?)?\}})?"
_SIMPLE = re.compile(rf"{_ALTERNATIVE}(?:\|{_ALTERNATIVE})*")
_MAX_CHARS = 500


def unbounded_regex(tokenizer: tokenizers.Tokenizer) -> str | None:
    """Return a regex of the tokenizer whose time may grow faster than the text, or None if it has
    none."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder):
        if part is not None:
            for regex in _regexes(msgspec.json.decode(part.__getstate__())):
                if not is_bounded(regex):
                    return regex
    return None


def is_bounded(regex: str) -> bool:
    # Some files have line ends themselves in a class, which means the same.
    if regex.replace("\r", r"\r").replace("\n", r"\n") in _KNOWN:
        return True
    return len(regex) <= _MAX_CHARS and _SIMPLE.fullmatch(regex) is not None


def _regexes(state: Any) -> Iterator[str]:
    """All that stand as patterns in what a part of a tokenizer says of itself."""
    inside = state.values() if isinstance(state, dict) else state
    if isinstance(state, dict) and isinstance(state.get("Regex"), str):
        yield state["Regex"]
    if isinstance(state, dict | list):
        for each in inside:
            yield from _regexes(each)
