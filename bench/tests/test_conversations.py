"""The benchmark's bodies are what they are said to be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from inferway.openai_api.requests import parse_chat
from inferway_bench.conversations import (
    BodyTemplate,
    chat_of_8k_tokens,
    sessions_without_last_turn,
    short_chat,
)


@pytest.mark.parametrize("make", [chat_of_8k_tokens, short_chat])
def test_every_body_is_a_chat_that_ends_with_a_user_turn(
    make: Callable[[str], list[BodyTemplate]],
) -> None:
    for template in make("m"):
        messages = parse_chat(template.body(7)).messages

        assert messages[-1]["role"] == "user"


def test_bodies_differ_by_template_and_by_number_and_keep_their_length() -> None:
    templates = chat_of_8k_tokens("m")
    bodies = [template.body(number) for template in templates for number in (1, 2)]

    assert len(set(bodies)) == 2 * 48
    assert len(templates[0].body(1)) == len(templates[0].body(999_999_999))


def test_sizes_are_those_that_the_tables_say() -> None:
    long = [len(template.body(1)) for template in chat_of_8k_tokens("m")]
    short = [len(template.body(1)) for template in short_chat("m")]

    assert 32_000 < min(long) < max(long) < 42_000
    assert 600 < min(short) < max(short) < 1_000


def test_only_the_last_turn_is_not_in_the_session_that_engines_hold() -> None:
    sessions = [msgspec.json.decode(raw)["messages"] for raw in sessions_without_last_turn("m")]

    for number, template in enumerate(chat_of_8k_tokens("m")):
        messages = parse_chat(template.body(1)).messages

        assert messages[:-1] == sessions[number % len(sessions)]
