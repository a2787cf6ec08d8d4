"""llm-d's own configurations, unchanged: each is at work here, or is refused with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.scheduling.tables import candidates, request
from tests.stored import llmd_configurations

from inferway.errors import ConfigError
from inferway.scheduling.document import API_VERSIONS
from inferway.scheduling.load import load_scheduling

STORED = {row["name"]: row for row in llmd_configurations()}
MOCK = "'mock-metrics-source' is known in llm-d, not built here: is for llm-d's own tests"
OLDER = "lruCapacityPerServer to approx-prefix-cache-producer, as llm-d does today"
# Why each is refused.
REFUSED = {
    "guide-turn-priority-fairness": "of program-aware-fairness: invalid enum value 'turn-priority'",
    # of llm-d's own tests, whose plugins are in no release
    "router-configloader_1_test": "unknown field `metricsStalenessThreshold`",
    "router-datalayer-config": f"plugins[5].type: {MOCK}",
    "router-request-attribute-reporter-config": f"plugins[1].type: {MOCK}",
    # of the releases before llm-d-router's
    **dict.fromkeys(("scheduler-pd", "scheduler-sim", "scheduler-sim-pd"), OLDER),
    **dict.fromkeys(("scheduler-disaggregation", "scheduler-disaggregation-2"), OLDER),
}
TAKEN = sorted(STORED.keys() - REFUSED.keys())
# One for each role that the samples' filters ask for.
ROLES = ("decode", "prefill", "encode")
FLEET = candidates(
    labels=[*({"llm-d.ai/role": role, "role": role} for role in ROLES), {}],
    matched_blocks=[0, 3, 0, 1],
    weighted_matched_blocks=[0, 3, 0, 1],
    prompt_blocks=5,
)


def config(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = STORED[name]["config"]
    return found


@pytest.mark.parametrize("name", TAKEN)
def test_it_chooses_an_endpoint(name: str) -> None:
    scheduling = load_scheduling(config(name))
    ask = request(tokens=90)
    scheduling.admit(ask, FLEET)
    for producer in scheduling.producers:
        producer.produce(ask, FLEET)
    scheduling.admit_late(ask, FLEET)

    choice = scheduling.chooser.choose(ask, FLEET)

    assert choice.targets[0].endpoint in FLEET.endpoints


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scheduling(config(name))

    assert str(caught.value).startswith("scheduling: ")
    assert REFUSED[name] in str(caught.value)


def test_they_are_of_all_api_groups_and_versions() -> None:
    assert {row["config"]["apiVersion"] for row in STORED.values()} == {*API_VERSIONS}


@pytest.mark.parametrize(
    ("source", "taken", "all_of_them"), [("guide-", 19, 20), ("router-", 24, 27)]
)
def test_so_many_of_a_source_are_taken(source: str, taken: int, all_of_them: int) -> None:
    found = [name for name in STORED if name.startswith(source)]

    assert len(found) == all_of_them
    assert len([name for name in found if name in TAKEN]) == taken
