"""A model's directory -> what decides over its prompts: tokenizer, special tokens, templates.

Which file counts is as in transformers' `from_pretrained` (tokenization_utils_base.py): templates
from .jinja files before those in tokenizer_config.json; for tokenizers see engine_tokenizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from inferway.errors import RenderError
from inferway.model import Reason
from inferway.prompts.engine_tokenizer import TokenizerFiles

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

# Models whose images vLLM inserts at the start of a prompt (`PromptInsertion`).
_MEDIA_FIRST = {
    "Blip2ForConditionalGeneration",
    "MolmoForCausalLM",
    "OpenVLAForActionPrediction",
    "PaliGemmaForConditionalGeneration",
}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The contents of a model's files. `templates` has "default", and others by name."""

    tokenizer: TokenizerFiles
    templates: Mapping[str, str] = field(repr=False)
    # Whether requests may choose one by its name: a single template has none in transformers.
    names_templates: bool = False
    # The processor's own, which vLLM takes for chats without tools.
    processor_template: str | None = field(default=None, repr=False)
    own_renderer: str | None = None  # vLLM renders chats of this model in code of its own
    media_first: bool = False  # its processor puts images in front of the text


def read_model_files(path: Path) -> ModelFiles:
    """`path` is a model's directory, or its tokenizer.json. Raises RenderError."""
    directory = path.parent if path.is_file() else path
    tokenizer = path if path.is_file() else directory / "tokenizer.json"
    if not tokenizer.is_file():
        raise RenderError(
            f"{directory}: no tokenizer.json; other tokenizer formats are not read",
            reason=Reason.NO_TOKENIZER,
        )
    config = _read_object(directory / "tokenizer_config.json")
    templates, names_templates = _templates(config, directory)
    return ModelFiles(
        tokenizer=TokenizerFiles(
            tokenizer_json=tokenizer.read_text(encoding="utf-8"),
            path=str(tokenizer),
            tokenizer_config=config,
            special_tokens_map=_read_object(directory / "special_tokens_map.json"),
            added_tokens=_read_object(directory / "added_tokens.json"),
            model_config=_read_object(directory / "config.json"),
        ),
        templates=templates,
        names_templates=names_templates,
        processor_template=_processor_template(directory),
        own_renderer=_own_renderer(directory),
        media_first=bool(_MEDIA_FIRST & set(_architectures(directory))),
    )


def _read_object(path: Path) -> JsonObject:
    """The JSON object in `path`; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=JsonObject)
    except msgspec.MsgspecError as e:
        raise RenderError(f"{path}: not a JSON object: {e}", reason=Reason.NO_TOKENIZER) from e


def _templates(config: JsonObject, directory: Path) -> tuple[dict[str, str], bool]:
    """By name, and whether the names count."""
    files = {}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    files |= {
        path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))
    }
    if files:
        read = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        return read, read.keys() != {"default"}
    given = config.get("chat_template")
    if isinstance(given, list):
        given = {entry["name"]: entry["template"] for entry in given}
    if isinstance(given, str):
        return {"default": given}, False
    return given or {}, True


# In the order in which transformers' AutoProcessor looks for the name of a processor's class.
_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_FILES_WITH_A_PROCESSOR = (
    *_PROCESSOR_FILES,
    "video_preprocessor_config.json",
    "tokenizer_config.json",
    "config.json",
)

# Classes with a template in their code, for models whose files have none.
_TEMPLATE_IN_CODE = {"Llama4Processor", "Qwen2AudioProcessor", "SmolVLMProcessor"}


def _processor_template(directory: Path) -> str | None:
    """None if it has none, or the same as the tokenizer (processing_utils.py). That there is a
    processor shows in what names or sets it up; text models may have a stray chat_template.json.
    """
    if _processor(directory) is None:
        return None
    for name in ("processor_config.json", "chat_template.json"):
        template = _read_object(directory / name).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _processor(directory: Path) -> str | None:
    """Its class; "" if it has no name, None if there is no processor."""
    for name in _FILES_WITH_A_PROCESSOR:
        processor = _read_object(directory / name).get("processor_class")
        if isinstance(processor, str):
            return processor
    return "" if any((directory / name).is_file() for name in _PROCESSOR_FILES) else None


def _architectures(directory: Path) -> list[Any]:
    return _read_object(directory / "config.json").get("architectures") or []


def _own_renderer(directory: Path) -> str | None:
    architectures = _architectures(directory)
    for architecture in architectures:
        if architecture in _OWN_RENDERER:
            return str(architecture)
    mistral_tokenizer = any(
        any(directory.glob(pattern)) for pattern in ("tekken.json", "tokenizer.model.v*")
    )
    if mistral_tokenizer and any("istral" in name for name in architectures):
        return "mistral"
    processor = _processor(directory)
    has_template = (directory / "chat_template.jinja").is_file()
    if processor in _TEMPLATE_IN_CODE and not (has_template or _processor_template(directory)):
        return processor
    return None
