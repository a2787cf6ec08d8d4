"""LLaVA-NeXT and LLaVA-OneVision: a picture becomes the tokens of itself and of a grid of tiles,
without their padding, and a token at the end of each row.

Source: vLLM 0.32, model_executor/models/llava_next.py and llava_onevision.py
(`get_num_image_tokens`), transformers 5.19, image_processing_utils.py (`select_best_resolution`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.llava import encoded, repeated, side
from inferway.prompts.media.rule import MediaModel, MediaRule, Size

_MOST_TILES = 9  # of LLaVA-OneVision, which scales larger grids down


def rule(model: MediaModel, *, most_tiles: float = math.inf) -> MediaRule:
    """Return the rule of a LLaVA-NeXT."""
    config = model.config
    base, length = encoded(config), side(config)
    tile: int = config["vision_config"]["image_size"]
    canvases = [Size(width, height) for height, width in config["image_grid_pinpoints"]]

    def num_tokens(size: Size) -> int:
        canvas = min(canvases, key=lambda canvas: _waste(size, canvas))
        columns, rows = (length * (edge // tile) for edge in canvas)
        if size.width / size.height > columns / rows:
            filled = int(round(size.height * (columns / size.width), 7))
            rows -= (rows - filled) // 2 * 2
        else:
            filled = int(round(size.width * (rows / size.height), 7))
            columns -= (columns - filled) // 2 * 2
        ratio = math.sqrt(columns * rows / (most_tiles * length**2))
        if ratio > 1.1:
            rows, columns = int(rows // ratio), int(columns // ratio)
        return base + rows * columns + rows

    return repeated(config, num_tokens)


def rule_of_onevision(model: MediaModel) -> MediaRule:
    """Return the rule of a LLaVA-OneVision."""
    return rule(model, most_tiles=_MOST_TILES)


def _waste(size: Size, canvas: Size) -> tuple[int, int]:
    """Return an order of canvases: the most pixels of the picture, then the smallest canvas."""
    scale = min(canvas.width / size.width, canvas.height / size.height)
    scaled = int(size.width * scale) * int(size.height * scale)
    used = min(scaled, size.width * size.height)
    return -used, canvas.width * canvas.height - used
