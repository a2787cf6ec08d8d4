"""Requests for which an engine does not look in its cache, as tests/golden/openai_api has them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engines.chats import Request, chat, completion, user
from tests.engines.gateway import cached, engine_of, send, wait_until_believed

WORDS = "Say again, slowly, what you have said about the {} of the city, and leave nothing out. "

ASKING: dict[str, tuple[Request, dict[str, Any]]] = {
    "chat-prompt-logprobs": (
        chat("wells", [user(WORDS.format("wells") * 12)]),
        {"prompt_logprobs": 1},
    ),
    "chat-echo": (chat("walls", [user(WORDS.format("walls") * 12)]), {"echo": True}),
    "completion-prompt-logprobs": (
        completion("gates", WORDS.format("gates") * 12),
        {"prompt_logprobs": 0},
    ),
    "completion-echo": (
        completion("roofs", WORDS.format("roofs") * 12),
        {"echo": True, "logprobs": 1},
    ),
}


@pytest.mark.parametrize("name", ASKING)
def test_what_reads_no_cache_matches_nothing_and_is_there_afterwards(
    name: str, gateway: str
) -> None:
    request, asking = ASKING[name]
    first = send(gateway, request, **asking)
    wait_until_believed(gateway, request, engine_of(first), cached(first).prompt_blocks)

    again = send(gateway, request, **asking)
    wait_until_believed(gateway, request, engine_of(again), cached(again).prompt_blocks)
    plain = send(gateway, request)

    assert cached(again).prompt_blocks > 5
    assert (again.headers["x-inferway-matched-blocks"], cached(again).blocks) == ("0", 0)
    assert int(plain.headers["x-inferway-matched-blocks"]) == cached(plain).prompt_blocks
    assert cached(plain).blocks == cached(plain).reusable_blocks


def test_a_beam_search_reads_it_whatever_the_body_says(gateway: str) -> None:
    request = chat("roads", [user(WORDS.format("roads") * 12)])
    first = send(gateway, request)
    wait_until_believed(gateway, request, engine_of(first), cached(first).prompt_blocks)

    beam = send(gateway, request, use_beam_search=True, n=2, prompt_logprobs=1)

    assert int(beam.headers["x-inferway-matched-blocks"]) == cached(first).prompt_blocks
