"""--tokenizer and --chat-template, and the keys of `models` in a file: what cannot hold is refused
before anything listens."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.fork_server import INFERWAY

from inferway.config import ModelSettings
from inferway.errors import ConfigError
from inferway.prompts.files.given_files import check_given
from inferway_sim.prepare import prepare_smollm2

CURE = "correct the value, or leave it out: then the engine's own is taken\n"


def refused(*arguments: str) -> str:
    """The one line that a command says, which ends with status 2."""
    done = subprocess.run(
        [str(INFERWAY), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", ["serve", "epp"])
@pytest.mark.parametrize(
    ("flag", "key", "allowed"),
    [
        ("--tokenizer", "tokenizer", "a directory with a tokenizer.json"),
        ("--chat-template", "chat_template", "a file, Jinja itself"),
    ],
)
def test_a_path_that_is_not_there_ends_the_start_with_place_value_and_cure(
    command: str, flag: str, key: str, allowed: str
) -> None:
    said = refused(command, "--port", "0", "--engine", "http://127.0.0.1:1", flag, "m=/no/such")

    assert said.startswith(
        f"inferway {command}: models: m: {key} ({flag}) '/no/such': no such file"
    )
    assert allowed in said
    assert said.endswith(CURE)


@pytest.mark.parametrize("key", ["tokenizer", "chat_template"])
def test_a_path_in_the_file_of_settings_is_refused_alike(key: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"engines: [{{url: http://127.0.0.1:1}}]\nport: 0\nmodels: {{m: {{{key}: ./no-such}}}}\n"
    )

    said = refused("serve", "--config", str(file))

    assert f"models: m: {key} (--{key.replace('_', '-')}) './no-such': no such file" in said
    assert said.endswith(CURE)


@pytest.mark.parametrize(
    "value", ["/no/such", "./no", "~/no", "no.json", "no/such.gguf", "a/b/c", "a b", "-x", "a\0b"]
)
def test_a_tokenizer_that_is_not_here_and_can_be_no_hub_id_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="no such file or directory"):
        check_given({"m": ModelSettings(tokenizer=value)})


@pytest.mark.parametrize("value", ["gpt2", "Qwen/Qwen3-0.6B", "org/model_v1.5"])
def test_a_hub_id_is_not_looked_up_at_start(value: str) -> None:
    check_given({"m": ModelSettings(tokenizer=value)})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"GGUF\x03\xff\xfe", "it is not UTF-8 text"),
        (b"{}", "it is not a tokenizer.json"),
        (b"no JSON", "it is not a tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=why):
        check_given({"m": ModelSettings(tokenizer=str(file))})


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        check_given({"m": ModelSettings(tokenizer=str(tmp_path))})


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_a_models_directory_and_its_tokenizer_file_are_taken(name: str) -> None:
    check_given({"m": ModelSettings(tokenizer=str(prepare_smollm2() / name))})


def test_a_template_file_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broken.jinja"
    file.write_text("{% if %}")

    with pytest.raises(ConfigError, match=r"broken\.jinja': the chat template does not compile"):
        check_given({"m": ModelSettings(chat_template=str(file))})


def test_a_template_given_as_jinja_that_does_not_compile_is_refused() -> None:
    with pytest.raises(ConfigError, match="the chat template does not compile"):
        check_given({"m": ModelSettings(chat_template="{% if %}")})


def test_a_template_that_compiles_is_taken_as_a_file_and_as_text(tmp_path: Path) -> None:
    file = tmp_path / "good"
    file.write_text("{{ messages }}")

    check_given({"m": ModelSettings(chat_template=str(file))})
    check_given({"m": ModelSettings(chat_template="{{ messages }}")})


def test_a_templates_name_is_taken_while_the_model_is_not_known() -> None:
    check_given({"m": ModelSettings(chat_template="tool_use")})


def test_a_templates_name_is_looked_up_in_a_tokenizers_directory() -> None:
    directory = str(prepare_smollm2())

    check_given({"m": ModelSettings(tokenizer=directory, chat_template="default")})
    with pytest.raises(ConfigError, match=r"the model's own templates are \['default'\]"):
        check_given({"m": ModelSettings(tokenizer=directory, chat_template="tool_use")})


DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tokenizer.json", b'{"model": ' + DEEP + b"}", "it is not a tokenizer.json"),
        ("tokenizer_config.json", b'{"a": ' + DEEP + b"}", "not a JSON object"),
        ("config.json", b"[]", "not a JSON object"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "a"}]}', "chat_template: "),
        ("tokenizer_config.json", b'{"chat_template": [1]}', "chat_template: "),
        ("tokenizer_config.json", b'{"chat_template": 7}', "chat_template: "),
        ("tokenizer_config.json", b" " * ((16 << 20) + 1), "it has more than 16777216 bytes"),
        ("chat_template.jinja", b"a" * ((1 << 20) + 1), "it has more than 1048576 bytes"),
        ("chat_template.jinja", b"\xff", "it is not UTF-8 text"),
    ],
)
def test_files_of_a_directory_that_cannot_be_meant_end_in_a_sentence(
    name: str, content: bytes, why: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes((prepare_smollm2() / "tokenizer.json").read_bytes())
    (tmp_path / name).write_bytes(content)

    with pytest.raises(ConfigError, match=why):
        check_given({"m": ModelSettings(tokenizer=str(tmp_path))})


def test_architectures_that_are_no_names_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((prepare_smollm2() / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text('{"architectures": [1, {}]}')
    (tmp_path / "tekken.json").write_text("{}")

    check_given({"m": ModelSettings(tokenizer=str(tmp_path))})


def test_a_template_file_without_end_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.jinja"
    large.write_bytes(b"a" * ((1 << 20) + 1))
    pipe = tmp_path / "pipe.jinja"
    os.mkfifo(pipe)

    for file, why in ((large, "it has more than 1048576 bytes"), (pipe, "no such file")):
        with pytest.raises(ConfigError, match=why):
            check_given({"m": ModelSettings(chat_template=str(file))})
