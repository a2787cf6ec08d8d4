"""The rate at which the mean time to the first token is twice what it is when requests hardly ever
meet. Pure: who measures is an argument."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

_MOST_DOUBLINGS = 8


def doubling_rate(
    mean_ttft: Callable[[float], float], idle_rate: float, steps: int
) -> tuple[float, float]:
    """The idle mean, in seconds, and the rate, in requests a second, found by doubling the rate
    and then by `steps` halvings, in ratio, of what is left. The mean must grow with the rate.

    Raises ValueError if it does not double.
    """
    idle = mean_ttft(idle_rate)
    low = high = idle_rate
    for _ in range(_MOST_DOUBLINGS):
        high = low * 2
        if mean_ttft(high) >= 2 * idle:
            break
        low = high
    else:
        raise ValueError(f"at {high:g} requests a second the mean TTFT is not twice {idle:g} s")
    for _ in range(steps):
        middle = sqrt(low * high)
        if mean_ttft(middle) >= 2 * idle:
            high = middle
        else:
            low = middle
    return idle, sqrt(low * high)
