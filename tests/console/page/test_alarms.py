"""What should not be so in the fleet, as the page, the status and the doctor say it."""

from __future__ import annotations

from typing import Any

from inferway.fleet.outage import since_words
from inferway.model import Alarm
from inferway.telemetry.alarms import fleet_alarms, named
from inferway.telemetry.engine_rows import EngineRow, OutageRow
from inferway.telemetry.engine_speeds import Late, Slow

NOW = 1_795_957_062.0  # 2026-11-29 12:57:42 UTC


def row(name: str = "e", **fields: Any) -> EngineRow:
    plain: dict[str, Any] = {
        **{"url": f"http://{name}", "up": True, "state": "ready", "since": None, "outage": None},
        **{"moved": 0, "lost": 0, "drained": False, "breaker": "closed", "role": None},
        **{"models": ["m"], "version": None, "in_flight": 0, "running": 0, "waiting": 0, "kv": 0.0},
        **{"block_size": 16, "tiers": [0], "evicted": 0, "trust": "exact", "events_at": None},
        **{"events": 0, "gaps": 0, "hand_over": None, "problems": [], "late": None, "slow": None},
        **{"speed": None},
    }
    return EngineRow(name=name, **{**plain, **fields})


def out(name: str, kind: str = "silent", seconds: float = 12.0, **fields: Any) -> EngineRow:
    outage = OutageRow(kind, None, fields.pop("error", "no answer for 4.1 s"))
    return row(name, up=False, state=kind, since=NOW - seconds, outage=outage, **fields)


def said(alarm: Alarm) -> str:
    words = alarm.said(lambda since: since_words(since, NOW))
    return f"{alarm.subject} {words}"


def test_a_fleet_that_is_well_has_no_alarm() -> None:
    assert [*fleet_alarms([row(), row(drained=True, state="drained")])] == []


def test_a_fleet_without_engines_says_what_to_do() -> None:
    (alarm,) = fleet_alarms([])

    assert (alarm.level, alarm.evidence, alarm.is_total) == ("fail", "no engine is known", True)
    assert "inferway serve" in alarm.cure


def test_an_engine_that_is_out_is_said_with_since_when_the_error_the_effect_and_two_steps() -> None:
    (alarm,) = fleet_alarms([row("b"), out("a", moved=3)])

    assert said(alarm) == (
        "a does not answer since 12:57:30 UTC (12 s): no answer for 4.1 s. 0 requests failed, 3"
        " moved to other engines"
    )
    assert "(1) try from this machine: curl -m 5 http://a/health" in alarm.cure
    assert "(2) " in alarm.cure
    assert alarm.see.endswith("docs/alerts.md#inferwayenginesilent")


def test_an_outage_of_yesterday_is_said_with_its_day() -> None:
    (alarm,) = fleet_alarms([row("b"), out("a", seconds=86_400 + 3600)])

    assert "since 2026-11-28 11:57:42 UTC (1 d 1 h)" in said(alarm)


def test_each_kind_of_outage_has_its_words_and_steps() -> None:
    found = {}
    for kind in ("unreachable", "silent", "stalled", "invalid"):
        (alarm,) = fleet_alarms([row("b"), out("a", kind)])
        found[kind] = (alarm.evidence, alarm.cure)

    assert len({*found.values()}) == 4
    assert found["stalled"][0] == "answers, but computes nothing"
    assert "nvidia-smi" in found["stalled"][1]


def test_an_engine_that_is_away_comes_before_one_with_a_problem() -> None:
    rows = [row("b", problems=["odd"]), out("a")]

    assert [(a.level, a.subject) for a in fleet_alarms(rows)] == [("fail", "a"), ("warn", "b")]


def test_one_that_is_drained_and_away_is_no_alarm() -> None:
    rows = [row("b"), row(up=False, drained=True, state="drained", problems=["odd"])]

    assert [*fleet_alarms(rows)] == []


def test_a_total_outage_comes_first_and_began_with_the_last_engine() -> None:
    rows = [out("a", seconds=60), out("b", "unreachable", seconds=12)]

    total, *others = fleet_alarms(rows)

    assert said(total) == (
        "fleet no engine answers since 12:57:30 UTC (12 s). Every request gets 503"
    )
    assert total.is_total
    assert [alarm.subject for alarm in others] == ["a", "b"]


def test_forty_engines_that_are_out_are_one_alarm() -> None:
    rows = [row("b"), *(out(f"10.0.0.1:22{n}", moved=1) for n in range(501, 541))]

    (alarm,) = fleet_alarms(rows)

    assert alarm.subject == "40 engines (10.0.0.1:22501 to 10.0.0.1:22540)"
    assert alarm.evidence == "do not answer"
    assert alarm.effect == "0 requests failed, 40 moved to other engines"


def test_engines_are_named_by_a_range_only_if_none_is_missing() -> None:
    assert named(["a1", "a2", "a3"]) == "a1, a2, a3"
    assert named(["a08", "a09", "a10", "a11"]) == "4 engines (a08 to a11)"
    assert named(["a1", "a2", "a3", "a5"]) == "4 engines (a1, a2, a3 and 1 more)"
    assert named(["alpha", "bravo", "charlie", "delta", "e"]) == (
        "5 engines (alpha, bravo, charlie and 2 more)"
    )


def test_engines_with_the_same_fault_are_one_alarm() -> None:
    (alarm,) = fleet_alarms(
        [row(f"e{n}", problems=["it publishes no KV events"]) for n in range(9)]
    )

    assert (alarm.level, alarm.subject) == ("warn", "9 engines (e0 to e8)")


def test_a_thousand_troubles_are_a_list_that_ends() -> None:
    rows = [row(), *(row(f"e{n}", problems=[f"odd {n}"]) for n in range(1000))]

    alarms = [*fleet_alarms(rows)]

    assert len(alarms) == 41
    assert "960 more alarms" in alarms[-1].evidence


def test_one_that_is_ejected_is_said_so() -> None:
    (alarm,) = fleet_alarms([row(breaker="open", state="ejected", since=NOW - 5)])

    assert said(alarm) == (
        "e failed too often and gets no requests for now since 12:57:37 UTC (5 s)"
    )
    assert alarm.cure


def test_one_that_keeps_requests_waiting_is_said_before_it_is_taken_for_lost() -> None:
    (alarm,) = fleet_alarms([row(late=Late(4, NOW - 22, 0.06))])

    assert said(alarm) == (
        "e 4 requests wait for the first token since 12:57:20 UTC (22 s): 0.06 s expected"
    )


def test_one_that_is_slow_is_said_to_be() -> None:
    (alarm,) = fleet_alarms([row(slow=Slow(7.6, 2.3, 0.3, "prompt token", False))])

    assert alarm.level == "warn"
    assert said(alarm) == "e is 8 times slower than its fellows: 2.3 ms a prompt token beside 0.3"


def test_other_hardware_is_a_note() -> None:
    (alarm,) = fleet_alarms([row(slow=Slow(7.6, 2.3, 0.3, "prompt token", True))])

    assert alarm.level == "info"


def test_alarms_travel_as_json() -> None:
    import msgspec

    alarms = [*fleet_alarms([row("b"), out("a")])]

    assert msgspec.json.decode(msgspec.json.encode(alarms), type=list[Alarm]) == alarms
