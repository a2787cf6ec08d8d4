"""What the page shows of engines, and as alarms."""

from __future__ import annotations

from typing import Any

from inferway.page.rows import EngineRow, fleet_alarms, request_row
from inferway.records.record import Miss, RequestRecord


def row(name: str = "e", **fields: Any) -> EngineRow:
    plain: dict[str, Any] = {
        **{"url": "http://e", "up": True, "drained": False, "breaker": "closed", "role": None},
        **{"models": ["m"], "version": None, "in_flight": 0, "running": 0, "waiting": 0, "kv": 0.0},
        **{"block_size": 16, "tiers": [0], "evicted": 0, "trust": "exact", "events_at": None},
        **{"events": 0, "gaps": 0, "hand_over": None, "problems": []},
    }
    return EngineRow(name=name, **{**plain, **fields})


def test_a_fleet_that_is_well_has_no_alarm() -> None:
    assert [*fleet_alarms([row(), row(drained=True)])] == []


def test_a_fleet_without_engines_says_what_to_do() -> None:
    (alarm,) = fleet_alarms([])

    assert (alarm.level, alarm.evidence) == ("fail", "no engine is known")
    assert "inferway serve" in alarm.cure


def test_an_engine_that_is_away_comes_before_one_with_a_problem() -> None:
    rows = [row("b", problems=["odd"]), row("a", up=False, problems=["it does not answer"])]

    assert [(a.level, a.subject) for a in fleet_alarms(rows)] == [("fail", "a"), ("warn", "b")]


def test_one_that_is_drained_and_away_is_no_alarm() -> None:
    rows = [row(up=False, drained=True, problems=["it does not answer"])]

    assert [*fleet_alarms(rows)] == []


def test_one_that_is_ejected_is_said_so() -> None:
    (alarm,) = fleet_alarms([row(breaker="open")])

    assert "failed too often" in alarm.evidence
    assert alarm.cure


def test_a_thousand_engines_that_are_away_are_a_list_that_ends() -> None:
    alarms = [*fleet_alarms([row(str(i), up=False, problems=["away"]) for i in range(1000)])]

    assert len(alarms) == 41
    assert "960 more engines" in alarms[-1].evidence


def test_a_line_of_a_request_is_its_record_without_candidates() -> None:
    miss = Miss("evicted", 2, "at event 7")
    record = RequestRecord(id="r", at=1.0, chosen="e", missed=(miss,), ttft_ms=5.0)

    line = request_row(7, record)

    assert (line.seq, line.id, line.chosen, line.missed, line.ttft_ms) == (7, "r", "e", (miss,), 5)
    assert not hasattr(line, "candidates")
