"""The program of the killable child: it knows nothing but bytes and outlines-core."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inferway_structured.backends.vocabulary import Vocabulary

MODULE = __name__

_prepared: list[Any] = []  # this process's one vocabulary


def written_vocabulary(vocabulary: Vocabulary) -> bytes:
    tokens: dict[str, list[int]] = {}
    for token, written in enumerate(vocabulary.token_bytes):
        if written is not None and token not in vocabulary.eos_token_ids:
            tokens.setdefault(written.decode("latin-1"), []).append(token)
    return json.dumps([vocabulary.eos_token_ids[0], tokens]).encode()


def prepare(written: bytes) -> None:
    import outlines_core

    eos, tokens = json.loads(written)
    ids = {token.encode("latin-1"): found for token, found in tokens.items()}
    _prepared[:] = [outlines_core.Vocabulary(eos, ids)]


def index(pattern: bytearray) -> bytes:
    import outlines_core

    made: bytes = outlines_core.Index(bytes(pattern).decode(), _prepared[0]).__reduce__()[1][0]
    return made
