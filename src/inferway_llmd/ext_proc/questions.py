"""The questions about requests that the exchange asks, what it gets for an answer, and the rules by
which it answers the proxy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inferway.extension import Tap
from inferway.model import Endpoint, Target
from inferway.openai_api.usage import Usage
from inferway.routing.answer_plan import RequestLifecycle
from inferway.routing.structured_gate.shape import Shape
from inferway_llmd.ext_proc.counts import PickerCounts
from inferway_llmd.ext_proc.noted import Noted


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which all requests are answered."""

    find: Callable[[str], Endpoint | None]  # an address -> the endpoint there
    max_body_bytes: int = 32 << 20
    most_targets: int = 1  # in the destination, ordered; ORIGINAL_DST clusters take one
    heed_subset: bool = True  # the addresses that the gateway allows
    explain: bool = True  # headers that say how it was decided go to the client
    cost: Callable[[Usage], float] | None = None  # of an answer; told to the gateway
    conformance: bool = False  # a client's header may choose the endpoint
    counts: PickerCounts = field(default_factory=PickerCounts)
    tap: Tap = field(default_factory=lambda: Tap(()))  # of answers that have ended


class Pick(NamedTuple):
    """The picker's findings about a request."""

    journey: RequestLifecycle
    targets: Sequence[Target]  # best first
    usage: Callable[[], Usage | None] = lambda: None  # as the answer has told by then
    passed: Callable[[bytes], None] = lambda _: None  # a piece of a stream of events
    shape: Shape | None = None  # that is asked of the answer


class Ask(NamedTuple):
    """The question about a request that the picker answers. `body` is None if the request has none,
    or none is sent."""

    noted: Noted  # gets the journey's record and its model's counts, once they are known
    body: bytes | None
    subset: frozenset[str] | None  # addresses; None: all
    is_read: bool = True  # false: a conformance test's, whatever its body is


def is_allowed(endpoint: Endpoint, subset: frozenset[str]) -> bool:
    """Return whether an address, or its host for all ports, is in `subset`."""
    address = endpoint.address
    return address in subset or address.rpartition(":")[0] in subset
