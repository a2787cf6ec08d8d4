"""Context lengths are an engine's own: they differ from one engine to the next, and may change
when one is started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from tests.engines import client
from tests.engines.chats import Request, completion
from tests.engines.conftest import CACHE, Say, serve
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.gateway import engine_of, send
from tests.engines.waiting import wait_until

SHORT_CONTEXT, LONG_CONTEXT = 512, 2048
NUM_ASKED = 6


@dataclass(frozen=True)
class Fleet:
    """One model on two engines, which take prompts of different lengths."""

    small: RealEngine
    large: RealEngine
    url: str  # of the gateway


@pytest.fixture(scope="module")
def fleet(vllm: Path, model_dir: Path, new_log: Callable[[str], Path], say: Say) -> Iterator[Fleet]:
    small, large = (
        RealEngine(vllm, model_dir, new_log(f"engine-facts-{i}"), CACHE) for i in range(2)
    )
    try:
        small.start("--max-model-len", str(SHORT_CONTEXT))
        large.start("--max-model-len", str(LONG_CONTEXT))
        wait_until_ready([small, large], say)
        with serve([small, large], new_log("gateway-facts")) as gateway:
            yield Fleet(small, large, gateway.url)
    finally:
        small.kill()
        large.kill()


def prompt(name: str, num_tokens: int) -> Request:
    """Of ids that no other name has."""
    draw = Random(f"engine facts {name}")
    return completion(name, [draw.randrange(1000, 40_000) for _ in range(num_tokens)])


def test_a_prompt_goes_where_it_fits(fleet: Fleet) -> None:
    long = [send(fleet.url, prompt(f"long {i}", 2 * SHORT_CONTEXT)) for i in range(NUM_ASKED)]
    short = [send(fleet.url, prompt(f"short {i}", SHORT_CONTEXT // 4)) for i in range(NUM_ASKED)]

    assert {engine_of(answer) for answer in long} == {fleet.large.name}
    assert fleet.small.name in {engine_of(answer) for answer in short}


def test_a_prompt_that_fits_nowhere_is_told_the_longest_context(fleet: Fleet) -> None:
    too_long = prompt("too long", LONG_CONTEXT + 1)

    answer = client.post(fleet.url + too_long.path, {**too_long.body, "max_tokens": 1})

    assert answer.status == 400
    said = answer.json["error"]["message"]
    assert f"maximum context length is {LONG_CONTEXT} tokens" in said


def test_a_prompt_that_fills_the_context_is_refused_in_the_engines_words(fleet: Fleet) -> None:
    filling = prompt("filling", LONG_CONTEXT)

    answers = [
        client.post(url + filling.path, {**filling.body, "max_tokens": 1})
        for url in (fleet.url, fleet.large.url)
    ]

    assert [answer.status for answer in answers] == [400, 400]
    for answer in answers:
        error = answer.json["error"]
        assert error["message"].startswith("max_tokens must be at least 1, got 0.")
        assert error["param"] == "max_tokens"


def test_a_longer_context_after_a_restart_is_used(fleet: Fleet, say: Say) -> None:
    """The last one here: it leaves the other engine dead."""
    fleet.large.kill()
    fleet.small.kill()
    fleet.small.start("--max-model-len", str(LONG_CONTEXT))
    wait_until_ready([fleet.small], say)
    long = prompt("after the restart", 2 * SHORT_CONTEXT)

    def answered() -> bool:
        answer = client.post(fleet.url + long.path, {**long.body, "max_tokens": 1})
        return answer.status == 200 and engine_of(answer) == fleet.small.name

    wait_until(answered, "a prompt longer than the context was is answered")
