"""What a refusal says, and what stands against an engine that is suspended."""

from __future__ import annotations

import pytest

from inferway.config import EjectionSettings
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.limits.suspension import Suspension, refusal, told

SCALING = b'{"error":"The model is currently scaling. Please try again later."}'
PAUSED = (
    b'{"error":{"message":"Generation is paused. Please retry after it resumes.",'
    b'"type":"ServiceUnavailableError","param":null,"code":503}}'
)


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (503, SCALING, Suspension.SCALING),
        (503, PAUSED, Suspension.PAUSED),
        (500, SCALING, None),
        (
            503,
            b'{"error":"This data-parallel rank has been retired and is awaiting shutdown."}',
            None,
        ),
        (503, b"", None),
    ],
)
def test_a_refusal_says_whether_its_engine_is_suspended(
    status: int, body: bytes, found: Suspension | None
) -> None:
    assert refusal(status, body) is found


def standing(*suspended: str, drained: tuple[str, ...] = ()) -> OutlierDetection:
    named = dict.fromkeys(suspended, Suspension.PAUSED)
    return OutlierDetection(EjectionSettings(failures=1), set(drained), named)


def test_a_suspended_engine_gets_no_requests_even_if_it_is_the_last() -> None:
    assert standing("a").allowed("ab", 0.0) == {"b"}
    assert standing("a", drained=("b",)).allowed("ab", 0.0) == frozenset()
    assert not standing("a").takes("a", 0.0)
    assert not standing("a").is_plain


def test_nothing_is_held_against_an_engine_while_it_is_suspended() -> None:
    found = standing("a")

    assert not found.failed("a", 0.0)
    found.eject("a", 0.0)
    assert (found.failures, found.ejected) == ({}, set())
    assert found.failed("b", 0.0)


def test_engines_and_their_states_are_told_in_words() -> None:
    states = {"b": Suspension.ASLEEP, "a": Suspension.SCALING, "c": Suspension.PAUSED}

    words = told(["a", "b", "d"], states)

    assert words == "a changes the number of its ranks, b sleeps"
