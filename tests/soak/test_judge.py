"""What `make soak` would call wrong."""

from __future__ import annotations

import msgspec
import pytest
from tests.soak.judge import Heard, Tally, Wrong, judged
from tests.soak.soak import Result
from tests.soak.world import Taken, more_than, with_probes

SAID = "n7x1 anchor basket candle"
ERROR = b'{"error":{"message":"engine e: gone","type":"upstream_error","code":502}}'


def heard(body: bytes, *, stream: bool = True, status: int = 200, broken: str = "") -> Heard:
    return Heard(SAID, "n7x1", "chat", stream, status, "n7x1", body=body, broken=broken)


def events(*texts: str, end: bytes = b"data: [DONE]\n\n") -> bytes:
    chunks = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks) + end


def whole(text: str) -> bytes:
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return msgspec.json.encode({"choices": [choice]})


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (heard(events("n7x1 anchor", " basket candle")), "whole"),
        (heard(b": keep-alive\n\n" + events(SAID)), "whole"),
        (heard(events("n7x1 an", end=b"data: %b\n\n" % ERROR)), "error event"),
        (heard(events("n7x1 an", end=b"data: {"), broken="reset"), "cut"),
        (heard(whole(SAID), stream=False), "whole"),
        (heard(b'{"choi', stream=False, broken="reset"), "cut"),
        (heard(ERROR, status=502), "error 502"),
    ],
)
def test_an_answer_is_whole_or_says_that_it_is_not(answer: Heard, end: str) -> None:
    assert judged(answer) == end


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (heard(events("n8x9 saddle")), "another's answer"),
        (heard(events("n7x1 anchor")), r"\[DONE\] after a part"),
        (heard(events(SAID, end=b"")), "ends well without its end"),
        (heard(events(SAID) + events("more", end=b"")), "more after the end"),
        (heard(events(SAID), broken="reset"), "ended, and then"),
        (heard(b"event\n\n"), "not an event"),
        (heard(b"data: {}\n\n"), "nobody can read"),
        (heard(whole("n8x9 saddle"), stream=False), "another's answer"),
        (heard(whole(SAID)[:-9], stream=False), "ends early"),
        (heard(b"oops", status=502), "not an error as OpenAI says it"),
        (heard(ERROR, status=500), "status 500"),
        (heard(b"", status=0, broken="closed"), "no answer at all"),
    ],
)
def test_anything_else_is_wrong(answer: Heard, why: str) -> None:
    with pytest.raises(Wrong, match=why):
        judged(answer)


def test_an_answer_with_another_request_id_is_wrong() -> None:
    answer = heard(events(SAID))
    answer.answered_id = "n8x9"

    with pytest.raises(Wrong, match="the answer's id is 'n8x9'"):
        judged(answer)


def test_who_leaves_may_have_heard_the_beginning_of_its_own_answer_only() -> None:
    own, anothers = heard(events("n7x1 an", end=b"da")), heard(events("n8x9", end=b"da"))
    own.left = anothers.left = True

    assert judged(own) == "left"
    with pytest.raises(Wrong):
        judged(anothers)


def test_a_wrong_answer_and_a_stuck_request_fail_the_run() -> None:
    tally = Tally()
    tally.add(heard(events("n8x9 saddle")))
    tally.add_stuck("chat", "n9x2", 40)

    found = result(wrong=tally.wrong, stuck=tally.stuck, shown=tally.shown).failures()

    assert "n7x1: another's answer" in found[0]
    assert found[1:] == ["chat n9x2: no end within 40 s", "1 wrong, 1 stuck"]


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        ({"whole": 10}, "only 10 of 90 were whole"),
        ({"crashed": 1}, "1 handlers crashed"),
        ({"slots_left": {"flow_in_flight": 1.0}}, "slots are left"),
        ({"left": {"tasks": [3, 4]}}, "left of requests that are over"),
        ({"memory_mib": [100.0, 110.0, 300.0]}, "memory grows"),
        ({"drained": {"whole": 1, "cut": 1}}, "stopped with 0"),
        ({"exit_status": 1}, "stopped with 1"),
        ({"beyond_s": 14.1}, "a client waited 14.1 s longer than its engine took"),
        ({"false_alarms": 2}, "2 engines were declared out that were well"),
    ],
)
def test_what_is_left_or_lost_fails_the_run(change: dict[str, object], failure: str) -> None:
    assert result().failures() == []
    (found,) = result(**change).failures()
    assert failure in found


def test_only_objects_of_requests_must_be_gone() -> None:
    before = Taken(1.0, 10, 5, {"inferway.upstream.exchange.UpstreamRequest": 0})
    after = Taken(
        *(2.0, 9, 5),
        {"inferway.upstream.exchange.UpstreamRequest": 1, "inferway.kv.index.memory.Node": 99},
    )

    assert more_than(before, after) == {"inferway.upstream.exchange.UpstreamRequest": [0, 1]}


def test_one_connection_to_each_engine_is_no_leak() -> None:
    connection = "inferway.upstream.connection.EngineConnection"
    origin = "inferway.upstream.pool.Origin"
    before = with_probes(Taken(100.0, 30, 9, {connection: 1, origin: 2}), 3)

    assert more_than(before, Taken(100.0, 32, 9, {connection: 3, origin: 3})) == {}
    assert more_than(before, Taken(100.0, 33, 9, {connection: 4, origin: 4})) == {
        "descriptors": [32, 33],
        connection: [3, 4],
        origin: [3, 4],
    }


def result(**changes: object) -> Result:
    """Of a run in which all went well."""
    well: dict[str, object] = {
        "seconds": 60.0,
        "seed": 1,
        "clients": 40,
        "engines": 3,
        "requests": 100,
        "whole": 80,
        "retried": 3,
        "wrong": 0,
        "stuck": 0,
        "by_kind": {},
        "ends": {"left": 10, "whole": 80},
        "slowest_ms": 10.0,
        "longest_wait_s": 12.0,
        "beyond_s": 13.9,
        "peaceful": {},
        "troubles": {},
        "alarms": {"does not answer": 3},
        "late_by_themselves": 1,
        "false_alarms": 0,
        "sent": 100,
        "crashed": 0,
        "slots_left": {"flow_in_flight": 0.0},
        "left": {},
        "descriptors": [1, 1],
        "tasks": [1, 1],
        "memory_mib": [100.0, 110.0, 111.0],
        "drained": {"whole": 12},
        "exit_status": 0,
        "shown": [],
    }
    return msgspec.convert(well | changes, Result)


def test_the_engines_of_an_answer_are_not_known_where_several_were_tried() -> None:
    once = Heard(SAID, "n7x1", "chat", stream=False, engines=["a"], waits=[(10.0, 2.0)])
    twice = Heard(
        SAID, "n7x1", "chat", stream=False, attempts=2, engines=["a"], waits=[(10.0, 2.0)]
    )

    assert [wait.engines for wait in once.waited()] == [("a",)]
    assert [wait.engines for wait in twice.waited()] == [()]
