"""Bodies are made of the conversation so far."""

from __future__ import annotations

import json

from bench.tests.loading.made import asks

from inferway_bench.loading.generated import (
    CHATS,
    COMPLETIONS,
    Conversation,
    Turn,
)


def test_a_turns_body_is_the_whole_conversation_with_what_was_answered() -> None:
    conversation = Conversation()
    first, second = asks("one", "two", max_tokens=7)

    conversation.ask(first, {"model": "m"})
    conversation.hear(first, "answer")
    path, body = conversation.ask(second, {"model": "m"})

    assert path == CHATS
    assert json.loads(body) == {
        "model": "m",
        "max_tokens": 7,
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "answer"},
            {"role": "user", "content": "two"},
        ],
    }


def test_a_turns_own_answer_takes_the_place_of_the_servers() -> None:
    conversation = Conversation()
    turn = Turn(({"role": "user", "content": "one"},), answer="given")

    conversation.ask(turn, {})
    conversation.hear(turn, "the server's")
    _, body = conversation.ask(asks("two")[0], {})

    assert json.loads(body)["messages"][1]["content"] == "given"


def test_fields_that_bring_a_prompt_are_sent_as_they_are() -> None:
    path, body = Conversation().ask(Turn(fields={"prompt": "p"}), {"model": "m"})

    assert (path, json.loads(body)) == (COMPLETIONS, {"model": "m", "prompt": "p"})


def test_a_long_prompt_is_made_when_it_is_sent() -> None:
    path, body = Conversation().ask(
        Turn(fields={"max_tokens": 7}, prompt=lambda: {"prompt": "long"}), {"model": "m"}
    )

    assert (path, json.loads(body)) == (
        COMPLETIONS,
        {"model": "m", "max_tokens": 7, "prompt": "long"},
    )
