"""Qwen2-Audio, and the sounds of Qwen2.5-Omni and Qwen3-Omni: a sound becomes as many tokens as its
encoder makes of the frames of a spectrogram.

Sources: transformers 5.19, models/whisper/feature_extraction_whisper.py; vLLM 0.32,
model_executor/models/qwen2_audio.py, qwen2_5_omni_thinker.py and qwen3_omni_moe_thinker.py.
"""

from __future__ import annotations

from collections.abc import Callable

from inferway.prompts.media.rule import MediaModel, MediaRule, Sound
from inferway.prompts.media.sound import resampled

_TOKEN, _TOKEN_3 = "<|AUDIO|>", "<|audio_pad|>"
_PLACEHOLDER = f"Audio {{}}: <|audio_bos|>{_TOKEN}<|audio_eos|>"
_PLACEHOLDER_3 = f"<|audio_start|>{_TOKEN_3}<|audio_end|>"


def rule(model: MediaModel) -> MediaRule | None:
    """Return the rule of a Qwen2-Audio: sounds are cut to the extractor's longest."""
    return _rule(model, _PLACEHOLDER, _TOKEN, lambda frames, most: _encoded(min(frames, most)))


def rule_of_omni(model: MediaModel) -> MediaRule | None:
    """Return the rule of a Qwen2.5-Omni; tokens of a longer sound depend on those beside it."""

    def num_tokens(frames: int, most: int) -> int:
        return _encoded(frames) if frames <= most else 0

    return _rule(model, _PLACEHOLDER, _TOKEN, num_tokens)


def rule_of_omni_3(model: MediaModel) -> MediaRule | None:
    """Return the rule of a Qwen3-Omni: no sound is too long."""
    return _rule(model, _PLACEHOLDER_3, _TOKEN_3, lambda frames, _most: _encoded_in_parts(frames))


def _rule(
    model: MediaModel, placeholder: str, name: str, num_tokens: Callable[[int, int], int]
) -> MediaRule | None:
    """Return the rule for `num_tokens` of a sound's frames and the most frames; 0: it is refused,
    or not known."""
    extractor, token = (
        model.processor.get("feature_extractor", model.processor),
        model.token_id(name),
    )
    rate, hop = extractor["sampling_rate"], extractor["hop_length"]
    most, rest = divmod(extractor["chunk_length"] * rate, hop)
    is_tried = extractor["feature_extractor_type"] == "WhisperFeatureExtractor" and not rest
    if token is None or not is_tried or not isinstance(most, int):
        return None

    def expand(sound: Sound) -> list[int] | None:
        frames = -(-resampled(sound, rate) // hop)
        return [token] * num_tokens(frames, most) or None

    return MediaRule(placeholder, (token,), expand)


def _encoded(frames: int) -> int:
    return ((frames - 1) // 2 - 1) // 2 + 1


def _encoded_in_parts(frames: int) -> int:
    parts, rest = divmod(frames, 100)
    return parts * 13 + -(-rest // 8)
