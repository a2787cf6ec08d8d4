"""The rate of requests at which a mean time to first token is twice what it is when idle."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt


def doubling_rate(
    ttft: Callable[[float], float], idle: float, between: tuple[float, float], factor: float,
    attempts: int, bisections: int,
) -> tuple[float, float]:  # fmt: skip
    """Return two rates of which the mean `ttft` is below twice `idle` at the first, and not at the
    second. The higher of `between` is multiplied by `factor` until it is, at most `attempts` times,
    then what is left is halved, in ratio. Raises ValueError if it never doubles."""
    low, high = between
    for _ in range(attempts):
        if ttft(high) >= 2 * idle:
            break
        low, high = high, high * factor
    else:
        raise ValueError(f"at {low:g} requests a second the mean TTFT is not twice {idle:,.0f} ms")
    for _ in range(bisections):
        middle = sqrt(low * high)
        low, high = (middle, high) if ttft(middle) < 2 * idle else (low, middle)
    return low, high
