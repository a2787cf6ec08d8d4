"""Wrong keys at the page's login and on paths for admins, and who may try again when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import TooManyGuessesError
from inferway.http.guesses import (
    MOST_ADDRESSES,
    MOST_IN_ALL,
    MOST_OF_ONE,
    MOST_PROVEN,
    PROVEN_SECONDS,
    SECONDS,
    Guesses,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def is_heard(guesses: Guesses, address: str) -> bool:
    try:
        guesses.check(address)
    except TooManyGuessesError:
        return False
    return True


def test_one_address_may_fail_ten_times_and_then_waits() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    for number in range(MOST_OF_ONE):
        clock.now = number
        assert is_heard(guesses, "10.0.0.1")
        guesses.note("10.0.0.1")

    with pytest.raises(TooManyGuessesError, match="heard in 51 s") as refused:
        guesses.check("10.0.0.1")
    assert refused.value.retry_after == 51
    assert is_heard(guesses, "10.0.0.2")
    clock.now = SECONDS
    assert is_heard(guesses, "10.0.0.1")  # nine of them are not a minute old
    guesses.note("10.0.0.1")
    assert not is_heard(guesses, "10.0.0.1")
    clock.now = 2 * SECONDS
    assert is_heard(guesses, "10.0.0.1")
    assert len(guesses) == 0


def test_after_many_failures_who_has_not_failed_is_still_heard() -> None:
    guesses = Guesses(Clock())
    for number in range(MOST_IN_ALL):
        guesses.note(f"10.0.1.{number}")

    assert not is_heard(guesses, "10.0.1.0")
    assert is_heard(guesses, "10.0.2.1")
    guesses.note("10.0.2.1")
    assert not is_heard(guesses, "10.0.2.1")


def fail(guesses: Guesses, address: str, times: int = MOST_OF_ONE) -> None:
    for _ in range(times):
        guesses.hear(address, is_right=False)


def test_who_waits_is_not_told_whether_the_key_is_right() -> None:
    guesses = Guesses(Clock())
    fail(guesses, "10.0.0.1")

    for is_right in (False, True):
        with pytest.raises(TooManyGuessesError):
            guesses.hear("10.0.0.1", is_right=is_right)
    assert not guesses.lets_in("10.0.0.1")
    assert guesses.lets_in("10.0.0.2")


def test_where_a_right_key_came_from_others_wrong_ones_keep_no_right_one_out() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    guesses.hear("10.0.0.1", is_right=True)
    fail(guesses, "10.0.0.1")

    guesses.hear("10.0.0.1", is_right=True)
    assert guesses.lets_in("10.0.0.1")
    with pytest.raises(TooManyGuessesError):
        guesses.hear("10.0.0.1", is_right=False)
    clock.now = PROVEN_SECONDS
    fail(guesses, "10.0.0.1")
    with pytest.raises(TooManyGuessesError):
        guesses.hear("10.0.0.1", is_right=True)


def test_so_many_addresses_are_remembered_that_a_right_key_came_from() -> None:
    guesses = Guesses(Clock())
    for number in range(MOST_PROVEN + 1):
        guesses.hear(str(number), is_right=True)
    fail(guesses, "0")
    fail(guesses, "1")

    assert not guesses.lets_in("0")
    assert guesses.lets_in("1")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("unix", "unix", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_a_host_has_one_address(one: str, other: str, same: bool) -> None:
    guesses = Guesses(Clock())
    for _ in range(MOST_OF_ONE):
        guesses.note(one)

    assert is_heard(guesses, other) is not same


def test_what_is_remembered_is_bounded() -> None:
    guesses = Guesses(Clock())
    for number in range(MOST_ADDRESSES + 50):
        guesses.note(str(number))

    assert len(guesses) == MOST_ADDRESSES


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.floats(0, 30)), max_size=300))
def test_no_address_is_heard_to_fail_more_than_ten_times_a_minute(
    tries: list[tuple[str, float]],
) -> None:
    clock = Clock()
    guesses = Guesses(clock)
    failed: dict[str, list[float]] = {}
    for address, pause in tries:
        clock.now += pause / 10
        if is_heard(guesses, address):
            guesses.note(address)
            failed.setdefault(address, []).append(clock.now)

    for times in failed.values():
        for first, after in zip(times, times[MOST_OF_ONE:], strict=False):
            assert after - first >= SECONDS
