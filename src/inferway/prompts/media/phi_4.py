"""Phi-4-multimodal: a picture becomes the tokens of itself and of a grid of tiles without their
padding, with a token at the end of each row. Its placeholders are numbered.

Source: vLLM 0.32, model_executor/models/phi4mm.py (`_compute_num_image_tokens`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.rule import MediaModel, MediaRule, Size
from inferway.prompts.media.tiles import closest, grids

_TOKEN = 200010  # <|endoftext10|>
_TILE = 448
_PATCH = 14
_SIDE = _TILE // _PATCH // 2  # tokens of a tile, as wide as high


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    most = model.processor["dynamic_hd"]
    if model.config.get("img_processor") is not None:
        return None
    candidates = grids(1, most)

    def expand(size: Size) -> list[int]:
        grid = Size(*(math.ceil(side / _TILE) for side in size))
        if grid.width * grid.height > most:
            grid = closest(size, candidates, _TILE)
        columns, rows = (math.ceil(side / 2) for side in _filled(size, grid))
        return [_TOKEN] * (_SIDE * (_SIDE + 1) + 1 + rows * (columns + 1))

    def target(number: int) -> tuple[int, ...]:
        return tuple(model.encode(f"<|image_{number}|>"))

    return MediaRule("<|image_{}|>", target, expand)


def _filled(size: Size, grid: Size) -> tuple[int, int]:
    """Return how many columns and rows of patches have parts of the picture."""
    width, height = grid.width * _TILE, grid.height * _TILE
    by_width, by_height = width / size.width, height / size.height
    if by_width < by_height:
        padding = 0, height - int(size.height * by_width)
    else:
        padding = width - int(size.width * by_height), 0
    columns, rows = width // _PATCH - padding[0] // _PATCH, height // _PATCH - padding[1] // _PATCH
    return columns, rows
