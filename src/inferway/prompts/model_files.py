"""A model's directory -> what decides over its prompts: tokenizer, special tokens, templates.

The rules are those of transformers' `from_pretrained` (tokenization_utils_base.py): special
tokens from tokenizer_config.json, from special_tokens_map.json only where the former lists no
added tokens; templates from .jinja files before those in tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from inferway.errors import RenderError
from inferway.model import Reason
from inferway.prompts.tokenizer_classes import effective_tokenizer_json

JsonObject = dict[str, Any]

# Models for which vLLM has a renderer in code, chosen by architecture (config/model.py) or, for
# gpt-oss, by model type: no template of theirs tells what the engine will see.
_OWN_RENDERER = {
    "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM",
    "DeepseekV4ForConditionalGeneration",
    "DeepseekV41ForCausalLM",
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "MoonshotKimiaForCausalLM",
    "GptOssForCausalLM",
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The contents of a model's files. `templates` has "default", and others by name."""

    tokenizer_json: str = field(repr=False)
    config: JsonObject = field(repr=False)
    templates: Mapping[str, str] = field(repr=False)
    own_renderer: str | None = None  # vLLM renders chats of this model in code of its own


def read_model_files(path: Path) -> ModelFiles:
    """`path` is a model's directory, or its tokenizer.json. Raises RenderError."""
    directory = path.parent if path.is_file() else path
    tokenizer = path if path.is_file() else directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise RenderError(
            f"{directory}: no tokenizer.json; other tokenizer formats are not read",
            reason=Reason.NO_TOKENIZER,
        )
    config = _with_special_tokens_map(_read_object(directory / "tokenizer_config.json"), directory)
    model_type = _read_object(directory / "config.json").get("model_type")
    return ModelFiles(
        tokenizer_json=effective_tokenizer_json(
            tokenizer.read_text(encoding="utf-8"), config, model_type
        ),
        config=config,
        templates=_templates(config, directory),
        own_renderer=_own_renderer(directory),
    )


def _read_object(path: Path) -> JsonObject:
    """The JSON object in `path`; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=JsonObject)
    except msgspec.MsgspecError as e:
        raise RenderError(f"{path}: not a JSON object: {e}", reason=Reason.NO_TOKENIZER) from e


def _with_special_tokens_map(config: JsonObject, directory: Path) -> JsonObject:
    if "added_tokens_decoder" in config:
        return config
    return {**config, **_read_object(directory / "special_tokens_map.json")}


def _templates(config: JsonObject, directory: Path) -> dict[str, str]:
    files = {
        path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))
    }
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    given = config.get("chat_template")
    if given is None:
        given = _read_object(directory / "chat_template.json").get("chat_template")
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}
    if isinstance(given, str):
        return {"default": given}
    return given or {}


def _own_renderer(directory: Path) -> str | None:
    architectures = _read_object(directory / "config.json").get("architectures") or []
    for architecture in architectures:
        if architecture in _OWN_RENDERER:
            return str(architecture)
    mistral_tokenizer = any(
        any(directory.glob(pattern)) for pattern in ("tekken.json", "tokenizer.model.v*")
    )
    if mistral_tokenizer and any("istral" in name for name in architectures):
        return "mistral"
    return None


# In transformers' order; those a model has are variables of its chat template.
_SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def special_tokens(config: JsonObject) -> dict[str, str]:
    """`bos_token` and the like, which are text or `{"content": text, …}`."""
    found = {}
    for name in _SPECIAL_TOKEN_NAMES:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found
