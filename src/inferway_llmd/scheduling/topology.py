"""Prefer where a prompt is computed near to where its answer is going to be: the KV cache travels
between the two.

Labels of endpoints say where they are: host, rack, zone, region. Two are at the tightest level of
which both have the same value. The *peer* is the endpoint that disagg-profile-handler has chosen
first: the one that decodes, or with prefill-first the one that prefills. Without a peer nothing is
preferred (llm-d-router ebab687, util/topology).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inferway.errors import ConfigError
from inferway.model import Candidates, Column, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.columns import PEER
from inferway.scheduling.per_endpoint import PerEndpoint
from inferway.scheduling.registry import Building, Parameters, PluginType

EXTRACTOR = "topology-extractor"
FILTER_TYPE = "topology-affinity-filter"
SCORER_TYPE = "topology-affinity-scorer"

LEVELS = ("host", "rack", "zone", "region")  # the tightest first; the next number: nothing alike
# By level, in proportion to what KV transfers have of bandwidth there.
SCORES = np.array([1.0, 0.2, 0.05, 0.02, 0.0])


class Topology(Parameters, frozen=True):
    """topology-extractor: the labels that say where an endpoint is."""

    hostname: str = "kubernetes.io/hostname"
    rack: str = "topology.kubernetes.io/rack"
    zone: str = "topology.kubernetes.io/zone"
    region: str = "topology.kubernetes.io/region"

    def place(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return its values, by level; "" where it has no such label."""
        labels = (self.hostname, self.rack, self.zone, self.region)
        return tuple([endpoint.labels.get(label, "") for label in labels])

    def places(self, endpoints: Sequence[Endpoint]) -> Sequence[tuple[str, ...]]:
        return [self.place(endpoint) for endpoint in endpoints]


@dataclass(frozen=True, slots=True)
class Nearness:
    """The nearness of each endpoint to the peer."""

    topology: Topology = field(default_factory=Topology)
    _places: PerEndpoint[Sequence[tuple[str, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", PerEndpoint(self.topology.places))

    def levels(self, candidates: Candidates) -> NDArray[np.intp] | None:
        """Return the number of each row's level; None if there is no peer whose place is known."""
        peers = candidates.get(PEER)
        if peers is None:
            return None
        peer = self.topology.place(peers[0])
        if not any(peer):
            return None
        return np.array([_level(peer, place) for place in self._places(candidates.endpoints)])


def _level(peer: tuple[str, ...], place: tuple[str, ...]) -> int:
    for level, (a, b) in enumerate(zip(peer, place, strict=True)):
        if a and a == b:
            return level
    return len(LEVELS)


class TopologyFilterParameters(Parameters, frozen=True):
    min_affinity: Literal["host", "rack", "zone", "region"] = "host"
    topology_producer_name: str = ""


class TopologyScorerParameters(Parameters, frozen=True):
    topology_producer_name: str = ""


@dataclass(frozen=True, slots=True)
class TopologyFilter:
    """Keeps the endpoints that are as near to the peer as `most`, or nearer; all if there is none,
    or no peer."""

    nearness: Nearness
    most: int = 0

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        levels = self.nearness.levels(candidates)
        if levels is None:
            return np.ones(len(candidates.endpoints), np.bool_)
        kept: NDArray[np.bool_] = levels <= self.most
        return kept if kept.any() else ~kept


@dataclass(frozen=True, slots=True)
class TopologyScorer:
    """Rates how near an endpoint is to the peer (SCORES); 0 for all without one."""

    nearness: Nearness

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        levels = self.nearness.levels(candidates)
        return np.zeros(len(candidates.endpoints)) if levels is None else SCORES[levels]


def _nearness(producer: str, building: Building) -> Nearness:
    name = producer or building.sole_plugin_of(EXTRACTOR)
    topology = building.plugins.get(name)
    if isinstance(topology, Topology):
        return Nearness(topology)
    if producer:
        raise ConfigError(
            f"topologyProducerName: {producer!r} is no plugin that knows where endpoints are; "
            f"expected one of type {EXTRACTOR}"
        )
    return Nearness()


def _needs(parameters: TopologyFilterParameters | TopologyScorerParameters) -> Sequence[str]:
    return (parameters.topology_producer_name or EXTRACTOR,)


TYPES = (
    PluginType(
        FILTER_TYPE,
        "keeps the endpoints that are as near as minAffinity says, or nearer, to the endpoint of "
        "the request's other stage (disagg-profile-handler); all if there is none",
        lambda parameters, building: TopologyFilter(
            _nearness(parameters.topology_producer_name, building),
            LEVELS.index(parameters.min_affinity),
        ),
        TopologyFilterParameters,
        needs=_needs,
    ),
    PluginType(
        SCORER_TYPE,
        "scores 1, 0.2, 0.05 or 0.02 for an endpoint on the same host, rack, zone or region as "
        "that of the request's other stage, else 0",
        lambda parameters, building: TopologyScorer(
            _nearness(parameters.topology_producer_name, building)
        ),
        TopologyScorerParameters,
        needs=_needs,
    ),
    PluginType(
        EXTRACTOR,
        "knows where an endpoint is, by its labels",
        parameters=Topology,
    ),
)
