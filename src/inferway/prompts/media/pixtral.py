"""Pixtral in Hugging Face's format and Mistral 3: a picture becomes rows of patches, each with a
token at its end.

Source: vLLM 0.32, model_executor/models/llava.py (`PixtralHFMultiModalProcessor`), pixtral.py
(`get_patch_grid_size`) and mistral3.py (`_get_prompt_updates`).
"""

from __future__ import annotations

import math

from inferway.prompts.media.rule import MediaModel, MediaRule, Size


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a Pixtral: its configuration has the size of the largest picture."""
    vision = model.config["vision_config"]
    return _rule(model, "<image>", vision["image_size"], vision["patch_size"])


def rule_of_mistral_3(model: MediaModel) -> MediaRule | None:
    """Return the rule of a Mistral 3: its processor has the size of the largest picture."""
    config = model.config
    patch = config["vision_config"]["patch_size"] * config["spatial_merge_size"]
    return _rule(model, "", model.processor["size"]["longest_edge"], patch)


def _rule(model: MediaModel, placeholder: str, largest: int, patch: int) -> MediaRule | None:
    token = model.config["image_token_index"]
    names = [model.processor.get(f"image_{end}_token", default) for end, default in _ENDS.items()]
    row_end, end = (model.token_id(name) for name in names)
    if not isinstance(token, int) or row_end is None or end is None:
        return None

    def expand(size: Size) -> list[int] | None:
        width, height = size
        ratio = max(width / largest, height / largest)
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        if width < 1 or height < 1:
            return None
        columns, rows = (width - 1) // patch + 1, (height - 1) // patch + 1
        tokens = ([token] * columns + [row_end]) * rows
        return [*tokens[:-1], end]

    return MediaRule(placeholder, (token,), expand)


_ENDS = {"break": "[IMG_BREAK]", "end": "[IMG_END]"}
