"""The rules for sounds: ids of chats with sounds and pictures, and where these are in them, are
those that vLLM's own processors gave for the same chats."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from tests.engines.record_sounds import COUNT, RECORDED, SEED
from tests.engines.tiny_sound import FAMILIES
from tests.engines.tiny_vision import write_model
from tests.prompts.media.recorded_sounds import faults

from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.loaded_model import LoadedModel
from inferway.prompts.media.rule import Sound


@pytest.mark.parametrize("name", FAMILIES)
def test_chats_have_the_ids_and_places_that_vllm_gave_them(name: str, tmp_path: Path) -> None:
    rows = json.loads(lzma.decompress(RECORDED.read_bytes()))[name]

    assert faults(name, SEED, rows, tmp_path / name) == []

    assert len(rows) == COUNT
    assert sum(row is not None for row in rows) > 0.6 * COUNT


@pytest.mark.parametrize(
    ("name", "sound", "length"),
    [
        ("qwen2_audio", Sound(480, 16000), 1),
        ("qwen2_audio", Sound(320, 16000), None),  # the engine refuses it: no token is left of it
        ("qwen2_audio", Sound(600 * 16000, 16000), 750),  # it is cut
        ("qwen2_5_omni", Sound(300 * 16000, 16000), 7500),
        ("qwen2_5_omni", Sound(300 * 16000 + 1, 16000), None),  # the engine's depends on others
        ("qwen3_omni", Sound(1, 16000), 1),
        ("qwen3_omni", Sound(600 * 16000, 16000), 7800),
    ],
)
def test_short_and_long_sounds_have_the_tokens_that_engines_give_them(
    name: str, sound: Sound, length: int | None, tmp_path: Path
) -> None:
    rule = LoadedModel(read_model_files(write_model(FAMILIES[name], tmp_path / name))).sound_rule

    assert rule is not None
    tokens = rule.expand(sound)
    assert (tokens and len(tokens)) == length


@pytest.mark.parametrize(
    "members",
    [
        {"feature_extractor_type": "X"},
        {"feature_extractor": {}},
        {"feature_extractor": "x"},
        {"hop_length": 0},
        {"hop_length": 7},
        {"hop_length": 160.0},
        {"sampling_rate": "16000"},
        {"chunk_length": None},
    ],
)
def test_files_with_untried_values_have_no_rule(members: dict[str, Any], tmp_path: Path) -> None:
    folder = write_model(FAMILIES["qwen2_audio"], tmp_path / "model")
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | members))

    assert LoadedModel(read_model_files(folder)).sound_rule is None
