"""How much longer a tokenizer can make a text before it looks for tokens, by what its parts say of
themselves.

A normalizer may write ten thousand characters for each one of a request's, and then no limit on a
request's size is one. Real tokenizers put a sign in front of a word, and one for another. Left out
is what Unicode itself expands (up to 18 characters for one, and not again what is expanded).
"""

from __future__ import annotations

import base64
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
