"""Real templates, real tokenizers, a real model."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.stored import Row, template_goldens, templates, tokenizer_json

from inferway.prompts import GetOrCreateTokenizerKeyRequest, Renderer
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway_sim.prepare import prepare_smollm2

MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def read_golden() -> Callable[[Path], list[Row]]:
    return read_jsonl


class RealTemplates(Mapping[str, ChatTemplate]):
    """All that are stored by id, each compiled when a test asks for it first; their clock stands
    where it stood when the goldens were made."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {row["id"]: row["chat_template"] for row in templates()}
        self._compiled: dict[str, ChatTemplate] = {}
        self._now = datetime.fromisoformat(template_goldens()[0]["meta"]["now"])

    def __getitem__(self, id: str) -> ChatTemplate:
        if id not in self._compiled:
            self._compiled[id] = ChatTemplate(self.sources[id], now=lambda: self._now)
        return self._compiled[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def has_generation(self, id: str) -> bool:
        """Whether it marks what the model has written."""
        return re.search(r"\{%-?\s*generation\s*-?%\}", self.sources[id]) is not None


@pytest.fixture(scope="session")
def real_templates() -> RealTemplates:
    return RealTemplates()


def read_jsonl(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return prepare_smollm2()


@pytest.fixture(scope="session")
def renderer() -> Iterator[Renderer]:
    """One for all tests: loading a model takes a second."""
    renderer = Renderer()
    yield renderer
    renderer.close()


@pytest.fixture(scope="session")
def smollm2_key(renderer: Renderer, smollm2: Path) -> str:
    request = GetOrCreateTokenizerKeyRequest(str(smollm2), is_local=True)
    return renderer.get_or_create_tokenizer_key(request)


# <s> before a text, </s> behind it: phi-3's ids.
BOS_EOS = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]},
    },
}


@pytest.fixture
def own_renderer() -> Iterator[Renderer]:
    """Its counts are this test's."""
    renderer = Renderer()
    yield renderer
    renderer.close()


@pytest.fixture
def key(own_renderer: Renderer, smollm2: Path) -> str:
    request = GetOrCreateTokenizerKeyRequest(str(smollm2), is_local=True)
    return own_renderer.get_or_create_tokenizer_key(request)


@pytest.fixture(scope="session")
def phi3_with_specials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("with_specials")
    return write_model(parent, "phi-3", {"post_processor": BOS_EOS})


CHATML = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write_model(parent: Path, tokenizer: str, changes: Row | None = None, **config: Any) -> Path:
    """A model's directory around one of the stored tokenizers; `config` is its
    tokenizer_config.json, `changes` replace parts of its tokenizer.json. bert-bge is loaded in a
    tenth of the time that the others take."""
    directory = parent / tokenizer
    directory.mkdir()
    text = tokenizer_json(tokenizer)
    if changes:
        text = json.dumps({**json.loads(text), **changes})
    (directory / "tokenizer.json").write_text(text)
    settings = {"chat_template": CHATML, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    return partial(write_model, tmp_path)
