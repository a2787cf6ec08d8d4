"""A model's files -> what decides over its prompts: tokenizer, special tokens, templates.

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
from inferway.prompts.files.raw_files import (
    PROCESSOR_FILES,
    TOKENIZER,
    RawFiles,
    as_text,
    read_raw_files,
)
from inferway.prompts.tokenizer.engine_tokenizer import TokenizerFiles

JsonObject = dict[str, Any]

# Models for which vLLM has a renderer in code, chosen by architecture (config/model.py) or, for
# gpt-oss, by model type: no template of theirs tells what the engine will see.
GPT_OSS = "GptOssForCausalLM"
_OWN_RENDERER = {
    "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM",
    "DeepseekV4ForConditionalGeneration",
    "DeepseekV41ForCausalLM",
    "InklingForCausalLM",
    "InklingForConditionalGeneration",
    "KimiK3ForConditionalGeneration",
    "MoonshotKimiaForCausalLM",
    GPT_OSS,
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
    processor: Mapping[str, Any] = field(default_factory=dict, repr=False)  # of its pictures


def read_model_files(path: Path, *, follows_links: bool = False) -> ModelFiles:
    """Read and parse the files of a model that the caller vouches for (see `read_raw_files`).
    Raises RenderError."""
    return model_files(read_raw_files(path, follows_links=follows_links))


def model_files(raw: RawFiles) -> ModelFiles:
    """Parse a model's files; their content decides over memory and time. Raises RenderError."""
    config = _object(raw, "tokenizer_config.json")
    templates, names_templates = _templates(config, raw)
    return ModelFiles(
        tokenizer=TokenizerFiles(
            tokenizer_json=as_text(raw.files[TOKENIZER], raw.path),
            tokenizer_config=config,
            special_tokens_map=_object(raw, "special_tokens_map.json"),
            added_tokens=_object(raw, "added_tokens.json"),
            model_config=_object(raw, "config.json"),
            path=raw.path,
        ),
        templates=templates,
        names_templates=names_templates,
        processor_template=_processor_template(raw),
        own_renderer=_own_renderer(raw),
        media_first=bool(_MEDIA_FIRST & set(_architectures(raw))),
        processor=_picture_processor(raw),
    )


def _object(raw: RawFiles, name: str) -> JsonObject:
    """The JSON object in a file; empty if there is no such file."""
    if name not in raw.files:
        return {}
    try:
        return msgspec.json.decode(raw.files[name], type=JsonObject)
    except (msgspec.MsgspecError, RecursionError) as e:
        raise RenderError(
            f"{raw.directory}/{name}: not a JSON object: {e}", reason=Reason.NO_TOKENIZER
        ) from e


def _templates(config: JsonObject, raw: RawFiles) -> tuple[dict[str, str], bool]:
    """By name, and whether the names count."""
    if raw.templates:
        read = {
            name: as_text(content, f"{raw.directory}: template {name!r}")
            for name, content in raw.templates.items()
        }
        return read, read.keys() != {"default"}
    try:
        given = msgspec.convert(config.get("chat_template") or {}, _ConfigTemplates)
    except msgspec.ValidationError as e:
        raise RenderError(
            f"{raw.directory}/tokenizer_config.json: chat_template: {e}; expected a text, or texts"
            " by name",
            reason=Reason.BAD_TOKENIZER,
        ) from e
    if isinstance(given, list):
        given = {entry.name: entry.template for entry in given}
    if isinstance(given, str):
        return {"default": given}, False
    return given, True


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


_ConfigTemplates = str | list[_NamedTemplate] | dict[str, str]


# In the order in which transformers' AutoProcessor looks for the name of a processor's class.
_FILES_WITH_A_PROCESSOR = (
    *PROCESSOR_FILES,
    "video_preprocessor_config.json",
    "tokenizer_config.json",
    "config.json",
)

# Classes with a template in their code, for models whose files have none.
_TEMPLATE_IN_CODE = {"Llama4Processor", "Qwen2AudioProcessor", "SmolVLMProcessor"}


def _processor_template(raw: RawFiles) -> str | None:
    """None if it has none, or the same as the tokenizer (processing_utils.py). That there is a
    processor shows in what names or sets it up; text models may have a stray chat_template.json.
    """
    if _processor(raw) is None:
        return None
    for name in ("processor_config.json", "chat_template.json"):
        template = _object(raw, name).get("chat_template")
        if isinstance(template, str):
            return template
    return None


def _processor(raw: RawFiles) -> str | None:
    """Its class; "" if it has no name, None if there is no processor."""
    for name in _FILES_WITH_A_PROCESSOR:
        processor = _object(raw, name).get("processor_class")
        if isinstance(processor, str):
            return processor
    return "" if any(name in raw.files for name in PROCESSOR_FILES) else None


def _picture_processor(raw: RawFiles) -> JsonObject:
    """Return the settings of the processor, and of its part for pictures from the file that
    transformers takes them from (image_processing_base.py, `get_image_processor_dict`)."""
    whole = _object(raw, "processor_config.json")
    nested = whole.get("image_processor")
    pictures = nested if isinstance(nested, dict) else _object(raw, "preprocessor_config.json")
    return {**whole, **pictures}


def _architectures(raw: RawFiles) -> list[str]:
    given = _object(raw, "config.json").get("architectures")
    return [name for name in given if isinstance(name, str)] if isinstance(given, list) else []


def _own_renderer(raw: RawFiles) -> str | None:
    architectures = _architectures(raw)
    for architecture in architectures:
        if architecture in _OWN_RENDERER:
            return architecture
    if raw.is_of_mistral and any("istral" in name for name in architectures):
        return "mistral"
    processor = _processor(raw)
    has_template = raw.has_template
    if processor in _TEMPLATE_IN_CODE and not (has_template or _processor_template(raw)):
        return processor
    return None
