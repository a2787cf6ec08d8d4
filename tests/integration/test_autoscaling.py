"""Signals for autoscaling, and the engine that goes first: before simulated engines."""

from __future__ import annotations

from tests.integration.conftest import LONG, Fleet, StartFleet, simulated

from inferway.config import SloSettings

GOALS = SloSettings(ttft_seconds=30.0, itl_seconds=30.0)


async def worth(fleet: Fleet) -> dict[str, float]:
    engines = (await fleet.get("/admin/engines")).body["engines"]
    return {engine["name"]: engine["cache_worth_tokens"] for engine in engines}


async def asked_twice(fleet: Fleet, session: str) -> str:
    """Let an engine answer two turns of a conversation, and return its name."""
    first = await fleet.chat(f"{session}: {LONG}")
    second = await fleet.chat(f"{session}: {LONG}", "Yes.", "And now?")
    assert first.engine == second.engine
    return first.engine


async def test_good_and_late_answers_are_counted(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, slo=GOALS)
    strict = await start_fleet(1, slo=SloSettings(ttft_seconds=1e-9))
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 3, "stream": True}
    for each in (fleet, strict):
        async with each.http.post(f"{each.url}/v1/completions", json=body) as answer:
            await answer.read()

    name = "inferway_slo_requests_total"
    assert await fleet.metric(name, model="smollm2", good="true") == 1
    assert await strict.metric(name, model="smollm2", good="false") == 1


async def test_the_engine_whose_cache_is_worth_least_is_drained(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    name = await asked_twice(fleet, "one")
    found = await worth(fleet)
    assert found[name] > 16
    [other] = [engine for engine in found if engine != name]

    answer = await fleet.post("/admin/drain?seconds=0", b"")

    assert answer.status == 200
    assert (answer.body["name"], answer.body["drained"]) == (other, True)
    assert await fleet.metric("inferway_engine_cache_worth_tokens", engine=name) > 16


async def test_the_last_engine_stays(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(2)
    await fleet.post("/admin/drain", b"")

    answer = await fleet.post("/admin/drain", b"")

    assert answer.status == 409
    assert (await fleet.chat("Hello")).status == 200


async def test_a_model_is_asked_for_where_there_are_several(start_fleet: StartFleet) -> None:
    other = simulated(served_model_names=("other",))
    fleet = await start_fleet([simulated(), simulated(), other])

    unnamed = await fleet.post("/admin/drain", b"")
    unknown = await fleet.post("/admin/drain?model=nobodys", b"")
    last = await fleet.post("/admin/drain?model=other", b"")
    done = await fleet.post("/admin/drain?model=smollm2", b"")

    assert [each.status for each in (unnamed, unknown, last, done)] == [400, 404, 409, 200]
    assert "other, smollm2" in unnamed.body["error"]["message"]
    assert done.body["models"][0] == "smollm2"


async def test_engines_that_are_wanted_are_shown_once_enough_is_known(
    start_fleet: StartFleet,
) -> None:
    """The clock of what was asked is the gateway's; two minutes of it are made here."""
    fleet = await start_fleet(2, scheduling=None, slo=GOALS)
    await fleet.chat("Hello")
    [plugin] = fleet.gateway.learning_plugins
    demand = plugin.learning.demand
    assert demand is not None
    now = fleet.gateway.director.clock()
    for second in range(120):
        demand.sent(0, now + second, work=500.0, alone_ms=500.0)
    fleet.gateway.autoscaling.clock = lambda: now + 120

    assert await fleet.metric("inferway_engines_wanted", model="smollm2") > 0.4
    assert await fleet.metric("inferway_engines_busy", model="smollm2") > 0
    assert await fleet.metric("inferway_engines_busy_at_slo", model="smollm2") > 0
    assert await fleet.metric("inferway_engines_wanted_for", limit="ttft") > 0.4


async def test_without_goals_nothing_is_said_of_engines(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, scheduling=None)
    await fleet.chat("Hello")

    assert fleet.gateway.learning_plugins[0].learning.demand is None
    assert await fleet.metric("inferway_engines_wanted", model="smollm2") == 0
