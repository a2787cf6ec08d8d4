"""How the trivial engines behind a router stream."""

from __future__ import annotations

import msgspec

from inferway_bench.engine_streams import Pace
from inferway_bench.placed import Placed
from inferway_bench.processes import get, request


def set_pace(one: Placed, tokens: int, seconds: float) -> None:
    """From now on; with 0 seconds all comes at once."""
    body = msgspec.json.encode(Pace(tokens, seconds))
    for engine in one.place.engines:
        request(f"{engine.url}/bench/streams", body)


def events_written(one: Placed) -> int:
    """By its engines, into streams, so far."""
    return sum(
        msgspec.json.decode(get(f"{engine.url}/bench/written"), type=dict[str, int])["events"]
        for engine in one.place.engines
    )
