"""A tokenizer.json counts as transformers' class for it reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferway.prompts.tokenizer_classes import effective_tokenizer_json

FILE = json.dumps(
    {
        "normalizer": {"type": "Prepend", "prepend": "▁"},
        "post_processor": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "byte_fallback": False},
    }
)


def effective(model_type: str | None = "llama", **config: Any) -> dict[str, Any]:
    whole = {"tokenizer_class": "LlamaTokenizer", **config}
    result: dict[str, Any] = json.loads(effective_tokenizer_json(FILE, whole, model_type))
    return result


@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast"])
def test_llamas_class_keeps_only_vocabulary_and_post_processor(name: str) -> None:
    result = effective(tokenizer_class=name)

    assert result["normalizer"] is None
    assert result["model"]["vocab"] == {"a": 0}
    assert result["model"]["byte_fallback"] is True
    assert result["post_processor"] == {"type": "ByteLevel"}


@pytest.mark.parametrize(
    ("config", "scheme"),
    [({}, "first"), ({"legacy": True}, "always"), ({"add_prefix_space": False}, "never")],
)
def test_llamas_class_prepends_a_space_by_its_settings(config: dict[str, Any], scheme: str) -> None:
    assert effective(**config)["pre_tokenizer"]["prepend_scheme"] == scheme


@pytest.mark.parametrize(
    ("model_type", "name"),
    [("deepseek_v3", "LlamaTokenizerFast"), ("llama", "PreTrainedTokenizerFast"), ("llama", None)],
)
def test_other_types_and_classes_take_the_file_as_it_is(model_type: str, name: str | None) -> None:
    assert effective(model_type, tokenizer_class=name) == json.loads(FILE)
