"""Where requests go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from tests.engines.chats import Message, assistant, chat, user
from tests.engines.client import Answer
from tests.engines.conftest import serve
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.gateway import cached, engine_of, send, wait_until_believed

TURNS = (
    "Tell me about {} as if I had never heard of it: what it is, where it comes from, who made "
    "it or found it first, and why anybody should care about it today. Begin with something that "
    "surprises me, avoid every word that a child of ten would have to look up, and do not list "
    "dates or names unless the story would make no sense without them. I will read it aloud.",
    "Which part of this is the hardest to understand, and how would you draw it on one page?",
    "Now say it all in a single sentence.",
)
SUBJECTS = ("glass", "the violin", "yeast", "the zero", "tides", "chess", "paper", "bees")


class Session:
    """Somebody who talks about one subject, and types for longer than news of an engine's
    cache travel (on busy cores they may come a quarter of a second behind an answer)."""

    def __init__(self, gateway: str, subject: str) -> None:
        self._gateway = gateway
        self._subject = subject
        self._messages: list[Message] = []

    def say(self, text: str) -> Answer:
        self._messages.append(user(text.format(self._subject)))
        request = chat(self._subject, self._messages)
        answer = send(self._gateway, request, max_tokens=8)
        wait_until_believed(self._gateway, request, engine_of(answer), cached(answer).prompt_blocks)
        self._messages.append(assistant(answer.json["choices"][0]["message"]["content"]))
        return answer

    def talk(self) -> list[Answer]:
        return [self.say(text) for text in TURNS]


@pytest.fixture(scope="module")
def gateway(engines: Sequence[RealEngine], new_log: Callable[[str], Path]) -> Iterator[str]:
    """A gateway that has learned nothing yet. One that has seen an engine answer slowly while other
    tests kept it busy sends requests to the other one for minutes, and is right to."""
    with serve(engines, new_log("routing-gateway")) as program:
        yield program.url


@pytest.fixture(scope="module")
def sessions(gateway: str) -> list[list[Answer]]:
    """The answers that each session got: first one session after another, then two at a time."""
    alone = [Session(gateway, subject) for subject in SUBJECTS]
    together = [Session(gateway, f"{subject} in the year 1600") for subject in SUBJECTS]
    with ThreadPoolExecutor(2) as threads:
        return [*map(Session.talk, alone), *threads.map(Session.talk, together)]


def test_a_session_stays_with_the_engine_that_holds_it(sessions: list[list[Answer]]) -> None:
    """But for one or two: on busy cores an engine may well seem to be slower than it takes to
    compute so short a prompt on the other."""
    visited = [{engine_of(answer) for answer in answers} for answers in sessions]

    assert [len(engines) for engines in visited].count(1) >= len(sessions) - 2


def test_unrelated_sessions_spread_over_both_engines(
    sessions: list[list[Answer]], engines: Sequence[RealEngine]
) -> None:
    """How evenly is a matter of how fast each has seemed, so of what else the cores do. But an
    engine that is hardly known is tried, however slow its first answers were."""
    first = [engine_of(answers[0]) for answers in sessions]

    assert set(first) == {engine.name for engine in engines}


def test_headers_say_how_much_was_there(sessions: list[list[Answer]]) -> None:
    for answers in sessions:
        for earlier, later in pairwise(answers):
            if engine_of(earlier) != engine_of(later):
                continue
            # The prompt's last token may be another one once text follows: "\n", then "\n\n".
            before = (earlier.json["usage"]["prompt_tokens"] - 1) // BLOCK_SIZE

            assert int(later.headers["x-inferway-matched-blocks"]) >= before
            assert int(later.headers["x-inferway-prompt-blocks"]) >= before


def test_what_was_matched_was_reused(sessions: list[list[Answer]]) -> None:
    for answer in (answer for answers in sessions for answer in answers):
        promised = min(matched_blocks(answer), cached(answer).reusable_blocks)

        assert cached(answer).blocks >= promised


def matched_blocks(answer: Answer) -> int:
    return int(answer.headers["x-inferway-matched-blocks"])
