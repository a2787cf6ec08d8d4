"""A workload several times over, side by side: how a trace of thousands becomes a load of a
million.

Each copy's blocks and sessions are its own, as another group of users has them; its requests keep
their lengths, their order and their thinking. Copies begin within a session's usual distance of
each other (`Workload.grain`), drawn with the seed of the run. Nothing is made before it is asked
for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec

from inferway_bench.policies.requests import SimRequest, Workload

_COPY = 1 << 40  # above all ids of blocks and sessions


class _Copies(Sequence[SimRequest]):
    """Request i is number i // copies of copy i % copies: all are in the order of `start`."""

    def __init__(self, requests: Sequence[SimRequest], copies: int, most: int) -> None:
        self._requests = requests
        self._copies = copies
        self._places = range(most)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> SimRequest: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SimRequest]: ...
    def __getitem__(self, index: int | slice) -> SimRequest | Sequence[SimRequest]:
        if isinstance(index, slice):
            return [self[i] for i in self._places[index]]
        number, copy = divmod(self._places[index], self._copies)
        request, shift = self._requests[number], copy * _COPY
        follows = request.follows
        return msgspec.structs.replace(
            request,
            blocks=tuple([block + shift for block in request.blocks]),
            answer_blocks=tuple([block + shift for block in request.answer_blocks]),
            session=request.session + shift,
            follows=None if follows is None else follows * self._copies + copy,
        )


def repeated(workload: Workload, num_requests: int) -> Workload:
    """Return this number of requests: the first of `workload`, or as many copies as it takes."""
    requests = workload.requests
    if num_requests <= len(requests):
        return workload.part(num_requests)
    copies = -(-num_requests // len(requests))
    num_sessions = sum(request.follows is None for request in requests)
    return Workload(
        workload.name,
        f"{workload.about}; {copies} copies side by side, each with blocks of its own",
        workload.block_tokens,
        _Copies(requests, copies, num_requests),
        max(workload.grain, workload.seconds / num_sessions),
    )
