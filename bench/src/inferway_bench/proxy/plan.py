"""How long and how often `inferway bench proxy` measures."""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """Seconds are of load, for each router and repeat."""

    repeats: int = 9
    seconds: int = 4
    warm_up_seconds: int = 2
    connections: int = 8
    # Streams that run side by side, and their steps: 10,000 chunks a second, far from saturation.
    streams: int = 20
    stream_tokens: int = 500
    step_seconds: float = 0.002
    latency_seconds: int = 5
    held_streams: int = 1000
    memory_repeats: int = 3


QUICK = Plan(repeats=2, seconds=2, warm_up_seconds=1, latency_seconds=2, memory_repeats=1)
