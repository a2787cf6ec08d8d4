"""llm-d's own tables (llm-d-router ebab687, util/topology, filter and scorer/topologyaffinity)."""

from __future__ import annotations

import numpy as np
import pytest
from tests.scheduling.tables import candidates, request

from inferway.model import Candidates, Endpoint
from inferway.scheduling.columns import PEER
from inferway.scheduling.load import load_scheduling
from inferway_llmd.scheduling.topology import (
    LEVELS,
    Nearness,
    Topology,
    TopologyFilter,
    TopologyScorer,
)

KEYS = (
    "kubernetes.io/hostname",
    "topology.kubernetes.io/rack",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)


def labels(place: str) -> dict[str, str]:
    """`h1 r1 z1 g1`: host, rack, zone, region; `-` for none."""
    words = place.split()
    return {key: word for key, word in zip(KEYS, words, strict=True) if word != "-"}


def table(peer: str | None, *places: str) -> Candidates:
    made = candidates(labels=[labels(place) for place in places])
    if peer is not None:
        named = np.empty(len(places), np.object_)
        named[:] = Endpoint("peer", "http://10.0.0.99:8000", 99, labels=labels(peer))
        made.add(PEER, named)
    return made


FULL = "h1 r1 z1 g1"
NONE = len(LEVELS)
PLACES = [
    (FULL, 0),
    ("h2 r1 z1 g1", 1),
    ("h2 r2 z1 g1", 2),
    ("h2 r2 z2 g1", 3),
    ("h2 r2 z2 g2", NONE),
    ("- r1 z1 g1", 1),
    ("- r1 - -", 1),
    ("- - z1 -", 2),
    ("- - - -", NONE),
]


def test_two_are_as_near_as_the_tightest_level_that_they_share() -> None:
    levels = Nearness().levels(table(FULL, *[place for place, _ in PLACES]))

    assert levels is not None
    assert levels.tolist() == [level for _, level in PLACES]


@pytest.mark.parametrize("peer", [None, "- - - -"])
def test_without_a_peer_nothing_is_preferred(peer: str | None) -> None:
    made = table(peer, FULL, "h2 r2 z2 g2")

    assert TopologyFilter(Nearness()).keep(request(), made).tolist() == [True, True]
    assert TopologyScorer(Nearness()).score(request(), made).tolist() == [0.0, 0.0]


def test_scores_go_by_the_level() -> None:
    made = table(FULL, *[place for place, _ in PLACES])

    assert TopologyScorer(Nearness()).score(request(), made).tolist() == [
        *(1.0, 0.2, 0.05, 0.02, 0.0, 0.2, 0.2, 0.05, 0.0)
    ]


@pytest.mark.parametrize(
    ("least", "places", "kept"),
    [
        ("host", [FULL, "h2 r1 z1 g1", "h3 r3 z3 g3"], [0]),
        ("rack", [FULL, "h2 r1 z1 g1", "h3 r3 z3 g3"], [0, 1]),
        ("rack", ["- r1 - -"], [0]),
        ("host", ["- r1 - -"], [0]),  # none is so near: all are kept
        ("host", ["h2 - - -"], [0]),
        ("host", [FULL, "- - - -"], [0]),
    ],
)
def test_the_filter_keeps_those_that_are_near_enough(
    least: str, places: list[str], kept: list[int]
) -> None:
    made = TopologyFilter(Nearness(), LEVELS.index(least))

    assert made.keep(request(), table(FULL, *places)).nonzero()[0].tolist() == kept


def test_labels_may_have_other_names() -> None:
    made = candidates(labels=[{"host": "a"}, {"host": "b"}])
    named = np.empty(2, np.object_)
    named[:] = made.endpoints[1]
    made.add(PEER, named)

    levels = Nearness(Topology(hostname="host")).levels(made)

    assert levels is not None
    assert levels.tolist() == [NONE, 0]


@pytest.mark.parametrize("order", ["decode-first", "prefill-first"])
def test_prefill_and_decode_are_near_each_other(order: str) -> None:
    near = [{"pluginRef": "topology-affinity-scorer", "weight": 1}]
    first, second = ("decode", "prefill")[:: 1 if order == "decode-first" else -1]
    parameters = {"stageOrder": order}
    if order == "decode-first":
        parameters["deciders"] = {"prefill": "always-disagg-pd-decider"}  # type: ignore[assignment]
    scheduling = load_scheduling(
        {
            "plugins": [
                {"type": "prefill-filter"},
                {"type": "decode-filter"},
                {"type": "topology-affinity-scorer"},
                {"type": "queue-scorer"},
                {"type": "always-disagg-pd-decider"},
                {"type": "disagg-profile-handler", "parameters": parameters},
            ],
            "schedulingProfiles": [
                {
                    "name": first,
                    "plugins": [{"pluginRef": f"{first}-filter"}, {"pluginRef": "queue-scorer"}],
                },
                {"name": second, "plugins": [{"pluginRef": f"{second}-filter"}, *near]},
            ],
        }
    )
    roles = [{"llm-d.ai/role": first}] * 2 + [{"llm-d.ai/role": second}] * 2
    hosts = ("a", "b", "a", "b")
    made = candidates(
        labels=[
            {**role, "kubernetes.io/hostname": host}
            for role, host in zip(roles, hosts, strict=True)
        ],
        waiting=[3, 0, 0, 0],
    )

    choice = scheduling.chooser.choose(request(), made)

    others = [target.endpoint.engine for target in choice.others.values()]
    assert {choice.targets[0].endpoint.engine, *others} == {"e1", "e3"}
