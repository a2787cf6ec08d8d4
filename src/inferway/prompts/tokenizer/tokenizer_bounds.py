"""Bounds of a tokenizer, read from its parts: how much longer a text may become before tokens are
looked for, and whether encoding takes time in proportion to the text.

A normalizer may write ten thousand characters for each one of a request's, and then no limit on a
request's size is one. Real tokenizers put a sign in front of a word, and one for another. Left out
is what Unicode itself expands (up to 18 characters for one, and not again what is expanded).

The libraries bound what a regex tries at one place of a text, not in all of it: `(a+)+b|.` takes
seconds for 2,000 characters. So a tokenizer's regexes are those of real models, word for word, or
of a form in which a place of a text is looked at twice at most; texts of all other tokenizers are
encoded where CPU time is bounded (`OutsideEncoder`)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from inferway.errors import RenderError
from inferway.model import Reason

MAX_EXPANSION = 64  # the most of all known: 8
MAX_PARTS = 64
MAX_SPECIAL = 64  # around one text; the most of all known: 3
_MAX_MAPPED_BYTES = 128  # of a character, in a precompiled map

JsonObject = dict[str, Any]

# Characters that one can become: its bytes, each as one; a space on both sides; a sign in front.
_FACTORS = {"ByteLevel": 4, "BertNormalizer": 3, "Metaspace": 2}


def check_expansion(tokenizer: tokenizers.Tokenizer, path: str) -> None:
    """Raises RenderError for a tokenizer that can make a text much longer, or puts many tokens
    around it."""
    num_special = tokenizer.num_special_tokens_to_add(False)
    if num_special > MAX_SPECIAL:
        raise RenderError(
            f"{path}: its post-processor puts {num_special} tokens around every text, at most"
            f" {MAX_SPECIAL} are taken",
            reason=Reason.BAD_TOKENIZER,
        )
    factor = num_parts = 1
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for each in _parts(msgspec.json.decode(part.__getstate__())):
                factor *= _factor(each)
                num_parts += 1
                if factor > MAX_EXPANSION or num_parts > MAX_PARTS:
                    raise RenderError(
                        f"{path}: its normalizer and pre-tokenizer can make a text more than"
                        f" {MAX_EXPANSION} times as long, or have more than {MAX_PARTS} parts",
                        reason=Reason.BAD_TOKENIZER,
                    )


def _parts(part: JsonObject) -> list[JsonObject]:
    inside = part.get("normalizers") or part.get("pretokenizers")
    if inside is None:
        return [part]
    return [each for one in inside for each in _parts(one)]


def _factor(part: JsonObject) -> int:
    kind = part.get("type")
    if kind == "Prepend":
        return 1 + len(part["prepend"])
    if kind == "Replace":
        return _replaced(part["pattern"], len(part["content"]))
    if kind == "Precompiled":
        longest = _longest_mapped(part["precompiled_charsmap"])
        return 1 if longest <= _MAX_MAPPED_BYTES else longest
    return _FACTORS.get(str(kind), 1)


def _replaced(pattern: JsonObject, num_chars: int) -> int:
    text = pattern.get("String")
    if text:
        return max(1, -(-num_chars // len(text)))
    return 1 + num_chars  # it may match nothing, between any two characters


def _longest_mapped(charsmap: str) -> int:
    """sentencepiece: the size of a trie, the trie, and all that characters are mapped to, each
    ended by a zero."""
    blob = base64.b64decode(charsmap)
    mapped = blob[4 + int.from_bytes(blob[:4], "little") :]
    return max(map(len, mapped.split(b"\0")), default=0)


_DIGITS = (r"\p{N}", r"\p{N}{1}", r"\p{N}{1,2}", r"\p{N}{1,3}", r"\p{N}+")


def _known() -> frozenset[str]:
    """The regexes of known_regexes.txt."""
    lines = Path(__file__).with_name("known_regexes.txt").read_text(encoding="utf-8").split("\n")
    regexes = [line for line in lines if line and not line.startswith("#")]
    return frozenset(each.replace("{DIGITS}", digits) for each in regexes for digits in _DIGITS)


_KNOWN = _known()  # read at once: a helper process can open no file later


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
