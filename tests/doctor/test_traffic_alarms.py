"""The doctor's rules for the traffic of the gateway in this process."""

from __future__ import annotations

from inferway.doctor.traffic_rules import traffic_alarms
from inferway.telemetry.traffic_counts import TrafficCounts


def test_traffic_that_is_well_is_no_alarm() -> None:
    assert [*traffic_alarms(TrafficCounts(by_prompt=10))] == []


def test_requests_that_go_by_load_are_an_alarm_with_its_cure() -> None:
    traffic = TrafficCounts()
    traffic.by_load["/v1/chat/completions", "curl", "no-template"] = 12

    (alarm,) = traffic_alarms(traffic)

    assert (alarm.level, alarm.subject) == ("warn", "traffic")
    assert "12 requests of curl" in alarm.evidence
    assert "--chat-template" in alarm.cure
