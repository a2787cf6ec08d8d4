"""Gemma 3: every picture becomes the same tokens, between empty lines. Those and line breaks beside
them become one token, as the tokenizer would write them.

Source: vLLM 0.32, model_executor/models/gemma3_mm.py (`_apply_token_matches`,
`_find_mm_placeholders`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.model import TokenIds
from inferway.prompts.media.rule import Expanded, MediaModel, MediaRule, Span

_TOKENS = {"boi": "<start_of_image>", "image": "<image_soft_token>", "eoi": "<end_of_image>"}


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model; None if its processor cuts pictures into crops."""
    config, processor = model.config, model.processor
    begin, image, end = (model.token_id(token) for token in _TOKENS.values())
    if [begin, image, end] != [config[f"{name}_token_index"] for name in _TOKENS]:
        return None
    one, two, three, four = (model.token_id("\n" * count) for count in (1, 2, 3, 4))
    if begin is None or image is None or end is None or processor.get("do_pan_and_scan"):
        return None
    if one is None or two is None or three is None or four is None:
        return None
    tokens = [two, begin, *[image] * processor["image_seq_length"], end, two]

    def merged(prompt: Expanded) -> Expanded | None:
        ids, spans = prompt
        starts = np.array([span.offset for span in spans], dtype=np.intp)
        places = np.concatenate([starts, starts + len(tokens) - 1])
        for first, second, joined in ((one, two, three), (two, one, three), (two, two, four)):
            ids, places = _joined(ids, places, (first, second), joined)
        starts, ends = np.split(places, 2)
        if (ids[ends] == three).any():
            return None  # vLLM does not find a picture before a single line break, and refuses
        return ids, [Span(start, len(tokens)) for start in starts.tolist()]

    return MediaRule(_TOKENS["boi"], (begin,), lambda _size: tokens, merged)


def _joined(
    ids: TokenIds, places: NDArray[np.intp], pair: tuple[int, int], joined: int
) -> tuple[TokenIds, NDArray[np.intp]]:
    """Return the tokens with one in place of each pair, and where the given places are then."""
    taken: list[int] = []
    for start in np.flatnonzero((ids[:-1] == pair[0]) & (ids[1:] == pair[1])).tolist():
        if not taken or start > taken[-1] + 1:
            taken.append(start)
    starts = np.array(taken, dtype=np.intp)
    ids = ids.copy()
    ids[starts] = joined
    return np.delete(ids, starts + 1), places - np.searchsorted(starts + 1, places, side="right")
