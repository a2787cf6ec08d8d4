"""A handle call's arguments -> the OpenAI request in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway_ray.asked import AskedRequest, asked_of, put_headers

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODY = msgspec.json.encode(CHAT)
HEADERS = [(b"x-session-id", b"5")]


class Parsed:
    """A body as Ray's LLM ingress hands it on, of a pydantic class."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def model_dump_json(self, *, exclude_unset: bool) -> str:
        assert exclude_unset
        return msgspec.json.encode(self.__dict__).decode()


def test_an_ingress_that_keeps_the_bytes() -> None:
    asked = asked_of(["/v1/chat/completions", HEADERS, BODY], {})

    assert asked == AskedRequest("/v1/chat/completions", BODY, tuple(HEADERS))


@pytest.mark.parametrize(
    "body", [CHAT, SimpleNamespace(**CHAT), Parsed(**CHAT), BODY, BODY.decode()]
)
def test_a_body_in_any_form(body: Any) -> None:
    asked = asked_of([body, None], {}, "anything")

    assert asked is not None
    assert asked.path == "/v1/chat/completions"
    assert msgspec.json.decode(asked.body) == CHAT


def test_the_method_says_what_the_fields_do_not() -> None:
    asked = asked_of([{"model": "m", "input": "hi"}], {}, "embeddings")

    assert asked is not None
    assert asked.path == "/v1/embeddings"


def test_ids_that_ray_has_made_already_are_the_prompt() -> None:
    fields = {**CHAT, "stream": True, "cache_salt": "s"}

    asked = asked_of([SimpleNamespace(**fields)], {"request_token_ids": [1, 2, 3]}, "__call__")

    assert asked is not None
    assert asked.path == "/v1/completions"
    assert msgspec.json.decode(asked.body) == {"model": "m", "cache_salt": "s", "prompt": [1, 2, 3]}


@pytest.mark.parametrize(
    "args",
    [
        [],
        [object()],
        [5],
        [b"not json"],
        [b"[]"],
        [{"question": "hi"}],
        ["/v1/unknown", HEADERS, BODY],
        [{"messages": [object()]}],
        ["\ud800"],
    ],
)
def test_whatever_else_has_no_prompt(args: list[Any]) -> None:
    assert asked_of(args, {}) is None


def test_headers_of_an_engine_take_the_place_of_others() -> None:
    args = ["/v1/completions", [(b"a", b"1"), (b"x-data-parallel-rank", b"0")], b"{}"]

    put_headers(args, ((b"x-data-parallel-rank", b"1"),))
    put_headers(args, ((b"x-data-parallel-rank", b"2"),))

    assert args[1] == [(b"a", b"1"), (b"x-data-parallel-rank", b"2")]


def test_a_call_without_headers_gets_none() -> None:
    args: list[Any] = ["{}"]

    put_headers(args, ((b"a", b"1"),))

    assert args == ["{}"]


@given(st.lists(st.none() | st.integers() | st.text() | st.binary() | st.just({}), max_size=4))
def test_no_arguments_are_an_error(args: list[Any]) -> None:
    asked_of(args, {"request_token_ids": args}, "chat")
