"""What the doctor's rules say of the traffic of the gateway in this very process, for its page."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferway.doctor.facts import GatewayReport, TrafficReport
from inferway.doctor.rules import Level
from inferway.doctor.traffic_rules import judge_gateway
from inferway.model import Alarm
from inferway.telemetry.traffic_counts import TrafficCounts


def traffic_alarms(traffic: TrafficCounts) -> Iterator[Alarm]:
    """Yield what is not well in the traffic."""
    told = msgspec.convert(traffic.told(), TrafficReport)
    for found in judge_gateway(GatewayReport("", told)):
        if found.level is not Level.OK:
            yield Alarm(found.level, "traffic", found.evidence, found.cure)
