"""Phi-4-multimodal: a picture becomes the tokens of itself and of a grid of tiles without their
padding, with a token at the end of each row. Its placeholders are numbered.

Source: vLLM 0.32, model_executor/models/phi4mm.py (`_compute_num_image_tokens`).
"""

from __future__ import annotations

import math

from inferway.model import TokenIds
from inferway.prompts.media.by_text import by_text
from inferway.prompts.media.rule import Expanded, MediaModel, MediaRule, Size
from inferway.prompts.media.tiles import closest, grids

_PLACEHOLDER = "<|image_{}|>"
_TEXT = "<|endoftext10|>"
_TOKEN = 200010  # in vLLM's code, whatever the vocabulary says
_LEAST_PIXELS = 10  # of a side: the processor refuses thinner ones
_TILE = 448
_PATCH = 14
_SIDE = _TILE // _PATCH // 2  # tokens of a tile, as wide as high


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    most = model.processor["dynamic_hd"]
    if model.config.get("img_processor") is not None or model.token_id(_TEXT) != _TOKEN:
        return None
    candidates = grids(1, most)

    def expand(size: Size) -> list[int] | None:
        grid = Size(*(math.ceil(side / _TILE) for side in size))
        if grid.width * grid.height > most:
            grid = closest(size, candidates, _TILE)
        filled = _filled(size, grid)
        if filled is None:
            return None
        columns, rows = (math.ceil(side / 2) for side in filled)
        return [_TOKEN] * (_SIDE * (_SIDE + 1) + 1 + rows * (columns + 1))

    def target(number: int) -> tuple[int, ...]:
        return tuple(model.encode(_PLACEHOLDER.format(number)))

    def anew(ids: TokenIds, count: int) -> Expanded | None:
        names = [_PLACEHOLDER.format(number + 1) for number in range(count)]
        return by_text(model, ids, names, _TEXT)

    return MediaRule(_PLACEHOLDER, target, expand, by_text=anew)


def _filled(size: Size, grid: Size) -> tuple[int, int] | None:
    """Return how many columns and rows of patches have parts of the picture."""
    width, height = grid.width * _TILE, grid.height * _TILE
    by_width, by_height = width / size.width, height / size.height
    filled = Size(width, int(size.height * by_width))
    if by_width >= by_height:
        filled = Size(int(size.width * by_height), height)
    if min(filled) < _LEAST_PIXELS:
        return None
    columns, rows = (math.ceil(side / _PATCH) for side in filled)
    return columns, rows
