"""Which files decide over a model's prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferway.errors import RenderError
from inferway.prompts.model_files import read_model_files, special_tokens


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    return tmp_path


def write(directory: Path, name: str, value: Any) -> None:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def test_a_jinja_file_wins_over_the_config(directory: Path) -> None:
    write(directory, "tokenizer_config.json", {"chat_template": "config"})
    write(directory, "chat_template.jinja", "file")

    assert read_model_files(directory).templates == {"default": "file"}


def test_additional_jinja_files_are_named_templates(directory: Path) -> None:
    write(directory, "chat_template.jinja", "file")
    write(directory, "additional_chat_templates/tool_use.jinja", "tools")

    assert read_model_files(directory).templates == {"default": "file", "tool_use": "tools"}


def test_a_config_may_list_named_templates(directory: Path) -> None:
    named = [{"name": "default", "template": "d"}, {"name": "rag", "template": "r"}]
    write(directory, "tokenizer_config.json", {"chat_template": named})

    assert read_model_files(directory).templates == {"default": "d", "rag": "r"}


def test_a_processors_template_is_the_last_resort(directory: Path) -> None:
    write(directory, "chat_template.json", {"chat_template": "old"})

    assert read_model_files(directory).templates == {"default": "old"}


def test_the_path_of_a_tokenizer_file_stands_for_its_directory(directory: Path) -> None:
    write(directory, "chat_template.jinja", "file")

    assert read_model_files(directory / "tokenizer.json").templates == {"default": "file"}


def test_special_tokens_are_text_or_objects() -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
    }

    assert special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_the_special_tokens_map_counts_where_the_config_lists_no_added_tokens(
    directory: Path,
) -> None:
    write(directory, "special_tokens_map.json", {"bos_token": "<map>"})
    write(directory, "tokenizer_config.json", {"bos_token": "<config>"})

    assert read_model_files(directory).config["bos_token"] == "<map>"


def test_the_special_tokens_map_does_not_count_beside_added_tokens(directory: Path) -> None:
    write(directory, "special_tokens_map.json", {"bos_token": "<map>"})
    write(directory, "tokenizer_config.json", {"bos_token": "<c>", "added_tokens_decoder": {}})

    assert read_model_files(directory).config["bos_token"] == "<c>"


@pytest.mark.parametrize(
    ("architecture", "extra", "renderer"),
    [
        ("LlamaForCausalLM", None, None),
        ("GptOssForCausalLM", None, "GptOssForCausalLM"),
        ("DeepseekV32ForCausalLM", None, "DeepseekV32ForCausalLM"),
        ("MistralForCausalLM", None, None),
        ("MistralForCausalLM", "tekken.json", "mistral"),
    ],
)
def test_models_that_vllm_renders_in_code_are_known(
    directory: Path, architecture: str, extra: str | None, renderer: str | None
) -> None:
    write(directory, "config.json", {"architectures": [architecture]})
    if extra is not None:
        write(directory, extra, "{}")

    assert read_model_files(directory).own_renderer == renderer


def test_a_directory_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"no tokenizer\.json") as e:
        read_model_files(tmp_path)

    assert e.value.reason == "no-tokenizer"


def test_a_broken_config_names_its_file(directory: Path) -> None:
    write(directory, "tokenizer_config.json", "[1]")

    with pytest.raises(RenderError, match=r"tokenizer_config\.json: not a JSON object"):
        read_model_files(directory)
