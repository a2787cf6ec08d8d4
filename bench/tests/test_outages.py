"""What `inferway bench outages` makes of answers, and a small run of it."""

from __future__ import annotations

import pytest
from bench.tests.runs import a_run, unseen

from inferway_bench.loading.answers import Answer, Piece
from inferway_bench.outages.benchmark import OURS, OUTAGES, OutagesPlan, goals
from inferway_bench.outages.seen import HURT_SECONDS, Seen, figures, seen
from inferway_bench.rows import Row

CHAT = b'{"choices":[{"message":{"content":"Hi"},"finish_reason":"stop"}]}'
CHUNK = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
DONE = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def test_the_silence_of_a_stream_is_the_longest_time_without_an_event() -> None:
    pieces = [Piece(11.0, CHUNK), Piece(11.5, b": keep-alive\n\n"), Piece(15.0, DONE)]
    stream = Answer(sent=10.5, status=200, pieces=pieces, ended=15.0)

    assert seen(stream, 10.0) == Seen(sent=0.5, took=4.5, silence=4.0, error=None)


def test_the_silence_before_another_answer_is_all_of_its_time() -> None:
    answer = Answer(sent=10.5, status=200, pieces=[Piece(12.0, CHAT)], ended=12.0)

    assert seen(answer, 10.0) == Seen(sent=0.5, took=1.5, silence=1.5, error=None)


def test_what_clients_gave_up_is_stuck_and_what_ended_in_the_middle_has_failed() -> None:
    stuck = seen(Answer(sent=0.0, ended=60.0, error="timeout"), 0.0)
    cut = seen(Answer(sent=0.0, status=200, pieces=[Piece(1.0, CHUNK)], ended=2.0), 0.0)
    whole = Seen(0.0, 1.0, 1.0, None)
    late = Seen(6.0, 2.0 + HURT_SECONDS + 0.1, 1.0, None)

    found = figures([whole, stuck, cut, late], trouble_at=5.0)

    assert (found["requests"], found["failed"], found["stuck"], found["hurt"]) == (4, 1, 1, 3)
    assert (found["usual_s"], found["silence_s"]) == (1.0, 60.0)


@pytest.mark.parametrize(
    ("trouble", "figure", "value", "is_met"),
    [
        ("freeze", "failed", 1, [False, True]),
        ("freeze", "stuck", 1, [False, True]),
        ("freeze", "silence_s", 11.0, [True, False]),
        ("30 times slower", "silence_s", 37.0, [True]),
    ],
)
def test_goals_judge_what_clients_of_ours_saw(
    trouble: str, figure: str, value: float, is_met: list[bool]
) -> None:
    numbers = {"failed": 0.0, "stuck": 0.0, "silence_s": 4.0, figure: value}
    ours = Row("seen", {"trouble": trouble, "router": OURS}, dict(numbers))
    other = Row("seen", {"trouble": trouble, "router": "other"}, {**numbers, "stuck": 9.0}, False)

    assert [each.is_met for each in goals(a_run("outages", [ours, other]))] == is_met


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nobody_sees_that_an_engine_was_killed_frozen_or_stalled() -> None:
    plan = OutagesPlan(
        trouble=("kill -9", "freeze", "stalled core"), only=(OURS,), peers=False, give_up=30.0
    )

    run = OUTAGES.run(plan, unseen)

    assert [row.keys["trouble"] for row in run.select("seen")] == list(plan.trouble)
    assert all(row.median("requests") == 42 for row in run.select("seen"))
    lost = [each for each in goals(run) if "failed or stuck" in each.what]
    assert [each.is_met for each in lost] == [True] * 3, run.rows
