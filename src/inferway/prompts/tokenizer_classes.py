"""What transformers 5 makes of a tokenizer.json because of the class that the model names.

Most classes take the file as it is. `LlamaTokenizer` takes only vocabulary, merges, added tokens
and post-processor from it and builds the rest anew (models/llama/tokenization_llama.py), which
changes how spaces are encoded. It is taken at its word only where the model's type has no class
of its own in transformers' list (models/auto/tokenization_auto.py): `llama`, or no type at all.
"""

from __future__ import annotations

import json
from typing import Any

_LLAMA_CLASSES = {"LlamaTokenizer", "LlamaTokenizerFast"}
_LLAMA_TYPES = {"llama", None}

_SPACE = "▁"


def effective_tokenizer_json(
    tokenizer_json: str, config: dict[str, Any], model_type: str | None
) -> str:
    """The tokenizer.json that the engine's tokenizer amounts to."""
    if config.get("tokenizer_class") not in _LLAMA_CLASSES or model_type not in _LLAMA_TYPES:
        return tokenizer_json
    tokenizer = json.loads(tokenizer_json)
    if tokenizer.get("model", {}).get("type") != "BPE":
        return tokenizer_json
    return json.dumps(_as_llama(tokenizer, config), ensure_ascii=False)


def _as_llama(tokenizer: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    prefix_space = config.get("add_prefix_space") is not False
    scheme = "never"
    if prefix_space:
        scheme = "always" if config.get("legacy") else "first"
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": tokenizer["model"]["vocab"],
        "merges": tokenizer["model"]["merges"],
    }
    return {
        **tokenizer,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": scheme,
            "split": False,
        },
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }
