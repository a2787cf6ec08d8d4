"""What the doctor's rules say of the traffic of the gateway in this very process, for its page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferway.doctor.facts import GatewayReport, TrafficReport
from inferway.doctor.rules import Level
from inferway.doctor.traffic_rules import judge_gateway
from inferway.page.rows import Alarm
from inferway.telemetry.traffic_counts import TrafficCounts


def alarms_of(traffic: TrafficCounts) -> Sequence[Alarm]:
    """Return what is not well."""
    report = GatewayReport("", msgspec.convert(traffic.told(), TrafficReport))
    return [
        Alarm(found.level, "traffic", found.evidence, found.cure)
        for found in judge_gateway(report)
        if found.level is not Level.OK
    ]
