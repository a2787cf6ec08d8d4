"""Our text is that of transformers' own `apply_chat_template`, asked side by side; where it
refuses, so do we. The templates are the real ones of the shared data, the conversations drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.prompts import drawn_chats as drawn
from tests.prompts.conftest import RealTemplates
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from inferway.errors import HeavyError, TemplateError
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate

Row = dict[str, Any]
MakeModel = Callable[..., Path]

NUM_BLOCKS = 12  # of templates: transformers keeps the 128 it compiled last

# A variable stands in for the clock, on both sides.
CLOCK = {"strftime_now": lambda layout: f"<{layout}>"}

drawing = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def compiled(real_templates: RealTemplates) -> list[ChatTemplate]:
    return list(real_templates.values())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    backend: Any = PreTrainedTokenizerFast
    words = tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "?": 2}, unk_token="?")
    return backend(tokenizer_object=tokenizers.Tokenizer(words), bos_token="<s>", eos_token="</s>")


def theirs(tokenizer: Any, source: str, chat: ChatInput) -> str | None:
    """transformers' text; None where it refuses, for whatever reason."""
    try:
        text: str = tokenizer.apply_chat_template(
            chat.messages,
            tools=chat.tools,
            documents=chat.documents,
            chat_template=source,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            tokenize=False,
            **chat.variables,
        )
    except Exception:
        return None
    return text


def ours(template: ChatTemplate, chat: ChatInput, special_tokens: Mapping[str, str]) -> str | None:
    variables = {**special_tokens, **chat.variables}
    chat = msgspec.structs.replace(chat, variables=variables)
    try:
        return template.render(chat)
    except TemplateError:
        return None
    except HeavyError:  # then a helper process renders it, without bounds
        return ours(ChatTemplate(template.source, bounded=False), chat, {})


@pytest.fixture
def check(compiled: list[ChatTemplate], tokenizer: Any) -> Callable[[int, ChatInput], None]:
    """Renders a chat with every template of a block, both ways."""

    def all_agree(block: int, chat: ChatInput) -> None:
        chat = msgspec.structs.replace(chat, variables={**CLOCK, **chat.variables})
        for template in compiled[block::NUM_BLOCKS]:
            mine = ours(template, chat, tokenizer.special_tokens_map)
            assert mine == theirs(tokenizer, template.source, chat), template.source

    return all_agree


plain_chats = st.builds(
    ChatInput,
    messages=drawn.conversations,
    tools=drawn.tools,
    documents=drawn.documents,
    add_generation_prompt=st.booleans(),
    variables=drawn.template_kwargs,
)
continued_chats = st.builds(
    ChatInput,
    messages=drawn.conversations,
    tools=drawn.tools,
    add_generation_prompt=st.sampled_from([False, False, False, False, True]),
    continue_final_message=st.sampled_from([True, True, True, "reasoning_content", "thinking"]),
)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(NUM_BLOCKS))
@given(chat=plain_chats | continued_chats)
@drawing
def test_any_chat_gives_the_text_of_transformers(
    check: Callable[[int, ChatInput], None], block: int, chat: ChatInput
) -> None:
    check(block, chat)


@given(messages=drawn.proper_conversations, tools=drawn.tools, prompt=st.booleans())
@drawing
def test_generation_blocks_stand_where_transformers_finds_them(
    real_templates: RealTemplates,
    messages: list[Row],
    tools: list[Row] | None,
    prompt: bool,
) -> None:
    chat = ChatInput(messages, tools=tools, add_generation_prompt=prompt, variables=CLOCK)
    for id in filter(real_templates.has_generation, real_templates):
        template = real_templates[id]
        expected = _theirs_with_spans(template.source, chat)
        if expected is None:
            with pytest.raises(TemplateError):
                template.render_with_spans(chat)
        else:
            assert template.render_with_spans(chat) == expected, template.source


def _theirs_with_spans(source: str, chat: ChatInput) -> tuple[str, list[Any]] | None:
    render: Any = render_jinja_template
    try:
        [text], [spans] = render(
            [chat.messages],
            tools=chat.tools,
            chat_template=source,
            add_generation_prompt=chat.add_generation_prompt,
            return_assistant_tokens_mask=True,
            **chat.variables,
        )
    except Exception:
        return None
    return text, spans
