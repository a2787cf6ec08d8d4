"""GLM-4.1V: a picture becomes as many `<|image|>` as it has merged patches.

Sources: transformers 5.19, models/glm4v/image_processing_glm4v.py (`smart_resize`); vLLM 0.32,
model_executor/models/glm4_1v.py (`_get_prompt_updates`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.rule import MediaModel, MediaRule, Size, resizes_with

_MOST_ASPECT = 200  # the processor refuses pictures that are longer in one direction


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    token, processor = model.token_id("<|image|>"), model.processor
    if token is None or not resizes_with(processor, "Glm4vImageProcessor"):
        return None
    factor = processor["patch_size"] * processor["merge_size"]
    least, most = processor["size"]["shortest_edge"], processor["size"]["longest_edge"]
    frames = processor["temporal_patch_size"]

    def expand(size: Size) -> list[int] | None:
        width, height = size
        if min(size) < factor:
            scale = max(factor / height, factor / width)
            width, height = int(width * scale), int(height * scale)
        if max(width, height) / min(width, height) > _MOST_ASPECT:
            return None
        columns, rows = round(width / factor), round(height / factor)
        pixels = frames * rows * factor * columns * factor
        if pixels > most:
            scale = math.sqrt(frames * height * width / most)
            rows = max(1, math.floor(height / scale / factor))
            columns = max(1, math.floor(width / scale / factor))
        elif pixels < least:
            scale = math.sqrt(least / (frames * height * width))
            rows = math.ceil(height * scale / factor)
            columns = math.ceil(width * scale / factor)
        return [token] * (rows * columns)

    return MediaRule("<|begin_of_image|><|image|><|end_of_image|>", (token,), expand)
