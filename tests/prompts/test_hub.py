"""Models named by hub id: only their tokenizer and template files, and clear errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.prompts.hub import Hub, serve_hub

from inferway.errors import RenderError
from inferway.prompts import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.prompts.files.raw_files import fetch_model_files

TOKEN = "hf_secret"


@pytest.fixture(scope="module")
def files(smollm2: Path) -> dict[str, bytes]:
    names = ["tokenizer.json", "tokenizer_config.json", "config.json"]
    real = {name: (smollm2 / name).read_bytes() for name in names}
    return {**real, "modeling_evil.py": b"raise SystemExit", "model.safetensors": b"w"}


@pytest.fixture
def hub(files: dict[str, bytes]) -> Iterator[Hub]:
    with serve_hub(files, token=TOKEN) as hub:
        yield hub


@pytest.fixture
def renderer(hub: Hub) -> Iterator[Renderer]:
    renderer = Renderer(hub=hub.url)
    yield renderer
    renderer.close()


def request(cache: Path, token: str | None = TOKEN) -> GetOrCreateTokenizerKeyRequest:
    return GetOrCreateTokenizerKeyRequest("org/model", token=token, download_dir=str(cache))


def test_a_hub_id_gets_tokenizer_and_template(renderer: Renderer, tmp_path: Path) -> None:
    key = renderer.get_or_create_tokenizer_key(request(tmp_path))

    assert key == "org/model:main:False"
    assert "default" in renderer.loaded(key).template_names


def test_neither_weights_nor_code_are_fetched(hub: Hub, tmp_path: Path) -> None:
    directory = fetch_model_files(
        "org/model", token=TOKEN, download_dir=str(tmp_path), endpoint=hub.url
    )

    assert sorted(path.name for path in directory.iterdir()) == [
        "config.json", "tokenizer.json", "tokenizer_config.json"
    ]  # fmt: skip


def test_a_model_loaded_with_a_token_is_not_served_without_it(
    renderer: Renderer, tmp_path: Path
) -> None:
    renderer.get_or_create_tokenizer_key(request(tmp_path))

    with pytest.raises(RenderError, match="refuses it: RepositoryNotFoundError"):
        renderer.get_or_create_tokenizer_key(request(tmp_path, token="hf_other"))


def test_what_was_fetched_once_is_there_when_the_hub_is_not(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    with serve_hub(files) as hub:
        fetch_model_files("org/model", download_dir=str(tmp_path), endpoint=hub.url)

    directory = fetch_model_files("org/model", download_dir=str(tmp_path), endpoint=hub.url)

    assert (directory / "tokenizer.json").is_file()


def test_an_unreachable_hub_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"

        with pytest.raises(RenderError) as e:
            fetch_model_files("org/model", download_dir=str(tmp_path), endpoint=endpoint)

    assert str(e.value) == (
        f"model 'org/model': no tokenizer: the hub cannot be reached ({endpoint}) and it is not"
        " in the cache"
    )


def test_a_name_that_can_be_no_hub_id_says_so(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="neither a directory here nor a hub id"):
        fetch_model_files("a/b/c", download_dir=str(tmp_path), endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"tokenizer.json": bytes((64 << 20) + 1)}, "tokenizer.json has 67108865 bytes"),
        (
            {name: bytes(60 << 20) for name in ("config.json", "params.json", "tekken.json")},
            "its 5 files have",
        ),
    ],
    ids=["one", "together"],
)
def test_files_that_are_too_large_are_not_fetched(
    files: dict[str, bytes], tmp_path: Path, extra: dict[str, bytes], words: str
) -> None:
    with serve_hub({**files, **extra}) as hub, pytest.raises(RenderError, match=words):
        fetch_model_files("org/model", download_dir=str(tmp_path), endpoint=hub.url)

    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < 1 << 20


@pytest.mark.parametrize("model", ["~no-such-user/model", "/" + "a" * 5000])
def test_a_name_that_cannot_be_looked_up_is_an_error_of_its_model(
    renderer: Renderer, model: str
) -> None:
    request = GetOrCreateTokenizerKeyRequest(model)

    with pytest.raises(RenderError, match="it cannot be read") as raised:
        renderer.get_or_create_tokenizer_key(request)

    assert raised.value.reason == "no-tokenizer"
