"""The engine's own encoder, Hugging Face's `tokenizers`: the truth, but slow and large.

Where another encoder does the daily work it is packed away (3-7 MB instead of 60-130) and comes
back for who asks for offsets, text or a byte that the other encoder refuses.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from threading import Lock

import tokenizers

from inferway.model import TokenIds
from inferway.prompts.tokenizer.token_ids import token_ids

# Text that, in UTF-8, has every byte that can occur.
_POINTS = [*range(0xC0), *range(0xC0, 0x800, 0x40), *range(0x800, 0xD800, 0x800), 0xE000, 0xF000]
EVERY_BYTE = "".join(map(chr, [*_POINTS, *range(0x10000, 0x110000, 0x10000)]))


class HfEncoder:
    """`get` may be called from any thread; what is packed away is unpacked once, and kept."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer: tokenizers.Tokenizer | None = tokenizer
        self._packed = b""
        # Not part of the JSON that a tokenizer is packed as.
        self._splits_special = tokenizer.encode_special_tokens
        self._lock = Lock()

    @property
    def is_packed(self) -> bool:
        return self._tokenizer is None

    def pack(self, as_json: str) -> None:
        """`as_json`: the tokenizer's own, which must be exact (a Unigram's scores are not)."""
        self._packed = zlib.compress(as_json.encode(), level=1)
        self._tokenizer = None

    def drop(self) -> None:
        """Free the tokenizer for good, where all texts are encoded by another process."""
        self._tokenizer = None

    def get(self) -> tokenizers.Tokenizer:
        tokenizer = self._tokenizer
        if tokenizer is not None:
            return tokenizer
        with self._lock:
            if self._tokenizer is None:
                as_json = zlib.decompress(self._packed).decode()
                tokenizer = tokenizers.Tokenizer.from_str(as_json)
                tokenizer.encode_special_tokens = self._splits_special
                self._tokenizer, self._packed = tokenizer, b""
            return self._tokenizer


def encode_all(tokenizer: tokenizers.Tokenizer, texts: Sequence[str]) -> list[TokenIds]:
    """Ids of each text, without special tokens around it. Other threads run meanwhile."""
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [token_ids(encoding.ids) for encoding in encodings]
