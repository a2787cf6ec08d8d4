"""Llama 4: a picture becomes the patches of a grid of tiles, with tokens between them, and those of
the whole picture.

Sources: transformers 5.19, models/llama4/image_processing_llama4.py (`get_best_fit`) and
processing_llama4.py (`_prompt_split_image`); vLLM 0.32, model_executor/models/mllama4.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.prompts.media.rule import MediaModel, MediaRule, Size, resizes_with
from inferway.prompts.media.tiles import grids

_TOKENS = ("image_start", "image", "image_end", "patch", "tile_x_separator", "tile_y_separator")


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    processor, vision = model.processor, model.config["vision_config"]
    ids = [model.token_id(f"<|{name}|>") for name in _TOKENS]
    begin, whole, end, patch, column_end, row_end = (token for token in ids if token is not None)
    tile = vision["image_size"]
    known = resizes_with(processor, "Llama4ImageProcessor")
    if not known or processor["resize_to_max_canvas"] or processor["size"]["height"] != tile:
        return None
    shrink = round(1 / vision["pixel_shuffle_ratio"] ** 2)
    patches = [patch] * ((tile // vision["patch_size"]) ** 2 // shrink)
    candidates = np.array(grids(1, processor["max_patches"]))

    def expand(size: Size) -> list[int]:
        columns, rows = _grid(size, candidates, tile)
        row = [*([*patches, column_end] * columns)[:-1], row_end]
        tiles = row * rows if rows * columns > 1 else []
        return [begin, *tiles, whole, *patches, end]

    return MediaRule("<|image|>", (whole,), expand)


def _grid(size: Size, candidates: NDArray[np.intp], tile: int) -> tuple[int, int]:
    """Return the smallest grid of those that the picture is scaled to the least."""
    scales = ((candidates * tile).astype(np.float32) / np.array(size, np.float32)).min(axis=1)
    up = scales[scales >= 1]
    scale = up.min() if len(up) else scales.max()
    columns, rows = candidates[np.argmax(scales == scale)].tolist()
    return columns, rows
