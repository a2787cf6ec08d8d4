"""A rule for pictures is dropped when an engine has made other tokens of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from inferway.model import Endpoint, HolderId, MediaSpan, Prompt, Target
from inferway.openai_api.usage import Usage
from inferway.prompts.media.chat_media import ChatMedia
from inferway.prompts.media.rule import MediaRule
from inferway.routing.media_proof import MediaProof
from inferway.scheduling.plugin import RequestOutcome

RULE = MediaRule("<image>", (7,), lambda _: [7])
CUT = 4  # tokens of a block
PROMPT = Prompt(
    np.arange(30, dtype=np.uint32), list(range(100, 107)), None, [MediaSpan("a", 13, 9)]
)
BEFORE = 3  # whole blocks before the picture
TARGET = Target(Endpoint("e", "http://e:1", 5), 0.0, 0, 0)


class Case:
    """One model's media, and what becomes of requests with a picture."""

    def __init__(self, tokenizer: object = None) -> None:
        self.media = ChatMedia(tokenizer, RULE)  # type: ignore[arg-type]
        self._later: list[Callable[[], Awaitable[None]]] = []

    def answered(
        self,
        *,
        counted: int | None = None,
        held: int = 0,
        status: int = 200,
        outcome: str = "ok",
        prompt: Prompt = PROMPT,
    ) -> bool:
        """Whether the rule is still believed after such an answer. `held`: blocks that the index
        has of the prompt at its engine; `counted`: tokens by the answer's usage."""

        async def num_held(asked: Prompt, holder: HolderId) -> int:
            assert (asked, holder) == (prompt, 5)
            return held

        proof = MediaProof(self.media, {CUT: prompt}, num_held, self._later.append)
        proof.on_attempt(TARGET, 0.0)
        proof.on_head(status)
        usage = None if counted is None else Usage(counted, 1)
        proof.on_end(RequestOutcome(outcome, 1.0, usage))
        for check in self._later:
            asyncio.run(check())  # type: ignore[arg-type]
        self._later.clear()
        return self.media.has_rule


def test_rule_is_believed_while_engines_count_as_it_does() -> None:
    case = Case()

    assert all(case.answered(counted=30) for _ in range(20))


@pytest.mark.parametrize("counted", [29, 31, 1])
def test_rule_is_dropped_when_an_engine_counts_other_tokens(
    counted: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert not Case().answered(counted=counted)

    [message] = [record.getMessage() for record in caplog.records]
    assert f"engine e counts {counted} tokens" in message
    assert "believed to have 30, of them for its pictures 9" in message


@pytest.mark.parametrize(("status", "outcome"), [(400, "ok"), (200, "upstream_error")])
def test_answer_that_failed_says_nothing_of_the_rule(status: int, outcome: str) -> None:
    assert Case().answered(counted=12, status=status, outcome=outcome)


def test_rule_is_dropped_when_no_engine_keeps_a_block_of_a_picture_many_times_in_a_row() -> None:
    case = Case()

    assert [case.answered(held=BEFORE) for _ in range(8)] == [True] * 7 + [False]


def test_one_block_of_a_picture_ends_the_doubts() -> None:
    case = Case()

    for _ in range(5):
        assert all(case.answered(held=BEFORE) for _ in range(7))
        assert case.answered(held=BEFORE + 1)


@pytest.mark.parametrize("held", [0, BEFORE - 1])
def test_blocks_that_are_missing_before_the_picture_are_no_doubt(held: int) -> None:
    case = Case()

    assert all(case.answered(held=held) for _ in range(20))


def test_picture_behind_the_last_whole_block_is_no_doubt() -> None:
    at_the_end = Prompt(PROMPT.token_ids, PROMPT.block_keys, None, [MediaSpan("a", 28, 2)])
    case = Case()

    assert all(case.answered(held=7, prompt=at_the_end) for _ in range(20))
