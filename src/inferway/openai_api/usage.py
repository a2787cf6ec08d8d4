"""Response bytes -> how many prompt tokens the engine says it took from its cache."""

from __future__ import annotations

import re

# In generated text the quotes would be escaped, so the key cannot be mistaken for content.
_CACHED = re.compile(rb'(?<!\\)"cached_tokens"\s*:\s*(\d+)(?=[^\d])')
_MARK = b'"cached_tokens"'
_CARRY = len(_MARK) + 32  # a key and its number may be split by a chunk's border


class UsageReader:
    """Fed with the chunks of one answer, in order; works on streams and whole bodies alike."""

    __slots__ = ("_tail", "cached_tokens")

    def __init__(self) -> None:
        self.cached_tokens: int | None = None
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Remembers the last `cached_tokens` seen; an answer without one leaves None."""
        text = self._tail + chunk
        if _MARK in text:
            for match in _CACHED.finditer(text):
                self.cached_tokens = int(match[1])
        self._tail = text[-_CARRY:]
