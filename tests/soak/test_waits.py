"""What `make soak` calls a wait that no engine has taken, and what a false alarm."""

from __future__ import annotations

import pytest
from tests.soak.history import SLOW, Alarm, History, Trouble, alarms_in
from tests.soak.waits import Wait, Yardstick, beyond, longest_beyond
from tests.soak.witness import Sighting, Witness

A, B = "127.0.0.1:1", "127.0.0.1:2"
LOG = """\
2026-11-29T13:15:59.118+00:00 WARNING inferway.fleet: engine 127.0.0.1:1 cannot be reached: refused
2026-11-29T13:16:00.704+00:00 INFO    inferway.fleet: engine 127.0.0.1:1 serves soaked
2026-11-29T13:16:00.795+00:00 INFO    inferway.fleet: engine 127.0.0.1:2 serves soaked
2026-11-29T13:16:17.976+00:00 WARNING inferway.fleet: engine 127.0.0.1:1 does not answer: no answer
2026-11-29T13:16:23.418+00:00 WARNING inferway.forward: engine 127.0.0.1:1 failed too often
2026-11-29T13:16:24.713+00:00 WARNING inferway.fleet: engine 127.0.0.1:2 answers, but computes \
nothing: no token came
"""


def yardstick() -> Yardstick:
    """Of an engine that takes 0.5 s for an event, and 0.01 s for a word."""
    found = Yardstick()
    found.note(Wait(0.0, 0.5, 0))
    found.note(Wait(0.0, 1.0, 100))
    found.note(Wait(0.0, 1.0, 3))  # too few words to tell
    return found


def history(*troubles: Trouble) -> History:
    return History([A, B], list(troubles))


def test_twice_what_an_engine_takes_that_is_well_is_no_wait() -> None:
    of_event, of_words = Wait(10.0, 4.0, 0), Wait(10.0, 4.0, 100)

    assert beyond(of_event, yardstick(), history()) == pytest.approx(3.0)
    assert beyond(of_words, yardstick(), history()) == pytest.approx(1.0)


def test_what_the_engine_that_answered_took_because_it_was_slow_is_no_wait() -> None:
    slow = history(Trouble(A, SLOW, 12.0, 30.0))

    assert beyond(Wait(10.0, 8.0, 0, [A]), yardstick(), slow) == pytest.approx(1.0)
    assert beyond(Wait(10.0, 8.0, 0, [B]), yardstick(), slow) == pytest.approx(7.0)


def test_any_engine_may_have_been_the_slow_one_where_none_is_known() -> None:
    slow = history(Trouble(A, SLOW, 12.0, 30.0))

    assert beyond(Wait(10.0, 8.0, 0), yardstick(), slow) == pytest.approx(1.0)


def test_who_is_slow_may_take_no_more_than_so_many_times_what_is_needed() -> None:
    slow = history(Trouble(A, SLOW, 0.0))

    assert beyond(Wait(10.0, 100.0, 0, [A]), yardstick(), slow) == pytest.approx(70.0)


def test_while_every_engine_is_in_trouble_nobody_could_answer() -> None:
    both = history(Trouble(A, "killed", 11.0, 15.0), Trouble(B, "stopped", 12.0))

    assert both.nobody_seconds(10.0, 20.0) == pytest.approx(3.0)
    assert beyond(Wait(10.0, 10.0, 0), yardstick(), both) == pytest.approx(6.0)


def test_the_longest_wait_is_named() -> None:
    short, long = Wait(10.0, 2.0, 0), Wait(20.0, 5.0, 0)

    assert longest_beyond([short, long, short], yardstick(), history()) == (4.0, long)
    assert longest_beyond([], yardstick(), history()) == (0.0, None)


def test_alarms_are_read_in_the_gateway_s_log() -> None:
    first, second = alarms_in(LOG)

    assert (first.engine, first.how) == (A, "does not answer")
    assert (second.engine, second.how) == (B, "answers, but computes nothing")
    assert second.at - first.at == pytest.approx(6.737)


@pytest.mark.parametrize(
    ("at", "is_blameless"), [(99.0, True), (101.0, False), (111.0, False), (113.0, True)]
)
def test_an_engine_is_blamed_in_a_trouble_and_shortly_after(at: float, is_blameless: bool) -> None:
    troubled = history(Trouble(A, "stopped", 100.0, 102.0))

    assert troubled.is_blameless(Alarm(at, A, "does not answer")) == is_blameless
    assert troubled.is_blameless(Alarm(at, B, "does not answer"))


def test_an_alarm_is_confirmed_by_who_got_no_answer_either() -> None:
    alarm = Alarm(20.0, A, "does not answer")
    at_once = Sighting(17.0, 17.1, 5.0, is_busy=True)

    assert not Witness({A: [at_once]}).confirms(alarm)
    assert not Witness({A: [Sighting(5.0, 8.0, 5.0)]}).confirms(alarm)
    assert Witness({A: [at_once, Sighting(17.6, 19.7, 9.0)]}).confirms(alarm)
    assert Witness({A: [Sighting(17.6, 17.7)]}).confirms(alarm)


def test_an_alarm_is_confirmed_by_who_saw_no_tokens_either() -> None:
    alarm = Alarm(20.0, A, "answers, but computes nothing")

    def seen(*computed: float, is_busy: bool = True) -> Witness:
        return Witness(
            {A: [Sighting(15.0 + n, 15.1 + n, each, is_busy) for n, each in enumerate(computed)]}
        )

    assert seen(7.0, 7.0, 7.0).confirms(alarm)
    assert not seen(7.0, 8.0, 9.0, 10.0).confirms(alarm)
    assert not seen(7.0, 7.0, 7.0, is_busy=False).confirms(alarm)
