"""Tiny models whose layers need different parts of the KV cache, and one with a draft model. They
have a configuration and SmolLM2's tokenizer, and no weights: engines start them with `--load-format
dummy`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")

_COMMON: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,  # the CPU's kernel takes no smaller one
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}

# Three of four layers are state-space layers (gated delta nets).
QWEN3_NEXT: Mapping[str, Any] = {
    **_COMMON,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}

# Five of six layers have a sliding window of 256 tokens.
GEMMA_3: Mapping[str, Any] = {
    **_COMMON,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": 256,
    "query_pre_attn_scalar": 64,
}


# Full attention alone, and the draft model that EAGLE has beside it.
LLAMA: Mapping[str, Any] = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
}
EAGLE_HEAD: Mapping[str, Any] = {**LLAMA, "num_hidden_layers": 1}


def write_model(config: Mapping[str, Any], tokenizer_dir: Path, made: Path) -> Path:
    """Write a model of that configuration into the folder `made`, which is not there yet."""
    made.mkdir()
    for name in _TOKENIZER:
        shutil.copyfile(tokenizer_dir / name, made / name)
    (made / "config.json").write_text(json.dumps(config))
    return made
