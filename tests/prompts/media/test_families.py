"""The rules of the families: ids of chats with pictures, and where the pictures are in them, are
those that vLLM's own processors gave for the same chats; and where there is no rule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.engines.record_media import COUNT, RECORDED, SEED
from tests.engines.tiny_vision import FAMILIES, config_of, token_ids, write_vision_model
from tests.prompts.media.recorded import Rows, faults, read_rows

from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.loaded_model import LoadedModel
from inferway.prompts.media.families import rule_of
from inferway.prompts.media.rule import MediaModel, Size, expanded


@cache
def recorded() -> Rows:
    return read_rows(RECORDED)


@pytest.mark.parametrize("name", FAMILIES)
def test_chats_have_the_ids_and_places_that_vllm_gave_them(name: str, tmp_path: Path) -> None:
    rows = recorded()[name]

    assert faults(name, SEED, rows, tmp_path / name) == []

    assert len(rows) == COUNT
    assert sum(row is not None for row in rows) > 0.75 * COUNT


def model_with(name: str, config: Mapping[str, Any], processor: Mapping[str, Any]) -> MediaModel:
    """Return the parts of a family's tiny model, with other values in its files."""
    family = FAMILIES[name]
    whole = family.files.get("processor_config.json", {})
    assert not isinstance(whole, str)
    return MediaModel(
        {**config_of(name), **config},
        {**whole, **family.preprocessor, **processor},
        {**token_ids(name), **dict.fromkeys(("<image>", "</img>"), 1)}.get,
        lambda _text: [1],
        lambda _ids: "",
    )


# Values that no recorded model has: an engine may do anything with them.
OTHER_PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "not resized": ("qwen2_vl", {"do_resize": False}),
    "another processor": ("qwen3_vl", {"image_processor_type": "X"}),
    "no sizes": ("glm_4_1v", {"size": {}}),
    "crops": ("gemma_3", {"do_pan_and_scan": True}),
    "largest canvas": ("llama_4", {"resize_to_max_canvas": True}),
    "not padded": ("kimi_vl", {"pad_input": False}),
    "tiles that are no squares": ("internvl_hf", {"size": {"height": 448, "width": 336}}),
    "tokens that the vocabulary lacks": ("pixtral", {"image_end_token": "x"}),
}
OTHER_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "no thumbnail": ("internvl_chat", {"use_thumbnail": False}),
    "grids without end": ("internvl_chat", {"max_dynamic_patch": 10**9}),
    "another vision encoder": ("llava", {"vision_config": {"model_type": "x"}}),
    "another image processor": ("phi_4", {"img_processor": "x"}),
    "another family": ("qwen2_vl", {"architectures": ["X"]}),
    "no architecture": ("qwen2_vl", {"architectures": None}),
}


@pytest.mark.parametrize(("name", "others"), OTHER_PROCESSORS.values(), ids=OTHER_PROCESSORS)
def test_processors_with_untried_values_have_no_rule(name: str, others: dict[str, Any]) -> None:
    assert rule_of(model_with(name, {}, {})) is not None

    assert rule_of(model_with(name, {}, others)) is None


@pytest.mark.parametrize(("name", "others"), OTHER_CONFIGS.values(), ids=OTHER_CONFIGS)
def test_configurations_with_untried_values_have_no_rule(name: str, others: dict[str, Any]) -> None:
    assert rule_of(model_with(name, {}, {})) is not None

    assert rule_of(model_with(name, others, {})) is None


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("a <|image_1|> b <|image_2|> c", 2),
        ("a <|image_1|><|image_2|> c", 2),  # their tokens join: it is tokenized anew
        ("a <|image_2|> b <|image_1|> c", None),
        ("a <|image_2|> b <|image_1|> c <|image_2|>", None),
        ("a <|image_1|><|image_2|> <|endoftext10|>", None),
    ],
)
def test_numbered_placeholders_are_known_in_their_order_alone(
    text: str, places: int | None, tmp_path: Path
) -> None:
    model = LoadedModel(read_model_files(write_vision_model("phi_4", tmp_path / "phi_4")))
    assert model.media_rule is not None
    ids = model.tokenizer.encode(text, add_special_tokens=False)

    made = expanded(ids, [Size(100, 100)] * 2, model.media_rule)

    assert made == places if made is None else len(made[1]) == places
