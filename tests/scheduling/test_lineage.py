"""Which session a turn goes on with, by the messages that it repeats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import (
    ChatRequest,
    CompletionRequest,
    MessagesRequest,
    ResponsesRequest,
)
from inferway.scheduling.lineage import Lineage

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "read"}}]


def turn(*contents: str, **more: Any) -> LLMRequest:
    """A chat with tools of these messages, of whom every second is the model's."""
    roles = ("user", "assistant")
    messages = [
        {"role": roles[number % 2], "content": content} for number, content in enumerate(contents)
    ]
    body = ChatRequest(messages=messages, tools=TOOLS)
    return LLMRequest(**{"request_id": "", "target_model": "m", "body": body, **more})


def test_a_turn_goes_on_with_the_session_whose_messages_it_repeats() -> None:
    lineage = Lineage()
    first = lineage.session(turn("u"))

    assert first
    assert lineage.session(turn("u", "a", "t")) == first
    assert lineage.session(turn("u", "a", "t", "a2", "t2")) == first
    assert lineage.session(turn("u", "a", "t", "a2", "t2")) == first  # once more, as it failed
    assert len(lineage) == 1


def test_sessions_that_begin_alike_are_two_once_they_differ() -> None:
    lineage = Lineage()
    first, second = lineage.session(turn("u")), lineage.session(turn("u"))
    assert first == second

    one, other = lineage.session(turn("u", "a", "t")), lineage.session(turn("u", "b", "t"))

    assert one == first != other
    assert lineage.session(turn("u", "b", "t", "b2", "t")) == other
    assert lineage.session(turn("u", "a", "t", "a2", "t")) == one


def test_the_longest_of_what_it_repeats_counts() -> None:
    lineage = Lineage()
    short, long = lineage.session(turn("u")), lineage.session(turn("u", "a", "t"))
    assert short == long
    begun_again = lineage.session(turn("u"))

    assert begun_again != b""
    assert lineage.session(turn("u", "a", "t", "a2", "t2")) == long


def test_other_messages_are_another_session() -> None:
    lineage = Lineage()
    names = {lineage.session(turn(text)) for text in ("u", "v", "w")}

    assert len(names) == 3


@pytest.mark.parametrize("more", [{"tenant": "t"}, {"target_model": "n"}])
def test_models_and_tenants_have_sessions_of_their_own(more: dict[str, Any]) -> None:
    lineage = Lineage()

    assert lineage.session(turn("u")) != lineage.session(turn("u", "a", "t", **more))


def test_a_hypothetical_turn_changes_nothing() -> None:
    lineage = Lineage()
    first = lineage.session(turn("u"))

    assert lineage.session(turn("u", "a", "t", is_hypothetical=True)) == first
    assert lineage.session(turn("u", "b", "t")) == first
    assert lineage.session(turn("v", is_hypothetical=True))
    assert len(lineage) == 1


@pytest.mark.parametrize(
    "body",
    [
        ChatRequest(messages=[{"role": "user", "content": "u"}]),
        ChatRequest(messages=[{"role": "user", "content": "u"}], tools=[]),
        ChatRequest(messages=[], tools=TOOLS),
        CompletionRequest(prompt="u"),
        ResponsesRequest(input="u", tools=TOOLS),
    ],
)
def test_who_has_no_tools_or_no_messages_is_no_agent(body: Any) -> None:
    request = LLMRequest(request_id="", target_model="m", body=body)

    assert Lineage().session(request) == b""


def test_marks_of_caches_that_move_with_each_turn_do_not_count() -> None:
    def marked(last: int, *contents: str) -> LLMRequest:
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "text", "text": text}]} for text in contents
        ]
        messages[last]["content"][0]["cache_control"] = {"type": "ephemeral"}
        system = f"number {last}"  # another one in each request of Claude Code
        body = MessagesRequest(messages=messages, system=system, tools=TOOLS)
        raw = msgspec.json.encode(messages)
        return LLMRequest(request_id="", target_model="m", body=body, raw=raw)

    lineage = Lineage()
    first = lineage.session(marked(0, "u"))

    assert lineage.session(marked(2, "u", "a", "t")) == first


def test_items_of_a_response_are_messages() -> None:
    def asked(*texts: str) -> LLMRequest:
        items = [{"role": "user", "content": text} for text in texts]
        body = ResponsesRequest(input=items, instructions="be kind", tools=TOOLS)
        return LLMRequest(request_id="", target_model="m", body=body)

    lineage = Lineage()

    assert lineage.session(asked("u")) == lineage.session(asked("u", "a", "t")) != b""


def test_of_more_sessions_than_may_be_the_oldest_is_forgotten() -> None:
    lineage = Lineage(most=2)
    names = [lineage.session(turn(text)) for text in ("u", "v", "w")]

    assert len(lineage) == 2
    assert lineage.session(turn("w", "a", "t")) == names[2]
    assert lineage.session(turn("u", "a", "t")) != names[0]
