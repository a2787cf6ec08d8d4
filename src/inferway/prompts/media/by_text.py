"""Placeholders that are no single token: text beside them may change their tokens, and then vLLM
replaces them in the decoded prompt and tokenizes it anew.

Source: vLLM 0.32, multimodal/processing/processor.py (`_apply_prompt_updates_via_text`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferway.model import TokenIds
from inferway.prompts.media.rule import Expanded, MediaModel, places


def by_text(
    model: MediaModel, ids: TokenIds, names: Sequence[str], instead: str
) -> Expanded | None:
    """Return the prompt with special tokens `instead` of the placeholders, and their places; None
    if the placeholders are not all there, in this order."""
    text = model.decode(ids)
    if instead in text:
        return None  # the engine may take a client's for that of a picture
    pieces: list[str] = []
    for number, name in enumerate(names):
        starts = [start for n in names[number:] if (start := text.find(n)) >= 0]
        if not starts or not text.startswith(name, min(starts)):
            return None
        before, _, text = text.partition(name)
        pieces.append(before)
    anew = np.array(model.encode(instead.join([*pieces, text])), dtype=np.uint32)
    return anew, places(anew, tuple(model.encode(instead)), len(names))
