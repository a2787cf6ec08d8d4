"""Who has logged in to the page."""

from __future__ import annotations

from inferway.http.sessions import MOST, SECONDS, Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


KEYS = (object(), None)


def test_a_session_is_open_for_its_token_alone() -> None:
    sessions = Sessions(Clock())
    token = sessions.open(KEYS)

    assert sessions.is_open(token, KEYS)
    assert not sessions.is_open(token[:-1], KEYS)
    assert not sessions.is_open("", KEYS)
    assert len(token) >= 43  # 256 bits


def test_it_ends_by_itself() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.open(KEYS)

    clock.now = SECONDS - 1
    assert sessions.is_open(token, KEYS)
    clock.now = SECONDS
    assert not sessions.is_open(token, KEYS)
    assert len(sessions) == 0


def test_it_ends_with_the_keys_that_it_was_opened_with() -> None:
    sessions = Sessions(Clock())
    token = sessions.open(KEYS)

    assert not sessions.is_open(token, (object(), None))
    assert not sessions.is_open(token, KEYS)  # for good


def test_it_can_be_closed_once_or_twice() -> None:
    sessions = Sessions(Clock())
    token, other = sessions.open(KEYS), sessions.open(KEYS)

    sessions.close(token)
    sessions.close(token)

    assert not sessions.is_open(token, KEYS)
    assert sessions.is_open(other, KEYS)


def test_there_are_only_so_many() -> None:
    sessions = Sessions(Clock())
    tokens = [sessions.open(KEYS) for _ in range(MOST + 1)]

    assert len(sessions) == MOST
    assert not sessions.is_open(tokens[0], KEYS)
    assert sessions.is_open(tokens[-1], KEYS)


def test_no_token_is_kept() -> None:
    sessions = Sessions(Clock())
    token = sessions.open(KEYS)

    assert token not in repr(vars(sessions))
