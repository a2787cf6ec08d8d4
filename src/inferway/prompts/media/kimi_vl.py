"""Kimi-VL: a picture becomes as many `<|media_pad|>` as it has merged patches, up to a limit.

Source: vLLM 0.32, model_executor/models/kimi_vl.py (`get_num_image_tokens`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.rule import MediaModel, MediaRule, Size


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    processor, token = model.processor, model.config["media_placeholder_token_id"]
    patch, limit = processor["patch_size"], processor["in_token_limit"]
    rows, columns = (patch * count for count in processor["merge_kernel_size"])

    def expand(size: Size) -> list[int]:
        width, height = size
        num_patches = (width // patch) * (height // patch)
        if num_patches > limit:
            scale = math.sqrt(limit / num_patches)
            width, height = int(width * scale), int(height * scale)
        return [token] * (math.ceil(height / rows) * math.ceil(width / columns))

    placeholder = "<|media_start|>image<|media_content|><|media_pad|><|media_end|>"
    return MediaRule(placeholder, (token,), expand)
