"""Ids, offsets and assistant masks of whole chats are those of transformers' own
`apply_chat_template(tokenize=True, return_assistant_tokens_mask=True)`, cut or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import stored
from tests.prompts import drawn_chats as drawn
from transformers import AutoTokenizer

from inferway.errors import TemplateError
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderChatRequest
from inferway.prompts.renderer import Renderer

Row = dict[str, Any]

TOKENIZERS = ("phi-3", "gpt-2", "falcon", "starcoder", "bert-bge", "t5-small")

# Real ones, by the beginning of their id in the shared data: Qwen3, SmolLM3, Gemma 3, Phi-3.
TEMPLATES = ("1d944ff8", "3e0e275a", "959b257e", "f00b774c")

# All that a span may begin or end with: spaces that tokenizers drop, one character of several
# tokens, nothing at all.
BARE = (
    "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}\n"
    "{% endfor %}"
)
FIRST = "{% generation %}{{ messages[0].content }}{% endgeneration %} and more text"


@pytest.fixture(scope="module")
def templates() -> list[str]:
    found = {row["id"][:8]: row["chat_template"] for row in stored.templates()}
    return [BARE, FIRST, *(found[id] for id in TEMPLATES)]


class Pair:
    """One model's tokenizer, theirs and ours."""

    def __init__(self, directory: Path, renderer: Renderer) -> None:
        self._theirs: Any = AutoTokenizer.from_pretrained(directory)
        self._renderer = renderer
        request = GetOrCreateTokenizerKeyRequest(str(directory), is_local=True)
        self._key = renderer.get_or_create_tokenizer_key(request)

    def theirs(self, messages: list[Row], template: str, keep: int | None, side: Any) -> Any:
        self._theirs.truncation_side = side
        try:
            found = self._theirs.apply_chat_template(
                messages,
                chat_template=template,
                truncation=keep is not None,
                max_length=keep,
                return_assistant_tokens_mask=True,
                tokenizer_kwargs={"return_offsets_mapping": True},
            )
        # It cannot do without a first character: `char_to_token(-1)`.
        except OverflowError:
            return "unknown"
        except Exception:
            return None
        offsets = [list(pair) for pair in found["offset_mapping"]]
        return found["input_ids"], offsets, found["assistant_masks"]

    def ours(self, messages: list[Row], template: str, keep: int | None, side: Any) -> Any:
        request = RenderChatRequest(
            self._key,
            messages,
            chat_template=template,
            add_generation_prompt=False,
            truncate_prompt_tokens=keep,
            truncation_side=side,
            return_assistant_tokens_mask=True,
            return_offsets_mapping=True,
        )
        try:
            found = self._renderer.render_chat(request)
        except TemplateError:
            return None
        assert found.offset_mapping is not None
        assert found.assistant_mask is not None
        return (
            found.input_ids.tolist(),
            found.offset_mapping.tolist(),
            found.assistant_mask.tolist(),
        )


@pytest.fixture(scope="module", params=TOKENIZERS)
def pair(
    request: pytest.FixtureRequest,
    renderer: Renderer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    directory = tmp_path_factory.mktemp("model")
    (directory / "tokenizer.json").write_text(stored.tokenizer_json(request.param))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Pair(directory, renderer)


@pytest.mark.slow
@given(
    messages=drawn.proper_conversations,
    keep=st.none() | st.integers(min_value=1, max_value=60),
    side=st.sampled_from(["left", "right"]),
)
@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_masks_and_offsets_are_those_of_transformers(
    pair: Pair, templates: list[str], messages: list[Row], keep: int | None, side: str
) -> None:
    for template in templates:
        expected = pair.theirs(messages, template, keep, side)
        if expected != "unknown":
            assert pair.ours(messages, template, keep, side) == expected
