"""Which of a model's templates a chat gets: the one that vLLM takes, by what transformers finds.

vLLM's rule (renderers/hf.py, `resolve_chat_template`): a processor's template for chats without
tools, else the tokenizer's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoProcessor, AutoTokenizer, ProcessorMixin

from inferway.errors import RenderError
from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.loaded_model import LoadedModel

Make = Callable[[Any, dict[str, Any]], Path]

# Sets up a processor that needs neither torch nor a file with a vocabulary of its own.
SPEECH = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80}
NAMED_SPEECH = {**SPEECH, "processor_class": "Qwen2AudioProcessor"}
LISTED = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "tools"}]


def write(directory: Path, name: str, value: Any) -> None:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A model's directory with the template in its tokenizer_config.json, and with `files`."""

    def write_all(template: Any, files: dict[str, Any]) -> Path:
        words = tokenizers.models.WordLevel({"a": 0}, unk_token="a")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
        write(tmp_path, "tokenizer.json", tokenizers.Tokenizer(words).to_str())
        write(tmp_path, "tokenizer_config.json", config)
        write(tmp_path, "config.json", {"model_type": "llama"})
        for name, value in files.items():
            write(tmp_path, name, value)
        return tmp_path

    return write_all


def engines(directory: Path, tools: list[Any] | None) -> str | None:
    if tools is None:
        any_processor: Any = AutoProcessor
        processor = any_processor.from_pretrained(directory)
        if isinstance(processor, ProcessorMixin) and processor.chat_template is not None:
            return str(processor.chat_template)
    try:
        found: str = AutoTokenizer.from_pretrained(directory).get_chat_template(tools=tools)
    except ValueError:
        return None
    return found


def ours(directory: Path, tools: list[Any] | None) -> str | None:
    try:
        model = LoadedModel(read_model_files(directory))
        return model.template(with_tools=tools is not None).source
    except RenderError:
        return None


@pytest.mark.parametrize("tools", [None, [{}]], ids=["without tools", "with tools"])
@pytest.mark.parametrize(
    ("template", "files"),
    [
        ("config", {}),
        (None, {}),
        (LISTED, {}),
        (LISTED[1:], {}),
        ("config", {"chat_template.jinja": "file"}),
        ("config", {"chat_template.jinja": "a\r\nb"}),
        (None, {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "t"}),
        (None, {"chat_template.jinja": "file", "additional_chat_templates/default.jinja": "d"}),
        ("config", {"additional_chat_templates/tool_use.jinja": "t"}),
        ("config", {"chat_template.json": {"chat_template": "stray"}}),
        (None, {"chat_template.json": {"chat_template": "stray"}}),
        (
            "config",
            {
                "chat_template.json": {"chat_template": "processor"},
                "preprocessor_config.json": NAMED_SPEECH,
            },
        ),
        (
            "config",
            {
                "chat_template.json": {"chat_template": "processor"},
                "preprocessor_config.json": SPEECH,
                "config.json": {"model_type": "qwen2_audio"},
            },
        ),
        (
            None,
            {
                "chat_template.json": {"chat_template": "processor"},
                "preprocessor_config.json": NAMED_SPEECH,
            },
        ),
        (
            "config",
            {
                "chat_template.json": {"chat_template": "processor"},
                "chat_template.jinja": "file",
                "preprocessor_config.json": NAMED_SPEECH,
            },
        ),
        ("config", {"chat_template.jinja": "file", "preprocessor_config.json": NAMED_SPEECH}),
        (
            LISTED,
            {
                "processor_config.json": {
                    "processor_class": "Qwen2AudioProcessor",
                    "chat_template": "in the config",
                },
                "preprocessor_config.json": SPEECH,
            },
        ),
    ],
)
def test_a_chat_gets_the_template_that_the_engine_takes(
    make: Make, template: Any, files: dict[str, Any], tools: list[Any] | None
) -> None:
    directory = make(template, files)

    assert ours(directory, tools) == engines(directory, tools)


def test_a_processor_with_a_template_in_its_code_is_left_to_the_engine(
    make: Make,
) -> None:
    directory = make("config", {"preprocessor_config.json": NAMED_SPEECH})

    assert read_model_files(directory).own_renderer == "Qwen2AudioProcessor"
    assert "Audio {{ audio_count.value }}" in str(engines(directory, None))


def test_what_does_not_compile_is_compiled_once(make: Make) -> None:
    """Not for each chat: of a large template it takes seconds."""
    model = LoadedModel(read_model_files(make("{{ " + "+".join(["1"] * 3000) + " }}", {})))

    calls: list[object] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code) if event == "call" else None)
    try:
        with pytest.raises(RenderError) as raised:
            model.template()
    finally:
        sys.setprofile(None)

    assert "does not compile" in str(raised.value)
    assert len(calls) < 100  # 10,000 if it is compiled again
