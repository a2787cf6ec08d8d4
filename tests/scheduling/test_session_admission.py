"""Which sessions are alive, what they hold, and whether a new one has room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.tables import candidates, request

from inferway.model import SchedulingResult, Target
from inferway.openai_api.usage import Usage
from inferway.scheduling.plugin import RequestOutcome
from inferway.scheduling.session_admission import (
    FIRST_TOKENS,
    MOST_SESSIONS,
    LiveSessions,
    SessionAdmission,
    SessionAdmissionParameters,
)

FOUND = [(b"x-session-id", b"s")]


def alive(*tokens: float, now: float = 0.0, most: int = MOST_SESSIONS) -> LiveSessions:
    """Sessions that hold so many tokens, whose tools run since `now`."""
    live = LiveSessions(most=most)
    for number, each in enumerate(tokens):
        live.begin(b"%d" % number, each, now)
        live.end(b"%d" % number, each, now)
    return live


def test_a_new_session_has_room_beside_what_the_others_hold() -> None:
    live = alive(1_000, 1_000)

    assert live.first_tokens == 1_000
    assert live.has_room(3_000, now=0)
    assert not live.has_room(2_999, now=0)


def test_the_only_session_has_room_whatever_it_brings() -> None:
    assert LiveSessions().has_room(FIRST_TOKENS / 2, now=0)


def test_a_session_holds_what_its_last_turn_and_its_answer_had() -> None:
    live = alive(1_000)
    live.begin(b"0", 1_500, 5.0)
    live.end(b"0", 1_700, 6.0)

    assert live.tokens == 1_700


def test_one_that_has_been_away_for_longer_than_others_ever_are_counts_for_less() -> None:
    live = alive()
    for turn in range(200):
        live.begin(b"one", 1_000, turn * 10.0)
        live.end(b"one", 1_000, turn * 10.0 + 5.0)  # back after 5 s
    for number in range(50):  # and as many never come back
        live.begin(b"gone %d" % number, 1_000, 2_000.0)
        live.end(b"gone %d" % number, 1_000, 2_000.0)
    live.forget(3_000.0)
    live.begin(b"new", 1_000, 3_000.0)
    live.end(b"new", 1_000, 3_000.0)

    at_once, later = live.expected_tokens(3_001.0), live.expected_tokens(3_030.0)

    assert 700 < at_once < 1_000
    assert later < 100


def test_one_with_a_turn_at_an_engine_counts_whole_and_is_never_forgotten() -> None:
    live = alive()
    live.begin(b"one", 1_000, 0.0)
    live.forget(1e6)

    assert live.expected_tokens(1e6) == 1_000
    assert live.knows(b"one", 1e6)


def test_who_has_been_away_for_long_is_over_and_new_when_it_comes_again() -> None:
    live = alive(1_000)

    assert live.knows(b"0", 599.0)
    assert not live.knows(b"0", 601.0)
    assert live.tokens == 0


def test_a_turn_that_never_began_leaves_nothing_but_its_place() -> None:
    live = LiveSessions()
    live.enter(b"one", 0.0)
    live.forget(601.0)

    assert (live.tokens, len(live.alive)) == (0.0, 0)


def test_the_longest_gone_makes_room_for_more_than_may_be_alive() -> None:
    live = alive(1, 2, 3, 4, most=3)

    assert list(live.alive) == [b"1", b"2", b"3"]
    assert live.tokens == 9


def test_nobody_is_overdue_while_others_are_let_in() -> None:
    live = LiveSessions()
    live.enter(b"one", 95.0)

    assert not live.is_overdue(0.0, 100.0, 100.0)
    assert not live.is_overdue(10.0, 100.0, 109.0)
    assert live.is_overdue(0.0, 100.0, 105.0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "begin", "end", "forget"]),
        st.integers(0, 5),  # which session
        st.integers(0, 5_000),  # tokens
        st.floats(0, 300),  # seconds since the event before
    ),
    max_size=60,
)


@given(EVENTS)
def test_its_sum_is_that_of_its_sessions_and_nothing_is_expected_beyond_it(
    events: list[tuple[str, int, int, float]],
) -> None:
    live, now = LiveSessions(), 0.0
    for what, number, tokens, later in events:
        now += later
        name = b"%d" % number
        match what:
            case "enter":
                live.enter(name, now)
            case "begin":
                live.begin(name, tokens, now)
            case "end":
                live.end(name, tokens, now)
            case _:
                live.forget(now)
        assert live.tokens == pytest.approx(sum(each.tokens for each in live.alive.values()))
        assert 0 <= live.expected_tokens(now) <= live.tokens + 1e-6
        assert all(each.num_turns >= 0 for each in live.alive.values())


@given(st.lists(st.floats(0, 10_000), max_size=50), st.integers(0, 50))
def test_the_longer_away_the_less_probable_it_is_to_come_back(gaps: list[float], over: int) -> None:
    live = LiveSessions()
    for gap in gaps:
        live.returns.came_back(gap)
    live.returns.over += over
    found = [live.returns.probability(seconds) for seconds in (0, 1, 10, 100, 1_000, 10_000)]

    assert found == sorted(found, reverse=True)
    assert all(0 < each <= 1 for each in found)
    assert live.returns.most_seconds >= 60


def followed(admission: SessionAdmission, headers: list[tuple[bytes, bytes]]) -> bool:
    """Send a request with a prompt of 100 tokens to its end; return whether it was followed."""
    table = candidates(1)
    target = Target(table.endpoints[0], 0.0, 0, 0)
    asked = request(headers=headers)
    listener = admission.follow(asked, table, SchedulingResult((target,)))
    if listener is None:
        return False
    listener.on_attempt(target, 1.0)
    listener.on_attempt(target, 2.0)  # another engine
    listener.on_end(RequestOutcome("ok", 3.0, Usage(100, 20)))
    return True


@pytest.mark.parametrize(
    "name", ["x-session-id", "x-claude-code-session-id", "session-id", "session_id", "x-own"]
)
def test_agents_name_their_sessions_in_headers(name: str) -> None:
    admission = SessionAdmission(SessionAdmissionParameters(session_headers=("X-Own",)))

    assert followed(admission, [(name.encode(), b"s")])
    (live,) = admission.models.values()
    assert list(live.alive) == [b"s"]
    session = live.alive[b"s"]
    assert (session.tokens, session.num_turns, session.since) == (120, 0, 3.0)


def test_who_names_no_session_is_none() -> None:
    admission = SessionAdmission()

    assert not followed(admission, [])
    assert not admission.models


def test_a_request_that_went_nowhere_changes_nothing() -> None:
    admission, table = SessionAdmission(), candidates(1)
    target = Target(table.endpoints[0], 0.0, 0, 0)
    listener = admission.follow(request(headers=FOUND), table, SchedulingResult((target,)))
    assert listener is not None
    listener.on_end(RequestOutcome("error", 1.0))

    (live,) = admission.models.values()
    assert not live.alive


def test_a_long_name_is_cut() -> None:
    assert len(SessionAdmission().session([(b"x-session-id", b"s" * 10_000)])) == 256
