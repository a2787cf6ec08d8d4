"""DeepSeek-OCR: a picture becomes the tokens of itself and, if it is large, of a grid of tiles.

Source: vLLM 0.32, model_executor/models/deepseek_ocr.py (`get_num_image_tokens`); its sizes are in
transformers_utils/processors/deepseek_ocr.py.
"""

from __future__ import annotations

from inferway.prompts.media.rule import MediaModel, MediaRule, Size
from inferway.prompts.media.tiles import closest, grids

_TILE = 640
_TILE_LENGTH = 10  # tokens, as wide as high
_WHOLE_LENGTH = 16
_GRIDS = grids(2, 6)


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    token = model.token_id("<image>")
    if token is None:
        return None

    def expand(size: Size) -> list[int]:
        count = _WHOLE_LENGTH * (_WHOLE_LENGTH + 1) + 1
        if max(size) > _TILE:
            columns, rows = closest(size, _GRIDS, _TILE)
            count += rows * _TILE_LENGTH * (columns * _TILE_LENGTH + 1)
        return [token] * count

    return MediaRule("<image>", (token,), expand)
