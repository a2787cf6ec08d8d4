"""A gateway that knows no engine says so, in errors, metrics and alarms."""

from __future__ import annotations

from tests.integration.conftest import StartFleet


async def test_requests_are_told_that_no_engine_is_known(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(0)

    answer = await fleet.post("/v1/completions", {"model": "m", "prompt": "Hi"})

    assert answer.status == 503
    assert answer.body["error"]["message"] == "model 'm': no engine is known"


async def test_what_alerts_ask_for_is_there(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(0)

    assert await fleet.metric("inferway_ready") == 0
    for state in ("ready", "unreachable", "silent", "stalled", "invalid", "ejected", "drained"):
        assert await fleet.metric("inferway_engines", state=state) == 0


async def test_its_alarm_says_what_to_do(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(0)

    [alarm] = (await fleet.get("/admin/alarms")).body["alarms"]

    assert (alarm["evidence"], alarm["is_total"]) == ("no engine is known", True)
    assert "inferway serve" in alarm["cure"]
