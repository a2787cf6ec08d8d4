"""The rules of all families, by the first of `architectures` in a model's config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferway.prompts.media import qwen_vl
from inferway.prompts.media.rule import MediaModel, MediaRule

_FAMILIES: Mapping[str, Callable[[MediaModel], MediaRule | None]] = {
    "Qwen2VLForConditionalGeneration": qwen_vl.rule,
    "Qwen2_5_VLForConditionalGeneration": qwen_vl.rule,
}


def rule_of(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model; None if its family has none here, or its files lack what the
    rule needs."""
    architectures = model.config.get("architectures") or [""]
    family = _FAMILIES.get(architectures[0])
    if family is None:
        return None
    try:
        return family(model)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None  # files of another form than the family's
