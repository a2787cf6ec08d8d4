"""By how much engines that share a machine slow each other: the only constant that cannot be
measured on an engine alone. Beside the engines, the router and the clients want the processors as
well, so it is fitted to chats that went through a router. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from inferway_bench.policies.simulate import FleetSpec
from inferway_bench.processes import BenchError
from inferway_bench.simulate.compared import Sent

_MOST, _CLOSE = 4.0, 0.002


def fit_beside(carried: Sequence[Sent], fleet: FleetSpec) -> float:
    """How many times as long a step takes while another engine computes, so that the chats of
    `carried` wait as long as they did, simulated (mean TTFT); 1 if they wait longer without it.
    Raises BenchError when four times is not enough."""
    waited = fmean(one.ttft for one in carried)

    def simulated(beside: float) -> float:
        slowed = fleet.with_beside(beside)
        return fmean(one.simulated_ttft(slowed) for one in carried)

    low, high = 1.0, _MOST
    if simulated(high) < waited:
        raise BenchError(
            f"fitting: first tokens came after {waited * 1e3:,.0f} ms; with engines that slow each "
            f"other {_MOST:g} times it is {simulated(high) * 1e3:,.0f}: something else was in the "
            "way; the cure: a quieter machine"
        )
    while high - low > _CLOSE:
        middle = (low + high) / 2
        low, high = (middle, high) if simulated(middle) < waited else (low, middle)
    return round(low, 3)
