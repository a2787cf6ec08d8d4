"""How long a caller would wait."""

from __future__ import annotations

import pytest

from inferway.http.request_queue import patience


@pytest.mark.parametrize(
    ("name", "value", "seconds"),
    [
        (b"x-slo-ttft-ms", b"250", 0.25),
        (b"x-llm-d-slo-ttft-ms", b"250.5", 0.2505),
        (b"x-request-timeout-ms", b"2000", 2.0),
        (b"x-stainless-read-timeout", b"30", 30.0),
        (b"x-stainless-read-timeout", b"600", 60.0),  # no longer than the operator says
        (b"x-slo-tpot-ms", b"1", 60.0),
    ],
)
def test_each_header_shortens_it(name: bytes, value: bytes, seconds: float) -> None:
    assert patience([(b"host", b"h"), (name, value)], 60.0) == pytest.approx(seconds)


def test_the_shortest_counts() -> None:
    headers = [(b"x-slo-ttft-ms", b"500"), (b"x-request-timeout-ms", b"100")]

    assert patience(headers, 60.0) == pytest.approx(0.1)


@pytest.mark.parametrize("value", [b"", b"soon", b"-1", b"0", b"nan", b"inf", b"\xff"])
def test_what_is_no_positive_number_says_nothing(value: bytes) -> None:
    assert patience([(b"x-stainless-read-timeout", value)], 60.0) == 60.0
