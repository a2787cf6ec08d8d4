"""A gateway that is started after the engine, and hears no replay: a chat that goes on tells what
the engine had cached of it before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.engines import client
from tests.engines.chats import assistant, chat, conversations, user
from tests.engines.conftest import ServingProgram, without_replay
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.gateway import cached, scores, send
from tests.engines.waiting import wait_until

ANSWER_TOKENS = 40


def test_what_was_cached_before_is_matched_as_the_chat_goes_on(
    engines: Sequence[RealEngine], new_log: Callable[[str], Path]
) -> None:
    engine = engines[1]
    text = "\n".join(
        message["content"]
        for each in conversations()
        for message in each["messages"]
        if isinstance(message["content"], str)
    )
    turns = [user(text[:2000])]
    before = send(engine.url, chat("before", turns), max_tokens=ANSWER_TOKENS, ignore_eos=True)
    turns += [assistant(before.json["choices"][0]["message"]["content"]), user(text[2000:2400])]
    request = chat("after", turns)

    flags = ["serve", "--engine", without_replay(engine)]
    with ServingProgram(flags, new_log("late-gateway"), "kv-aware") as gateway:
        unknown = scores(gateway.url, request)[engine.name]
        longer = send(gateway.url, request, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        told = cached(longer)
        wait_until(
            lambda: scores(gateway.url, request)[engine.name] == told.prompt_blocks,
            "the whole prompt is known",
            lambda: client.get(f"{gateway.url}/metrics").raw.decode(),
        )
        again = send(gateway.url, request, max_tokens=1)
        believed = int(str(again.headers["x-inferway-matched-blocks"]))
        metrics = client.get(f"{gateway.url}/metrics").raw.decode()

    assert told.blocks > cached(before).prompt_blocks - 2 > unknown
    assert cached(again).blocks == min(believed, cached(again).reusable_blocks)
    assert cached(again).cached_tokens // BLOCK_SIZE > told.blocks
    assert 'state="found"' in metrics
    assert "sha256, seed 'vllm-none-hash'" in metrics
