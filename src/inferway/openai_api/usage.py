"""Response bytes -> how many prompt tokens the engine says it took from its cache."""

from __future__ import annotations

import re

import msgspec

# In generated text the quotes would be escaped, so the key cannot be mistaken for content.
_MARK = b'"cached_tokens"'
_NUMBER = re.compile(rb'"cached_tokens"\s*:\s*(\d+)(?=[^\d])')
_CARRY = len(_MARK) + 32  # a key and its number may be split by a chunk's border


class Usage(msgspec.Struct, frozen=True):
    """Tokens, as the engine has counted them at the answer's end."""

    prompt: int
    completion: int
    cached: int | None = None  # of the prompt, from its cache; None: it does not tell


class UsageReader:
    """Fed with the chunks of one answer, in order; works on streams and whole bodies alike."""

    __slots__ = ("_tail", "cached_tokens")

    def __init__(self) -> None:
        self.cached_tokens: int | None = None
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Remembers the last `cached_tokens` seen; an answer without one leaves None."""
        text = self._tail + chunk if self._tail else chunk
        at = text.rfind(_MARK)
        while at != -1:
            found = _NUMBER.match(text, at)
            if found is not None and text[at - 1 : at] != b"\\":
                self.cached_tokens = int(found[1])
                break
            at = text.rfind(_MARK, 0, at)
        self._tail = text[-_CARRY:]

    def usage(self) -> Usage | None:
        """None if the answer has told nothing."""
        return None
