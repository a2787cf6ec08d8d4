"""Where a reply ends for a stop string, and what of its text is sent before."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from tests.sim.test_server import CHAT, COMPLETIONS, chat, posting, serving, stream

from inferway_sim.engine import SimulatedEngine
from inferway_sim.planning import stopped

PIECES = ["one ", "two", " th", "ree", " four"]


@pytest.mark.parametrize(
    ("stops", "are_sent", "sends", "stop"),
    [
        (["two"], False, ["on", "e "], "two"),
        (["two"], True, ["one ", "two"], "two"),
        (["wo t"], False, ["o", "ne ", "t"], "wo t"),
        (["e t", "three"], False, ["", "on"], "e t"),
        (["x"], False, PIECES, None),
        (["xxxxx"], False, ["", "one", " tw", "o t", "hree four"], None),
        (["xxxxx"], True, PIECES, None),
        (["r", "th"], False, ["one", " tw", "o "], "th"),
    ],
)
def test_text_is_kept_back_that_may_begin_a_stop_string(
    stops: list[str], are_sent: bool, sends: list[str], stop: str | None
) -> None:
    assert stopped(PIECES, stops, are_sent=are_sent) == (sends, stop)


def test_the_engine_stops_where_it_is_told() -> None:
    [(_, whole), (_, long), (_, completion)] = posting(
        (CHAT, chat("one two three", stop="two")),
        (CHAT, chat("one two three", stop=["x", "wo"], include_stop_str_in_output=True)),
        (COMPLETIONS, {"model": "m", "prompt": "one two", "max_tokens": 16, "stop": ["e"]}),
    )

    choice = whole["choices"][0]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "two")
    assert whole["usage"]["completion_tokens"] == len("one two")
    assert long["choices"][0]["message"]["content"] == "one two"
    assert completion["choices"][0]["text"] == "on"


def test_a_stream_keeps_back_what_may_be_a_stop_string() -> None:
    async def scenario(_: SimulatedEngine, client: aiohttp.ClientSession) -> Any:
        return await stream(client, CHAT, chat("abcdefg", stop=["efx", "f"], return_token_ids=True))

    chunks = serving(scenario)
    texts = [choice["delta"]["content"] for each in chunks for choice in each["choices"]]

    assert texts == ["", "", "", "a", "b", "c", "de"]
    assert chunks[-1]["choices"][0]["stop_reason"] == "f"
