"""An engine whose cache is too small for its sessions reuses what the index predicts.

`make fleet-full` asks twice as much.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import assistant, chat, conversations, user
from tests.engines.conftest import FULL, Say, serve
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.gateway import cached, scores, send
from tests.engines.waiting import wait_until

NUM_SESSIONS = 6  # at once: together they need a third more than there is
NUM_TURNS = 4
NUM_ROUNDS = 2 if FULL else 1  # for which there is enough text
ANSWER_TOKENS = 16
QUIET_SECONDS = 0.3  # longer than an event takes, and than a prompt counts as on its way

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Asked:
    """One request, what was predicted for it, and what the engine said."""

    name: str
    prompt_tokens: int
    predicted_blocks: int  # as /score_* told before it was sent
    told_blocks: int  # as the answer's head said
    cached_tokens: int
    held_tokens: int  # of the session's turn before, which the engine once had

    @property
    def predicted_tokens(self) -> int:
        """vLLM computes the last token always, and so never reuses its block."""
        return min(self.predicted_blocks, (self.prompt_tokens - 1) // BLOCK_SIZE) * BLOCK_SIZE


@pytest.fixture(scope="module")
def asked(engines: Sequence[RealEngine], new_log: Callable[[str], Path], say: Say) -> list[Asked]:
    """Sessions in turn, each growing; together they need more than there is."""
    began = time.monotonic()
    engine = engines[1]
    texts = iter(_texts())
    with serve([engine], new_log("gateway-small")) as gateway:
        found = [
            each for _ in range(NUM_ROUNDS) for each in _ask_all(gateway.url, engine.name, texts)
        ]
    reused = sum(one.cached_tokens for one in found)
    say(
        f"{len(found)} requests in {time.monotonic() - began:.0f} s, "
        f"{sum(one.prompt_tokens for one in found)} tokens, {reused} of them reused"
    )
    return found


def _ask_all(gateway: str, engine: str, texts: Iterator[str]) -> Iterator[Asked]:
    sessions: list[list[dict[str, Any]]] = [[] for _ in range(NUM_SESSIONS)]
    held = [0] * NUM_SESSIONS
    shuffle = Random(7)
    for turn in range(NUM_TURNS):
        # The longest unused is driven out first: in any order, so that some sessions are left.
        for i in shuffle.sample(range(NUM_SESSIONS), NUM_SESSIONS):
            session = sessions[i]
            session.append(user(next(texts)))
            request = chat(f"session {i}, turn {turn}", session)
            _wait_until_quiet(gateway)
            predicted = scores(gateway, request)[engine]
            answer = send(gateway, request, max_tokens=ANSWER_TOKENS, ignore_eos=True)
            told = cached(answer)
            yield Asked(
                request.name,
                told.prompt_tokens,
                predicted,
                int(str(answer.headers["x-inferway-matched-blocks"])),
                told.cached_tokens,
                held[i],
            )
            held[i] = told.prompt_blocks * BLOCK_SIZE
            session.append(assistant(answer.json["choices"][0]["message"]["content"]))


def _texts() -> Sequence[str]:
    """Pieces of real ones, of about 200 to 800 tokens."""
    whole = "\n".join(
        message["content"]
        for each in conversations()
        for message in each["messages"]
        if isinstance(message["content"], str)
    )
    return [whole[first : first + 800] for first in range(0, len(whole), 800)]


def _wait_until_quiet(gateway: str) -> None:
    def is_quiet() -> bool:
        [report] = client.get(f"{gateway}/admin/engines").json["engines"]
        [endpoint] = report["endpoints"]
        age = endpoint["stream"]["age_seconds"]
        return endpoint["state"] == "exact" and (age is None or age > QUIET_SECONDS)

    wait_until(is_quiet, "the engine's event stream is quiet")


def test_requests_under_pressure_reuse_exactly_what_was_predicted(
    asked: list[Asked],
) -> None:
    differing = [one for one in asked if one.predicted_tokens != one.cached_tokens]

    assert len(asked) == NUM_ROUNDS * NUM_SESSIONS * NUM_TURNS
    assert differing == []


def test_a_request_is_told_what_was_predicted(asked: list[Asked]) -> None:
    assert [one for one in asked if one.told_blocks != one.predicted_blocks] == []


def test_the_cache_was_too_small_and_was_of_use(asked: list[Asked]) -> None:
    later = [one for one in asked if one.held_tokens]
    still_there = [one for one in later if one.cached_tokens >= one.held_tokens]
    driven_out = [one for one in later if one.cached_tokens < one.held_tokens]

    assert len(still_there) >= 5 * NUM_ROUNDS
    assert len(driven_out) >= 3 * NUM_ROUNDS
