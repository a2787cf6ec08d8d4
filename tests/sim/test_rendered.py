"""A model's files as the engine's text model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sim.doubles import TINY_EOS, write_tiny_model

from inferway.errors import InvalidRequestError, RenderError
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway_sim.rendered import RenderedModel
from inferway_sim.text import Detokenizer


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.close()


def load(renderer: Renderer, directory: Path) -> RenderedModel:
    wanted = GetOrCreateTokenizerKeyRequest(str(directory))
    return RenderedModel(renderer, renderer.get_or_create_tokenizer_key(wanted), 100)


def test_a_chat_with_an_image_is_not_simulated(tmp_path: Path, renderer: Renderer) -> None:
    write_tiny_model(tmp_path)
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    contents: list[Any] = ["ab<|end|>", [image]]
    messages = [{"role": "user", "content": content} for content in contents]

    with pytest.raises(RenderError, match="not simulated"):
        asyncio.run(load(renderer, tmp_path).tokenize(ChatRequest(model="m", messages=messages)))


def test_a_template_in_a_request_is_refused_in_vllms_words(
    tmp_path: Path, renderer: Renderer
) -> None:
    write_tiny_model(tmp_path)
    body = ChatRequest(model="m", messages=[{"role": "user", "content": "ab"}], chat_template="x")

    with pytest.raises(InvalidRequestError, match="--trust-request-chat-template is not set"):
        asyncio.run(load(renderer, tmp_path).tokenize(body))


def test_a_chat_is_rendered_by_the_models_template(tmp_path: Path, renderer: Renderer) -> None:
    write_tiny_model(tmp_path)
    model = load(renderer, tmp_path)
    body = ChatRequest(model="m", messages=[{"role": "user", "content": "ab"}])

    [ids] = asyncio.run(model.tokenize(body))

    assert ids.tolist() == model.encode("ab") == [1, 2]


def test_the_end_of_reply_token_is_known_and_has_no_text(
    tmp_path: Path, renderer: Renderer
) -> None:
    write_tiny_model(tmp_path)
    model = load(renderer, tmp_path)

    assert model.eos_token_id == TINY_EOS
    assert model.decode([1, 2, TINY_EOS]) == "ab"


def test_a_model_without_an_end_of_reply_token_is_refused(
    tmp_path: Path, renderer: Renderer
) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))

    with pytest.raises(RenderError, match="eos_token is missing"):
        load(renderer, tmp_path)


def test_pieces_of_a_reply_add_up_to_its_text(tmp_path: Path, renderer: Renderer) -> None:
    write_tiny_model(tmp_path)
    model = load(renderer, tmp_path)
    detokenizer = Detokenizer(model)

    pieces = [detokenizer.add(token) for token in model.encode("a bc")]

    assert pieces == ["a", " ", "b", "c"]
