"""Tiny models that take sounds, one of each family, made of those in tiny_vision.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.engines import tiny_vision
from tests.engines.tiny_vision import Family

_QWEN_2, _QWEN_3 = tiny_vision.FAMILIES["qwen2_5_vl"], tiny_vision.FAMILIES["qwen3_vl"]
_EXTRACTOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "chunk_length": 30,
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 400,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 16000,
}
_AUDIO = {
    "num_mel_bins": 128,
    "d_model": 128,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "output_dim": 128,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_OMNI = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
}
_OMNI_3 = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}

# What the chat template writes for a sound.
SOUNDS: Mapping[str, str] = {
    "qwen2_audio": "Audio {}: <|audio_bos|><|AUDIO|><|audio_eos|>\n",
    "qwen2_5_omni": "<|audio_bos|><|AUDIO|><|audio_eos|>",
    "qwen3_omni": "<|audio_start|><|audio_pad|><|audio_end|>",
}


def _config(architecture: str, model_type: str, **members: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": "bfloat16",
        **members,
    }


FAMILIES: Mapping[str, Family] = {
    "qwen2_audio": Family(
        _config(
            "Qwen2AudioForConditionalGeneration",
            "qwen2_audio",
            text_config={
                **_QWEN_2.config["text_config"],
                "model_type": "qwen2",
                "rope_parameters": _ROPE,
            },
            audio_config={**_AUDIO, "model_type": "qwen2_audio_encoder"},
            audio_token_index="<|AUDIO|>",
        ),
        {**_EXTRACTOR, "processor_class": "Qwen2AudioProcessor"},
        ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"),
        "",
    ),
    "qwen2_5_omni": Family(
        _config(
            "Qwen2_5OmniModel",
            "qwen2_5_omni",
            enable_audio_output=False,
            thinker_config={
                "model_type": "qwen2_5_omni_thinker",
                "text_config": {**_QWEN_2.config["text_config"], "model_type": "qwen2_5_omni_text"},
                "vision_config": {
                    **_QWEN_2.config["vision_config"],
                    "model_type": "qwen2_5_omni_vision_encoder",
                },
                "audio_config": {**_AUDIO, "model_type": "qwen2_5_omni_audio_encoder"},
                "audio_token_index": "<|AUDIO|>",
                "image_token_index": "<|IMAGE|>",
                "video_token_index": "<|VIDEO|>",
                "audio_start_token_id": "<|audio_bos|>",
                "audio_end_token_id": "<|audio_eos|>",
            },
        ),
        {
            **_EXTRACTOR,
            **_QWEN_2.preprocessor,
            "chunk_length": 300,
            "processor_class": "Qwen2_5OmniProcessor",
        },
        tuple(_OMNI.values()),
        "<|vision_bos|><|IMAGE|><|vision_eos|>",
        settings=_OMNI,
    ),
    "qwen3_omni": Family(
        _config(
            "Qwen3OmniMoeForConditionalGeneration",
            "qwen3_omni_moe",
            enable_audio_output=False,
            thinker_config={
                "model_type": "qwen3_omni_moe_thinker",
                "text_config": {
                    **_QWEN_3.config["text_config"],
                    "model_type": "qwen3_omni_moe_text",
                    "num_experts": 4,
                    "num_experts_per_tok": 2,
                    "moe_intermediate_size": 64,
                },
                "vision_config": {
                    **_QWEN_3.config["vision_config"],
                    "model_type": "qwen3_omni_moe_vision_encoder",
                },
                "audio_config": {
                    **_AUDIO,
                    "model_type": "qwen3_omni_moe_audio_encoder",
                    "downsample_hidden_size": 64,
                },
                "audio_token_id": "<|audio_pad|>",
                "image_token_id": "<|image_pad|>",
                "video_token_id": "<|video_pad|>",
                "audio_start_token_id": "<|audio_start|>",
                "audio_end_token_id": "<|audio_end|>",
            },
        ),
        {
            **_EXTRACTOR,
            **_QWEN_3.preprocessor,
            "chunk_length": 300,
            "processor_class": "Qwen3OmniMoeProcessor",
        },
        tuple(_OMNI_3.values()),
        "<|vision_start|><|image_pad|><|vision_end|>",
        settings=_OMNI_3,
    ),
}
