"""Which sessions are alive, what they hold, and whether a new one has room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.tables import candidates, profile_of, request

from inferway.config import ServeSettings
from inferway.model import SchedulingResult, Target
from inferway.openai_api.usage import Usage
from inferway.scheduling.by_role import ByRole
from inferway.scheduling.columns import EXPECTED_TTFT_MS
from inferway.scheduling.load import load_scheduling, scheduling_of
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
        live.begin(b"%d" % number, each, "e0", now)
        live.end(b"%d" % number, each, now)
    return live


def test_a_new_session_has_room_beside_what_the_others_hold() -> None:
    live = alive(1_000, 1_000)

    live.sizes = {"e0": 4_000, "e1": 2_000}

    assert live.first_tokens == 1_000
    assert live.has_room(0.5, now=0)
    assert not live.has_room(0.49, now=0)


def test_the_only_session_has_room_whatever_it_brings() -> None:
    assert LiveSessions(sizes={"e0": FIRST_TOKENS / 2}).has_room(1.0, now=0)


def test_a_session_holds_what_its_last_turn_and_its_answer_had() -> None:
    live = alive(1_000)
    live.begin(b"0", 1_500, "e0", 5.0)
    live.end(b"0", 1_700, 6.0)

    assert live.tokens == 1_700


def test_one_that_has_been_away_for_longer_than_others_ever_are_counts_for_less() -> None:
    live = alive()
    for turn in range(200):
        live.begin(b"one", 1_000, "e0", turn * 10.0)
        live.end(b"one", 1_000, turn * 10.0 + 5.0)  # back after 5 s
    for number in range(50):  # and as many never come back
        live.begin(b"gone %d" % number, 1_000, "e0", 2_000.0)
        live.end(b"gone %d" % number, 1_000, 2_000.0)
    live.forget(3_000.0)
    live.begin(b"new", 1_000, "e0", 3_000.0)
    live.end(b"new", 1_000, 3_000.0)

    at_once, later = live.expected_tokens(3_001.0), live.expected_tokens(3_030.0)

    assert 700 < at_once < 1_000
    assert later < 100


def test_one_with_a_turn_at_an_engine_counts_whole_and_is_never_forgotten() -> None:
    live = alive()
    live.begin(b"one", 1_000, "e0", 0.0)
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


def test_each_counts_at_least_the_mean_of_what_sessions_hold() -> None:
    live = alive(100, 3_900)

    assert live.mean_tokens == 2_000
    assert live.expected_tokens(0.0) == 5_900


ENDPOINTS = ("e0", "e1", "e2")


def beside(**tokens: float) -> LiveSessions:
    """One session at each endpoint named, that holds so many tokens of its cache of 1,000."""
    live = LiveSessions(sizes=dict.fromkeys(ENDPOINTS, 1_000.0), first_tokens=1.0)
    for home, each in tokens.items():
        live.begin(home.encode(), each, home, 0.0)
    return live


def test_a_session_stays_where_its_cache_is() -> None:
    live = beside(e0=600, e1=900, e2=700)

    assert live.homes(b"e1", ENDPOINTS, 1.0) == ["e1"]
    assert live.homes(b"e1", ("e0", "e2"), 1.0) == ["e0"]  # e1 gets no requests now


def test_a_new_session_goes_where_the_others_take_least_of_the_cache() -> None:
    live = beside(e0=600, e1=900, e2=700)

    assert live.homes(b"new", ENDPOINTS, 1.0) == ["e0"]
    live.sizes = {"e0": 800, "e1": 1_000, "e2": 1_000}
    assert live.homes(b"new", ENDPOINTS, 1.0) == ["e2"]


def test_sessions_that_begin_at_the_same_moment_see_each_other() -> None:
    live, homes = beside(e0=600, e1=650, e2=700), []
    for number in range(3):
        [home] = live.homes(b"%d" % number, ENDPOINTS, 1.0)
        live.begin(b"%d" % number, 120, home, 1.0)
        homes.append(home)

    assert sorted(homes) == ["e0", "e1", "e2"]


def test_while_there_is_plenty_of_room_it_does_not_matter() -> None:
    live = beside(e0=400, e1=900)

    assert live.homes(b"e0", ENDPOINTS, 1.0) == []
    assert live.homes(b"new", ENDPOINTS, 1.0) == ["e0", "e2"]


def test_one_that_another_engine_answered_is_there_from_then_on() -> None:
    live = beside(e0=600, e1=700, e2=700)
    live.move(b"e0", "e2")

    assert live.homes(b"e0", ENDPOINTS, 1.0) == ["e2"]


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
                live.begin(name, tokens, "e0", now)
            case "end":
                live.end(name, tokens, now)
            case _:
                live.forget(now)
        assert live.tokens == pytest.approx(sum(each.tokens for each in live.alive.values()))
        most = live.tokens + live.mean_tokens * len(live.alive)
        assert 0 <= live.expected_tokens(now) <= most + 1e-6
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


def rated(admission: SessionAdmission, session: bytes, expected_ms: list[float]) -> list[float]:
    """The ratings of three endpoints whose first tokens are expected after that long."""
    table = candidates(3)
    table.add(EXPECTED_TTFT_MS, np.array(expected_ms))
    asked = request(headers=[(b"x-session-id", session)] if session else [])
    return [float(each) for each in admission.score(asked, table)]


def test_the_endpoint_of_the_session_is_rated_unless_it_would_answer_much_later() -> None:
    admission = SessionAdmission()
    asked = request(headers=FOUND)
    admission.models[asked.target_model] = beside(e0=600, e1=900, e2=700)

    assert rated(admission, b"e1", [10, 20, 10]) == [0, 1, 0]
    assert rated(admission, b"e1", [10, 5_000, 10]) == [0, 1, 0]
    assert rated(admission, b"e1", [9_000, 20_000, 9_000]) == [0, 1, 0]
    assert rated(admission, b"e1", [10, 5_100, 10]) == [0, 0, 0]
    assert rated(admission, b"e1", [float("nan"), 6_000, 10]) == [0, 0, 0]
    assert rated(admission, b"", [10, 10, 10]) == [0, 0, 0]
    admission.abstains = True
    assert rated(admission, b"e1", [10, 10, 10]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("workers", "has_queue", "abstains"), [(1, True, False), (2, True, True), (1, False, False)]
)
def test_it_rates_endpoints_where_it_hears_of_all_turns(
    workers: int, has_queue: bool, abstains: bool
) -> None:
    plugins = [{"type": "expected-ttft"}, {"type": "session-admission"}]
    settings = ServeSettings(engines=[], scheduling={"plugins": plugins}, workers=workers)
    scheduling = scheduling_of(settings, has_queue=has_queue)
    profile = profile_of(scheduling)
    [plugin] = [
        each.scorer for each in profile.scorers if isinstance(each.scorer, SessionAdmission)
    ]

    assert plugin.abstains == abstains
    assert (plugin in scheduling.following) == (not abstains)
    assert (scheduling.sessions is plugin) == (workers == 1 and has_queue)


def test_a_request_of_a_session_may_go_in_two_legs() -> None:
    plugins = [{"type": "expected-ttft"}, {"type": "session-admission"}]
    chooser = load_scheduling({"plugins": plugins}).chooser

    assert isinstance(chooser, ByRole)
    assert chooser.has_legs


def followed(admission: SessionAdmission, headers: list[tuple[bytes, bytes]]) -> bool:
    """Send a request with a prompt of 100 tokens to its end; return whether it was followed."""
    table = candidates(2)
    target = Target(table.endpoints[0], 0.0, 0, 0)
    asked = request(headers=headers)
    listener = admission.follow(asked, table, SchedulingResult((target,)))
    if listener is None:
        return False
    listener.on_attempt(target, 1.0)
    listener.on_attempt(Target(table.endpoints[1], 0.0, 0, 0), 2.0)
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
    assert session.home == "e1"


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
