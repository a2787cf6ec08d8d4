"""The rules of all families, by the first of `architectures` in a model's config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferway.prompts.media import (
    deepseek_ocr,
    gemma_3,
    glm,
    internvl,
    kimi_vl,
    llama_4,
    llava,
    llava_next,
    phi_4,
    pixtral,
    qwen_audio,
    qwen_vl,
)
from inferway.prompts.media.rule import MediaModel, MediaRule

_Rules = Mapping[str, Callable[[MediaModel], MediaRule | None]]

_FAMILIES: _Rules = {
    "DeepseekOCRForCausalLM": deepseek_ocr.rule,
    "Gemma3ForConditionalGeneration": gemma_3.rule,
    "Glm4vForConditionalGeneration": glm.rule,
    "Glm4vMoeForConditionalGeneration": glm.rule,
    "InternVLChatModel": internvl.rule,
    "InternVLForConditionalGeneration": internvl.rule_of_hf,
    "KimiVLForConditionalGeneration": kimi_vl.rule,
    "Llama4ForConditionalGeneration": llama_4.rule,
    "LlavaForConditionalGeneration": llava.rule,
    "LlavaNextForConditionalGeneration": llava_next.rule,
    "LlavaOnevisionForConditionalGeneration": llava_next.rule_of_onevision,
    "Mistral3ForConditionalGeneration": pixtral.rule_of_mistral_3,
    "Phi4MMForCausalLM": phi_4.rule,
    "Qwen2VLForConditionalGeneration": qwen_vl.rule,
    "Qwen2_5OmniForConditionalGeneration": qwen_vl.rule_of_omni,
    "Qwen2_5OmniModel": qwen_vl.rule_of_omni,
    "Qwen2_5_VLForConditionalGeneration": qwen_vl.rule,
    "Qwen3OmniMoeForConditionalGeneration": qwen_vl.rule,
    "Qwen3VLForConditionalGeneration": qwen_vl.rule,
    "Qwen3VLMoeForConditionalGeneration": qwen_vl.rule,
    "Qwen3_5ForConditionalGeneration": qwen_vl.rule,
    "Qwen3_5MoeForConditionalGeneration": qwen_vl.rule,
}

_OF_SOUNDS: _Rules = {
    "Qwen2AudioForConditionalGeneration": qwen_audio.rule,
    "Qwen2_5OmniForConditionalGeneration": qwen_audio.rule_of_omni,
    "Qwen2_5OmniModel": qwen_audio.rule_of_omni,
    "Qwen3OmniMoeForConditionalGeneration": qwen_audio.rule_of_omni_3,
}


def rule_of(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model for pictures; None if its family has none here, or its files lack
    what the rule needs."""
    return _made(_FAMILIES, model)


def sound_rule_of(model: MediaModel) -> MediaRule | None:
    """Return the rule of a model for sounds; None as for pictures."""
    return _made(_OF_SOUNDS, model)


def _made(rules: _Rules, model: MediaModel) -> MediaRule | None:
    architectures = model.config.get("architectures") or [""]
    family = rules.get(architectures[0])
    if family is None:
        return None
    try:
        return family(model)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        return None  # files of another form than the family's
