"""A rule for pictures that engines teach: the tokens of each size, as one engine has rendered them.

An engine that renders chats (`/v1/chat/completions/render`, vLLM with --enable-scale-out) is asked
for one that has a blank picture of that size, and tells where its tokens are. That says which
tokens of the plain chat the picture has replaced. So a size is known after one question, and the
tokens of a picture that depends on those beside it are never believed: the first size is asked for
again, three times in one chat.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from inferway.model import TokenIds
from inferway.prompts.media.items import drop_oldest
from inferway.prompts.media.rule import MediaRule, Size, Span, expanded

MOST_SIZES = 2_048  # that are kept of one model
MOST_WANTED = 64  # sizes that wait for a question
MOST_PIXELS = 40_000_000  # of a picture that an engine is asked about
SEVERAL = 3  # pictures, in the chat that shows whether they depend on each other

_ROWS = 64  # of a blank picture that are packed at once


class LearnedRule:
    """The sizes that are known of one model. Any thread may ask; one task teaches."""

    def __init__(self) -> None:
        self._target: tuple[int, ...] = ()
        self._tokens: OrderedDict[Size, Sequence[int]] = OrderedDict()
        self._wanted: OrderedDict[Size, None] = OrderedDict()
        self._is_proven = False
        self._is_over = False

    @property
    def rule(self) -> MediaRule | None:
        """The rule as far as it is known; None while nothing is."""
        if not self._is_proven or self._is_over:
            return None
        return MediaRule("", self._target, self._tokens.get)

    def want(self, size: Size) -> None:
        """Note that a chat had a picture of this size, whose tokens may not be known."""
        is_known = size in self._tokens and self._is_proven
        if is_known or self._is_over or size.width * size.height > MOST_PIXELS:
            return
        self._wanted[size] = None
        drop_oldest(self._wanted, MOST_WANTED)

    def next_question(self) -> tuple[Size, int] | None:
        """Return the size that is to be asked for, and of how many pictures; None if there is
        none."""
        size = next(reversed(self._wanted), None)
        if size is None or self._is_over:
            return None
        return size, SEVERAL if size in self._tokens else 1

    def teach(
        self, size: Size, plain: TokenIds, rendered: TokenIds, spans: Sequence[Span]
    ) -> str | None:
        """Take an engine's rendering of the chat that is `plain` before its pictures, all of this
        size, are put in. Return why there is no rule, if that shows now."""
        self._wanted.pop(size, None)
        if self._is_over:
            return None
        if len(spans) == 1:
            why = self._learn(size, plain, rendered, spans[0])
            if why is None and not self._is_proven:
                self._wanted[size] = None  # several of them are asked for next
        else:
            why = self._prove(size, plain, rendered, spans)
        if why is not None:
            self.end()
        return why

    def end(self) -> None:
        """Learn no more, and know nothing."""
        self._is_over = True
        self._wanted.clear()
        self._tokens.clear()

    def _learn(self, size: Size, plain: TokenIds, rendered: TokenIds, span: Span) -> str | None:
        before, behind = rendered[: span.offset], rendered[span.offset + span.length :]
        end = len(plain) - len(behind)
        target = tuple(plain[span.offset : end].tolist())
        tokens: list[int] = rendered[span.offset : span.offset + span.length].tolist()
        is_same = np.array_equal(plain[: span.offset], before) and end > span.offset
        is_same = is_same and span.length > 0
        if not is_same or not np.array_equal(plain[end:], behind):
            return "a picture changes tokens beside it"
        if self._target not in ((), target):
            return "pictures of different sizes take the places of different tokens"
        self._target = target
        self._tokens[size] = tokens
        drop_oldest(self._tokens, MOST_SIZES)
        return None

    def _prove(
        self, size: Size, plain: TokenIds, rendered: TokenIds, spans: Sequence[Span]
    ) -> str | None:
        if size not in self._tokens:
            return None
        rule = MediaRule("", self._target, self._tokens.get)
        found = expanded(plain, [size] * len(spans), rule)
        if found is None or not np.array_equal(found[0], rendered) or found[1] != list(spans):
            return "pictures depend on those beside them"
        self._is_proven = True
        return None


def question(size: Size, count: int) -> list[dict[str, Any]]:
    """Return the messages of a chat with so many blank pictures of this size."""
    url = "data:image/png;base64," + base64.b64encode(blank_png(size)).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    parts: list[dict[str, Any]] = [{"type": "text", "text": "Look:"}]
    for _ in range(count):
        parts += [part, {"type": "text", "text": "What is it?"}]
    return [{"role": "user", "content": parts}]


def blank_png(size: Size) -> bytes:
    """Return a black picture of one bit a pixel; a thousandth of the pixels in bytes."""
    row = b"\0" * (1 + (size.width + 7) // 8)
    packer = zlib.compressobj(9)
    packed = []
    for start in range(0, size.height, _ROWS):
        packed.append(packer.compress(row * min(_ROWS, size.height - start)))
    packed.append(packer.flush())
    head = struct.pack(">IIBBBBB", size.width, size.height, 1, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", b"".join(packed)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join([_chunk(kind, data) for kind, data in chunks])


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
