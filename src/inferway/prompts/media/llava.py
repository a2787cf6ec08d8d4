"""LLaVA 1.5: all pictures become as many tokens as the vision encoder returns.

Source: vLLM 0.32, model_executor/models/llava.py (`get_num_image_tokens`), clip.py and siglip.py.
"""

from __future__ import annotations

from collections.abc import Callable

from inferway.prompts.media import pixtral
from inferway.prompts.media.rule import JsonObject, MediaModel, MediaRule, Size

_CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
_LEFT_OUT = {"default": 1, "full": 0}


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model; a Pixtral in Hugging Face's format has this architecture, too."""
    config = model.config
    if config["vision_config"]["model_type"] == "pixtral":
        return pixtral.rule(model)
    num_tokens = encoded(config)
    return repeated(config, lambda _size: num_tokens)


def encoded(config: JsonObject) -> int:
    """Return how many tokens of one picture the language model gets from the vision encoder."""
    class_tokens = _CLASS_TOKENS[config["vision_config"]["model_type"]]
    left_out = _LEFT_OUT[config["vision_feature_select_strategy"]]
    return side(config) ** 2 + class_tokens - left_out


def side(config: JsonObject) -> int:
    """Return how many patches a square of the vision encoder is wide and high."""
    vision = config["vision_config"]
    length: int = vision["image_size"] // vision["patch_size"]
    return length


def repeated(config: JsonObject, num_tokens: Callable[[Size], int]) -> MediaRule:
    """Return the rule that repeats the one token of a picture."""
    token = image_token(config)
    return MediaRule("<image>", (token,), lambda size: [token] * num_tokens(size))


def image_token(config: JsonObject) -> int:
    """Return the token that stands for a picture; newer configurations have it under a new name."""
    token = config["image_token_index" if "image_token_index" in config else "image_token_id"]
    if not isinstance(token, int):
        raise TypeError(token)
    return token
