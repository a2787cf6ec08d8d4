"""The doctor says what the page's alarms say."""

from __future__ import annotations

from collections.abc import Sequence

from inferway.doctor.facts import GatewayReport
from inferway.doctor.rules import Level
from inferway.doctor.traffic_rules import judge_alarms
from inferway.model import Alarm

NOW = 1_795_957_062.0  # 2026-11-29 12:57:42 UTC


def report(alarms: Sequence[Alarm] | None) -> GatewayReport:
    return GatewayReport("http://g", alarms=alarms)


def test_an_engine_that_is_out_must_be_mended() -> None:
    alarm = Alarm(
        *("fail", "e", "does not answer", "restart it"),
        since=NOW - 12,
        detail="no answer for 4.1 s",
        effect="0 requests failed, 3 moved to other engines",
        see="https://there",
    )

    (found,) = judge_alarms(report([alarm]), NOW)

    assert (found.level, found.subject) == (Level.FAIL, "http://g: e")
    assert found.evidence == (
        "does not answer since 12:57:30 UTC (12 s): no answer for 4.1 s. 0 requests failed, 3"
        " moved to other engines"
    )
    assert found.cure == "restart it; see https://there"


def test_a_warning_is_one_and_a_note_is_fine() -> None:
    alarms = [Alarm("warn", "e", "is slow"), Alarm("info", "f", "is slow, as its label says")]

    assert [each.level for each in judge_alarms(report(alarms), NOW)] == [Level.WARN, Level.OK]


def test_no_alarm_is_said_to_be_none() -> None:
    (found,) = judge_alarms(report([]), NOW)

    assert found.level is Level.OK
    assert "no alarm" in found.evidence


def test_what_other_rules_find_in_the_traffic_is_not_said_twice() -> None:
    (found,) = judge_alarms(report([Alarm("warn", "traffic", "turns are broken")]), NOW)

    assert found.level is Level.OK


def test_a_gateway_that_tells_no_alarms_is_not_said_to_have_none() -> None:
    assert [*judge_alarms(report(None), NOW)] == []
