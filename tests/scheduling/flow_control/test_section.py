"""The section `flowControl` -> what waits for what; what cannot hold is named."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from tests.scheduling.tables import candidates, request

from inferway.errors import ConfigError
from inferway.scheduling.admitters import UtilizationDetector
from inferway.scheduling.flow_control.flow import FlowControl
from inferway.scheduling.flow_control.policies import (
    EarliestDeadline,
    FirstCome,
    GlobalStrict,
    RoundRobin,
)
from inferway.scheduling.flow_control.usage_limits import SoftReflectiveCeiling, StaticLimit
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.scheduling import DEFAULT_ADMITTERS, Scheduling
from inferway_llmd.scheduling.concurrency import ConcurrencyDetector

GATE = ["flowControl"]
FULL = candidates(waiting=[9, 9], in_flight=[9, 9])


def loaded(section: dict[str, Any] | None = None, **fields: Any) -> Scheduling:
    given = {"featureGates": GATE, "plugins": [{"type": "queue-scorer"}], **fields}
    return load_scheduling(given if section is None else {**given, "flowControl": section})


def flow(section: dict[str, Any] | None = None, **fields: Any) -> FlowControl:
    found = loaded(section, **fields).flow_control
    assert found is not None
    return found


def test_the_gate_alone_has_llm_d_s_defaults() -> None:
    found = flow()

    assert found == FlowControl(UtilizationDetector(), StaticLimit())
    assert found.band(7).ordering == FirstCome()
    assert found.band(7).fairness == GlobalStrict()


@pytest.mark.parametrize(
    ("given", "requests", "seconds"),
    [
        ({"maxRequests": "1k", "defaultRequestTTL": "60s"}, 1000, 60.0),
        ({"maxRequests": 500, "defaultRequestTTL": "1m30s"}, 500, 90.0),
        ({"maxRequests": "1Ki", "defaultRequestTTL": "150ms"}, 1024, 0.15),
        ({"maxRequests": "0", "defaultRequestTTL": "0s"}, None, inf),
        ({}, None, None),
    ],
)
def test_quantities_and_durations_are_kubernetes_and_go_s(
    given: dict[str, Any], requests: int | None, seconds: float | None
) -> None:
    found = flow(given)

    assert (found.max_requests, found.seconds) == (requests, seconds)


def test_each_priority_has_its_band() -> None:
    found = flow(
        {
            "priorityBands": [
                {
                    "priority": 100,
                    "maxRequests": "500",
                    "fairnessPolicyRef": "round-robin-fairness-policy",
                },
                {"priority": -1, "defaultRequestTTL": "9000s"},
            ],
            "defaultPriorityBand": {"orderingPolicyRef": "edf-ordering-policy"},
            "defaultNegativePriorityBand": {"maxRequests": 5},
        }
    )

    assert found.band(100).fairness == RoundRobin()
    assert (found.band(100).max_requests, found.band(-1).seconds) == (500, 9000.0)
    assert found.band(3).ordering == EarliestDeadline()
    assert found.band(-7).max_requests == 5


def test_policies_are_found_by_name_or_by_type() -> None:
    plugins = [
        {"type": "concurrency-detector", "name": "mine", "parameters": {"maxConcurrency": 3}},
    ]
    found = flow(
        {
            "saturationDetector": {"pluginRef": "mine"},
            "usageLimitPolicyPluginRef": "soft-reflective-ceiling-policy",
        },
        plugins=plugins,
    )

    assert found.detector == ConcurrencyDetector(3)
    assert isinstance(found.limits, SoftReflectiveCeiling)


def test_the_older_place_of_the_detector_counts_too() -> None:
    assert flow(saturationDetector={"pluginRef": "concurrency-detector"}).detector == (
        ConcurrencyDetector(100)
    )


def test_a_detector_of_the_default_s_name_is_the_default() -> None:
    plugins = [{"type": "utilization-detector", "parameters": {"queueDepthThreshold": 2}}]

    assert flow(plugins=plugins).detector == UtilizationDetector(queue_depth_threshold=2)


def test_with_flow_control_sheddable_requests_wait_instead_of_being_refused() -> None:
    sheddable = request(priority=-1)

    assert loaded().admitters == []
    with pytest.raises(Exception, match="sheddable request dropped"):
        loaded().without_queue().admit(sheddable, FULL)
    loaded().admit(sheddable, FULL)


def test_without_the_gate_only_the_detector_counts_and_notes_say_so() -> None:
    section = {
        "saturationDetector": {"pluginRef": "concurrency-detector"},
        "defaultPriorityBand": {"fairnessPolicyRef": "no-such-policy"},
    }

    found = loaded(section, featureGates=["flowControl=false"])

    assert found.flow_control is None
    assert found.admitters == [ConcurrencyDetector(100)]
    assert any("featureGates do not name flowControl" in note for note in found.notes)
    assert loaded(featureGates=[]).admitters == DEFAULT_ADMITTERS


def test_what_is_not_in_force_is_said() -> None:
    section = {
        "maxBytes": "10Gi",
        "noEndpointRequestTTL": "5m",
        "priorityBands": [{"priority": 1, "maxBytes": "1G"}],
    }

    notes = "\n".join(loaded(section).notes)

    assert "not in force: maxBytes, priorityBands[0].maxBytes: limits.bodies_bytes" in notes
    assert "not in force: noEndpointRequestTTL" in notes


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"maxRequests": "1.5.5"}, "$.flowControl.maxRequests"),
        ({"defaultRequestTTL": "soon"}, "$.flowControl.defaultRequestTTL"),
        ({"priorityBand": []}, "unknown field `priorityBand`"),
        (
            {"priorityBands": [{"priority": 1}, {"priority": 1}]},
            "flowControl.priorityBands[1].priority: 1 is given twice",
        ),
        ({"enableEviction": True}, "flowControl.enableEviction: true: known in llm-d, not built"),
        (
            {"defaultPriorityBand": {"fairnessPolicyRef": "fcfs-ordering-policy"}},
            "flowControl.defaultPriorityBand.fairnessPolicyRef: 'fcfs-ordering-policy' is no "
            "fairness policy",
        ),
        (
            {"priorityBands": [{"orderingPolicyRef": "queue-scorer"}]},
            "flowControl.priorityBands[0].orderingPolicyRef: 'queue-scorer' is no ordering policy",
        ),
        (
            {"usageLimitPolicyPluginRef": "no-such"},
            "flowControl.usageLimitPolicyPluginRef: 'no-such' is not known",
        ),
        (
            {"saturationDetector": {"pluginRef": "queue-scorer"}},
            "flowControl.saturationDetector.pluginRef: 'queue-scorer' is no saturation detector",
        ),
    ],
)
def test_what_cannot_hold_is_named(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(section)

    assert str(caught.value).startswith("scheduling: ")
    assert says in str(caught.value)
