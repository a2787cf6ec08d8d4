"""Kimi-VL: a picture becomes as many `<|media_pad|>` as it has merged patches, up to a limit.

Source: vLLM 0.32, model_executor/models/kimi_vl.py (`get_num_image_tokens`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.rule import MediaModel, MediaRule, Size

_MOST_PATCHES = 512  # in a row or column: the processor refuses more


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    processor, token = model.processor, model.config["media_placeholder_token_id"]
    patch, limit = processor["patch_size"], processor["in_token_limit"]
    rows, columns = (patch * count for count in processor["merge_kernel_size"])
    if not isinstance(token, int) or processor["pad_input"] is not True:
        return None

    def expand(size: Size) -> list[int] | None:
        width, height = size
        num_patches = (width // patch) * (height // patch)
        if num_patches > limit:
            scale = math.sqrt(limit / num_patches)
            width, height = int(width * scale), int(height * scale)
        height, width = math.ceil(height / rows), math.ceil(width / columns)
        if max(height * rows, width * columns) // patch >= _MOST_PATCHES:
            return None
        return [token] * (height * width)

    placeholder = "<|media_start|>image<|media_content|><|media_pad|><|media_end|>"
    return MediaRule(placeholder, (token,), expand)
