"""Qwen2-VL, 2.5-VL, 3-VL, 3.5, 2.5-Omni and 3-Omni: a picture becomes as many `<|image_pad|>` as it
has merged patches.

Sources: transformers 5.19, models/qwen2_vl/image_processing_qwen2_vl.py (`smart_resize`); vLLM
0.32, model_executor/models/qwen2_vl.py and qwen3_vl.py (`_get_prompt_updates`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.rule import MediaModel, MediaRule, Size, resizes_with

_MOST_ASPECT = 200  # the processor refuses pictures that are longer in one direction


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model of the family."""
    return _rule(model, "<|image_pad|>")


def rule_of_omni(model: MediaModel) -> MediaRule | None:
    """Return the rule of a Qwen2.5-Omni, whose token has another name."""
    return _rule(model, "<|IMAGE|>")


def _rule(model: MediaModel, name: str) -> MediaRule | None:
    token, processor = model.token_id(name), model.processor
    if token is None or not resizes_with(processor, "Qwen2VLImageProcessor"):
        return None
    size = processor.get("size") or {}
    factor = processor["patch_size"] * processor["merge_size"]
    least = processor.get("min_pixels") or size["shortest_edge"]
    most = processor.get("max_pixels") or size["longest_edge"]

    def expand(size: Size) -> list[int] | None:
        if max(size) / min(size) > _MOST_ASPECT:
            return None
        return [token] * _patches(size, factor, least, most)

    return MediaRule(f"<|vision_start|>{name}<|vision_end|>", (token,), expand)


def _patches(size: Size, factor: int, least: int, most: int) -> int:
    """Return the number of squares of `factor` pixels of the resized picture."""
    width, height = (round(side / factor) * factor for side in size)
    if width * height > most:
        scale = math.sqrt(size.width * size.height / most)
        width, height = (max(factor, math.floor(s / scale / factor) * factor) for s in size)
    elif width * height < least:
        scale = math.sqrt(least / (size.width * size.height))
        width, height = (math.ceil(s * scale / factor) * factor for s in size)
    return width // factor * (height // factor)
