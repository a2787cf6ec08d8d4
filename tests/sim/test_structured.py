"""A simulated engine may seem to have our structured output."""

from __future__ import annotations

from tests.sim.test_server import posting

WARM = "/v1/structured/warm"


def test_it_takes_a_shape_and_says_so() -> None:
    [(status, answer)] = posting((WARM, {"kind": "regex", "text": "a"}), structured=True)

    assert (status, answer) == (202, {"accepted": True})


def test_what_is_no_shape_is_refused() -> None:
    [(status, answer)] = posting((WARM, {"kind": 1}), structured=True)

    assert status == 400
    assert answer["error"]["message"].startswith("body: ")
