"""How long a caller would wait for its answer to begin, as its headers say.

x-slo-ttft-ms, x-llm-d-slo-ttft-ms   milliseconds to the first token
x-request-timeout-ms                 milliseconds for the whole request
x-stainless-read-timeout             seconds without a byte: OpenAI's own clients send it

A shorter time than the operator's can only hurt its sender, so these are taken from anybody. What
is no positive number is as if it were not there: the first two are refused where they are read
(steps/objectives), the others are not ours.
"""

from __future__ import annotations

from math import isfinite

from inferway.model import Headers

_SECONDS = {
    b"x-slo-ttft-ms": 0.001,
    b"x-llm-d-slo-ttft-ms": 0.001,
    b"x-request-timeout-ms": 0.001,
    b"x-stainless-read-timeout": 1.0,
}


def patience(headers: Headers, most: float) -> float:
    """In seconds, `most` at most."""
    for name, value in headers:
        unit = _SECONDS.get(name)
        if unit is not None:
            most = min(most, _seconds(value, unit, most))
    return most


def _seconds(value: bytes, unit: float, otherwise: float) -> float:
    try:
        seconds = float(value) * unit
    except ValueError:
        return otherwise
    return seconds if isfinite(seconds) and seconds > 0 else otherwise
