"""Admission while engines are nearly full, as llm-d's flow control has it.

A request may have its turn while the saturation of its model's endpoints is below the ceiling of
its priority (scheduling/flow_control). Endpoints that prefill and those that decode, by their
label llm-d.ai/role, are two stages: the fuller one counts. A request that has had its turn and is
not on its way yet counts as one more where it will end up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from inferway.errors import NoEndpointError
from inferway.model import DECODE_ROLES, PREFILL_ROLES, ROLE, Candidates, Endpoint
from inferway.routing.limits.queue import Waiter
from inferway.scheduling.flow_control.flow import FlowControl
from inferway.scheduling.flow_control.policies import Arrival, ChoosesFlow
from inferway.scheduling.per_endpoint import PerEndpoint

_NO_ROLE = ""  # without the label; such endpoints decode

Stage = NDArray[np.bool_]

# model -> its endpoints that get requests now, and how many requests all of its endpoints have;
# raises NoEndpointError
EndpointsOf = Callable[[str], tuple[Candidates, float]]


@dataclass(slots=True)
class SaturationGate:
    """See the module. Its memory is bounded by the models and priorities there are."""

    flow: FlowControl
    endpoints_of: EndpointsOf
    # requests that have had their turn, by model; those models stay that had any
    in_flight: dict[str, int] = field(default_factory=dict)
    priorities: list[int] = field(default_factory=list)  # that there are, the highest first
    _stages: PerEndpoint[Sequence[Stage]] = field(default_factory=lambda: PerEndpoint(_stages))

    def __post_init__(self) -> None:
        self.priorities = sorted(self.flow.bands, reverse=True)

    def note(self, priority: int) -> None:
        """There are requests of this priority."""
        if priority not in self.priorities:
            self.priorities = sorted([*self.priorities, priority], reverse=True)

    def order(self, waiter: Waiter, ttft_seconds: float | None) -> None:
        """Put the waiter where its band has it."""
        band = self.flow.band(waiter.priority)
        waiter.tenant = band.fairness.flow(waiter.tenant)
        waiter.rank = band.ordering.rank(Arrival(waiter.came, waiter.deadline, ttft_seconds))

    def floor(self, lane: str) -> float:
        """Return the lowest priority whose requests for that model may go on; infinite: none."""
        saturation = self.saturation(lane)
        if saturation is None:
            return -inf
        floor = inf
        ceilings = self.flow.limits.ceilings(saturation, self.priorities)
        for priority, ceiling in zip(self.priorities, ceilings, strict=True):
            if saturation >= ceiling:
                return floor
            floor = priority
        return -inf

    def chooser(self, priority: int) -> ChoosesFlow | None:
        """Return the policy that chooses among tenants of that priority; None: they take turns."""
        fairness = self.flow.band(priority).fairness
        return fairness if isinstance(fairness, ChoosesFlow) else None

    def enters(self, lane: str) -> None:
        """Count in a request for that model that has its turn."""
        self.in_flight[lane] = self.in_flight.get(lane, 0) + 1

    def leaves(self, lane: str) -> None:
        """Count out a request that had its turn and has ended."""
        self.in_flight[lane] -= 1

    def saturations(self) -> dict[str, float]:
        """Return how full the endpoints are of each model that has been asked for."""
        found = {lane: self.saturation(lane) for lane in self.in_flight}
        return {lane: each for lane, each in found.items() if each is not None}

    def saturation(self, lane: str) -> float | None:
        """Return how full the model's endpoints are: 0 to 1, or more. None: there is none, and
        whoever asks for it is to be told so."""
        try:
            candidates, booked = self.endpoints_of(lane)
        except NoEndpointError:
            return None
        detector = self.flow.detector
        loads = detector.loads(candidates)
        prefill, decode = self._stages(candidates.endpoints)
        if not decode.any():
            decode = np.ones(len(loads), np.bool_)
        coming = max(self.in_flight.get(lane, 0) - booked, 0.0)
        more = coming * detector.per_request / int(np.count_nonzero(decode))
        saturation = float(loads[decode].mean()) + more
        return max(saturation, float(loads[prefill].mean())) if prefill.any() else saturation


def _stages(endpoints: Sequence[Endpoint]) -> Sequence[Stage]:
    """Return the endpoints that prefill, and those that decode."""
    return [_mask(endpoints, roles) for roles in (PREFILL_ROLES, DECODE_ROLES | {_NO_ROLE})]


def _mask(endpoints: Sequence[Endpoint], roles: frozenset[str]) -> Stage:
    return np.array([_role(endpoint.labels) in roles for endpoint in endpoints], np.bool_)


def _role(labels: Mapping[str, str]) -> str:
    return labels.get(ROLE, _NO_ROLE)
