"""Traces -> sessions with generated text."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inferway_bench.loading.generated import CHATS, Conversation, Session, shortened, traced
from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.processes import BenchError


def request(blocks: tuple[int, ...], tokens: int, **changes: Any) -> SimRequest:
    return SimRequest(blocks=blocks, prompt_tokens=tokens, output_tokens=5, session=0, **changes)


def sessions(*requests: SimRequest) -> list[Session]:
    workload = Workload("w", "about", 4, requests)
    at = np.array([float(r.start) for r in requests])
    return list(traced(workload, at, "seed"))


def words(session: Session, turn: int = 0) -> list[str]:
    path, body = Conversation().ask(session.turns[turn], {})
    assert path == CHATS
    return str(json.loads(body)["messages"][0]["content"]).split()


def test_a_prompt_has_the_traces_length_and_equal_blocks_have_equal_words() -> None:
    one, other = sessions(request((1, 2), 10), request((1, 3), 11))

    assert (len(words(one)), len(words(other))) == (10, 11)
    assert words(one)[:4] == words(other)[:4]
    assert words(one)[4:] != words(other)[4:10]


def test_what_a_request_has_beside_its_blocks_is_its_own() -> None:
    one, other = sessions(request((1,), 8), request((1,), 8))

    assert words(one)[4:] != words(other)[4:]


def test_requests_that_follow_each_other_are_one_session_with_its_thinking() -> None:
    [session] = sessions(request((1,), 6, start=3.0), request((1, 2), 9, follows=0, think=2.5))

    assert session.at == (3.0,)
    assert [turn.think for turn in session.turns] == [0.0, 2.5]
    assert session.turns[1].fields["max_tokens"] == 5


def test_sessions_come_in_the_order_of_their_times() -> None:
    found = sessions(request((1,), 6, start=3.0), request((2,), 6, start=1.0))

    assert [session.at for session in found] == [(1.0,), (3.0,)]


def test_too_long_prompts_are_left_out_with_what_follows_them() -> None:
    requests = [
        request((1,), 50),
        request((2,), 6),
        request((2, 3), 9, follows=1),
        request((2, 3), 50, follows=2),
        request((2, 3), 8, follows=3),
    ]

    short = shortened(Workload("w", "about", 4, requests), most_tokens=20)

    assert [(r.prompt_tokens, r.follows) for r in short.requests] == [(6, None), (9, 0)]
    assert "2 of 5 requests" in short.about


def test_if_nothing_is_short_enough_the_error_says_what_is_shortest() -> None:
    with pytest.raises(BenchError, match="shortest prompt has 50 tokens"):
        shortened(Workload("w", "about", 4, [request((1,), 50)]), most_tokens=20)
