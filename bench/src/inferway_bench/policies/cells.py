"""A workload that is divided among cells: fleets of their own, each with gateways of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import xxhash

from inferway_bench.policies.requests import Workload
from inferway_bench.policies.simulate import FleetSpec, MakePolicy, simulate


def divided(workload: Workload, cells: int) -> Iterator[Workload]:
    """Yield the requests of each cell that gets any. A request's session says which, by a hash, as
    a proxy hashes a header; what follows it is of its cell."""
    of: list[int] = []
    places: list[list[int]] = [[] for _ in range(cells)]
    for place, request in enumerate(workload.requests):
        if request.follows is None:
            session = request.session.to_bytes(8, "big")
            cell = xxhash.xxh64_intdigest(session) % cells
        else:
            cell = of[request.follows]
        of.append(cell)
        places[cell].append(place)
    for mine in places:
        if mine:
            number = {place: i for i, place in enumerate(mine)}
            requests = [
                msgspec.structs.replace(
                    each, follows=None if each.follows is None else number[each.follows]
                )
                for each in map(workload.requests.__getitem__, mine)
            ]
            yield replace(workload, requests=requests)


class CellFigures(msgspec.Struct, frozen=True):
    """The means of all cells' requests that count: times in ms, shares in %."""

    ttft: float
    ttft_p90: float
    cached: float
    busiest: float  # the requests of the cell that has most / those of the average cell


def simulate_cells(
    workload: Workload, rate: float, fleet: FleetSpec, make: MakePolicy, seed: int,
    cells: int, warm_up: float,
) -> CellFigures:  # fmt: skip
    """Simulate so many cells, among which the engines of `fleet` are divided evenly, each with the
    share of the rate that its sessions have. Raises BenchError for a request that no engine could
    ever hold."""
    spec = msgspec.structs.replace(fleet, num_engines=fleet.num_engines // cells)
    ttft, cached, prompt, sizes = [], 0, 0, []
    for number, part in enumerate(divided(workload, cells)):
        share = rate * len(part.requests) / len(workload.requests)
        outcome = simulate(part, share, spec, make, seed + number)
        judged = outcome.judged(part, share, warm_up)
        ttft.append(outcome.ttft[judged])
        cached += int(outcome.cached_tokens[judged].sum())
        prompt += int(part.columns.prompt_tokens[judged].sum())
        sizes.append(len(part.requests))
    times = np.concatenate(ttft) * 1e3
    return CellFigures(
        ttft=float(times.mean()),
        ttft_p90=float(np.percentile(times, 90)),
        cached=cached / prompt * 100,
        busiest=max(sizes) * cells / len(workload.requests),
    )
