"""A gateway that knows no engine says so, in errors, metrics and alarms."""

from __future__ import annotations

from pathlib import Path

from tests.integration.conftest import StartFleet

from inferway.config import DiscoverySettings


async def test_requests_are_told_that_no_engine_is_known(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(0)

    answer = await fleet.post("/v1/completions", {"model": "m", "prompt": "Hi"})

    assert answer.status == 503
    assert answer.body["error"]["message"] == (
        "model 'm': no engine is known: none is given; give one, as inferway serve http://HOST:PORT"
    )


async def test_requests_are_told_where_engines_are_looked_for(
    start_fleet: StartFleet, tmp_path: Path
) -> None:
    listed = tmp_path / "engines.yaml"
    listed.write_text("engines: []\n")
    fleet = await start_fleet(0, discovery=DiscoverySettings(file=str(listed)))

    answer = await fleet.post("/v1/completions", {"model": "m", "prompt": "Hi"})

    message = answer.body["error"]["message"]
    assert f"none is in the file {listed} (discovery.file); start engines there" in message
    ready = await fleet.get("/ready")
    assert str(listed) in ready.body["why"]


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
