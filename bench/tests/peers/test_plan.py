"""The engines and the chats of the scenarios."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from inferway_bench.loading.generated import Conversation, Session
from inferway_bench.peers.plan import ChatSpec, RealEngines, chats


def test_real_engines_have_the_model_unless_fewer_layers_are_asked_for() -> None:
    whole, fewer = RealEngines(), RealEngines(layers=2, dtype="float32")

    assert "--load-format" not in whole.flags()
    assert "with SmolLM2-135M, one thread" in whole.about

    flags = fewer.flags()
    assert json.loads(flags[flags.index("--hf-overrides") + 1]) == {"num_hidden_layers": 2}
    assert flags[flags.index("--load-format") + 1] == "dummy"
    assert "with 2 layers of SmolLM2-135M's shape in float32, one thread" in fewer.about


SPEC = ChatSpec(sessions=12, turns=4, systems=3, apart=4)


def sent(sessions: list[Session]) -> list[tuple[float, int]]:
    """(when, whose), in the order of sending."""
    return sorted((at, session.number) for session in sessions for at in session.at)


def test_the_seed_decides_what_is_sent_and_when() -> None:
    assert chats(SPEC, 1, "x", 5.0) == chats(SPEC, 1, "x", 5.0)
    assert sent(chats(SPEC, 1, "x", 5.0)) != sent(chats(SPEC, 2, "x", 5.0))


def test_each_session_has_all_its_turns_in_the_order_of_their_times() -> None:
    sessions = chats(SPEC, 1, "x", 5.0)

    assert sorted(session.number for session in sessions) == list(range(12))
    assert all(len(session.turns) == len(session.at) == 4 for session in sessions)
    assert all(a < b for session in sessions for a, b in pairwise(session.at))
    assert [s.at[0] for s in sessions] == sorted(s.at[0] for s in sessions)


def test_the_rate_changes_how_fast_it_goes_and_nothing_else() -> None:
    slow, fast = chats(SPEC, 1, "x", 1.0), chats(SPEC, 1, "x", 4.0)

    assert [s.turns for s in slow] == [s.turns for s in fast]
    assert [s.at[-1] for s in slow] == pytest.approx([4 * s.at[-1] for s in fast])


def test_others_come_between_two_turns_of_a_session() -> None:
    order = [number for _, number in sent(chats(SPEC, 1, "x", 5.0))][:24]

    assert all(number not in order[i + 1 : i + 5] for i, number in enumerate(order))


def test_sessions_share_system_prompts_that_no_other_run_has() -> None:
    def systems(tag: str) -> set[str]:
        return {s.turns[0].messages[0]["content"] for s in chats(SPEC, 1, tag, 5.0)}

    assert len(systems("x")) == 3
    assert not systems("x") & systems("y")


def test_the_beginning_of_a_run_is_the_same_requests_at_the_same_times() -> None:
    whole, part = chats(SPEC, 1, "x", 5.0), chats(SPEC, 1, "x", 5.0, most=10)

    assert sent(part) == sent(whole)[:10]
    assert [s.turns[0] for s in part] == [s.turns[0] for s in whole[: len(part)]]


def test_what_the_assistant_said_is_part_of_the_workload() -> None:
    session = chats(SPEC, 1, "x", 5.0)[0]
    conversation = Conversation()
    conversation.ask(session.turns[0], {"model": "m"})
    conversation.hear(session.turns[0], "what an engine said")
    _, body = conversation.ask(session.turns[1], {"model": "m"})

    assert b"what an engine said" not in body
    assert str(session.turns[0].answer).encode() in body
