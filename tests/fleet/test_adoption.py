"""A gateway that is started after the engine, which cannot replay: a chat that goes on tells what
the engine had cached of it before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fleet import client
from tests.fleet.chats import assistant, chat, conversations, user
from tests.fleet.conftest import Say, serve
from tests.fleet.engine import BLOCK_SIZE, RealEngine, wait_until_ready
from tests.fleet.gateway import cached, scores, send
from tests.fleet.waiting import wait_until

ANSWER_TOKENS = 40


class EngineWithoutReplay(RealEngine):
    """What a subscriber has missed is lost."""

    def _own_flags(self) -> list[str]:
        flags = super()._own_flags()
        place = flags.index("--kv-events-config") + 1
        settings = json.loads(flags[place])
        del settings["replay_endpoint"]
        flags[place] = json.dumps(settings)
        return flags


@pytest.fixture(scope="module")
def engine(
    vllm: Path, model_dir: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[RealEngine]:
    one = EngineWithoutReplay(vllm, model_dir, new_log("engine-without-replay"))
    try:
        one.start()
        wait_until_ready([one], say)
        yield one
    finally:
        one.kill()


def test_what_was_cached_before_is_matched_as_the_chat_goes_on(
    engine: RealEngine, new_log: Callable[[str], Path]
) -> None:
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

    with serve([engine], new_log("late-gateway")) as gateway:
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
