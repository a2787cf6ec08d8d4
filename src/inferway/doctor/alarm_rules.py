"""The alarms of a running gateway -> findings: what its page says, in the doctor's form."""

from __future__ import annotations

from collections.abc import Iterator

from inferway.doctor.facts import GatewayReport
from inferway.doctor.rules import CheckResult, Level
from inferway.fleet.outage import since_words

TRAFFIC = "traffic"  # the subject of alarms that `traffic_rules` finds by themselves
_LEVELS = {"fail": Level.FAIL, "warn": Level.WARN, "info": Level.OK}


def judge_alarms(found: GatewayReport, now: float) -> Iterator[CheckResult]:
    """Yield the gateway's alarms, or that it has none. `now`: Unix time."""
    if found.alarms is None:
        return
    alarms = [alarm for alarm in found.alarms if alarm.subject != TRAFFIC]
    for alarm in alarms:
        evidence = alarm.said(lambda since: since_words(since, now))
        cure = "; ".join(filter(None, [alarm.cure, alarm.see and f"see {alarm.see}"]))
        level = _LEVELS.get(alarm.level, Level.WARN)
        yield CheckResult(level, f"{found.url}: {alarm.subject}", evidence, cure)
    if not alarms:
        evidence = "its page has no alarm: all engines answer, and none is slow"
        yield CheckResult(Level.OK, f"gateway {found.url}", evidence)
