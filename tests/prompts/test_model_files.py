"""Which files decide over a model's prompts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from inferway.errors import RenderError
from inferway.prompts.files.model_files import read_model_files
from inferway.prompts.files.raw_files import (
    MAX_BYTES,
    MAX_OTHER_BYTES,
    MAX_TEMPLATE_BYTES,
    MAX_TEMPLATES,
    MAX_TOKENIZER_BYTES,
)


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


def test_a_processors_template_is_kept_apart(directory: Path) -> None:
    write(directory, "tokenizer_config.json", {"chat_template": "config"})
    write(directory, "chat_template.json", {"chat_template": "old"})
    write(directory, "preprocessor_config.json", {"processor_class": "LlavaProcessor"})

    files = read_model_files(directory)

    assert (files.templates, files.processor_template) == ({"default": "config"}, "old")


def test_the_path_of_a_tokenizer_file_stands_for_its_directory(directory: Path) -> None:
    write(directory, "chat_template.jinja", "file")

    assert read_model_files(directory / "tokenizer.json").templates == {"default": "file"}


def test_files_that_decide_over_the_tokenizer_are_read_as_they_are(directory: Path) -> None:
    written = {
        "tokenizer_config": {"bos_token": "<config>"},
        "special_tokens_map": {"bos_token": "<map>"},
        "added_tokens": {"<new>": 7},
    }
    for name, value in written.items():
        write(directory, f"{name}.json", value)
    write(directory, "config.json", {"model_type": "llama"})

    files = read_model_files(directory).tokenizer

    assert {name: getattr(files, name) for name in written} == written
    assert files.model_config == {"model_type": "llama"}


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


def test_a_link_out_of_the_directory_is_not_followed(directory: Path, tmp_path: Path) -> None:
    inside, secret = directory / "m", tmp_path / "secret"
    inside.mkdir()
    (inside / "tokenizer.json").write_text("{}")
    secret.write_text("what nobody should read")
    (inside / "chat_template.jinja").symlink_to(secret)

    with pytest.raises(RenderError, match=r"chat_template\.jinja: .* leads out of") as e:
        read_model_files(inside)

    assert "what nobody" not in str(e.value)
    assert read_model_files(inside, follows_links=True).templates == {
        "default": "what nobody should read"
    }


def test_a_hubs_cache_is_made_of_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to(blobs / "1")

    assert read_model_files(snapshot).tokenizer.tokenizer_json == "{}"


def test_a_directory_of_kubernetes_is_made_of_links(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "tokenizer.json").write_text("{}")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "tokenizer.json").symlink_to("..data/tokenizer.json")

    assert read_model_files(tmp_path).tokenizer.tokenizer_json == "{}"


def test_a_link_to_itself_is_told(directory: Path) -> None:
    (directory / "config.json").symlink_to("config.json")

    with pytest.raises(RenderError, match=r"config\.json"):
        read_model_files(directory)


def test_a_pipe_is_no_file(directory: Path) -> None:
    os.mkfifo(directory / "chat_template.jinja")

    assert read_model_files(directory).templates == {}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("tokenizer.json", MAX_TOKENIZER_BYTES),
        ("config.json", MAX_OTHER_BYTES),
        ("chat_template.jinja", MAX_TEMPLATE_BYTES),
    ],
)
def test_a_file_has_a_largest_size(directory: Path, name: str, most: int) -> None:
    with (directory / name).open("wb") as file:
        file.truncate(most + 1)

    with pytest.raises(RenderError, match=f"{name}: it has more than {most} bytes"):
        read_model_files(directory)


def test_all_files_of_a_model_have_a_largest_size_together(directory: Path) -> None:
    with (directory / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_TOKENIZER_BYTES)
    for name in ("config", "tokenizer_config", "special_tokens_map", "added_tokens"):
        with (directory / f"{name}.json").open("wb") as file:
            file.truncate(MAX_OTHER_BYTES)
    write(directory, "chat_template.jinja", "x")

    with pytest.raises(RenderError, match=f"{MAX_BYTES + 1} bytes together, allowed are"):
        read_model_files(directory)


def test_a_directory_has_so_many_templates_at_most(directory: Path) -> None:
    for number in range(MAX_TEMPLATES + 1):
        write(directory, f"additional_chat_templates/{number}.jinja", "x")

    with pytest.raises(RenderError, match="it has 65 templates, allowed are 64"):
        read_model_files(directory)
