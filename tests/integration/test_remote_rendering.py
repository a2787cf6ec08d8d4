"""A model whose tokenizer the gateway cannot have: its engines render, and routing is as ever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import ModelSettings
from inferway_sim.config import SimulatorConfig

UNREADABLE = {"smollm2": ModelSettings(tokenizer="/nonexistent")}
RENDERS = simulated(enable_scale_out=True)
TOKENIZES = simulated()


async def start(start_fleet: StartFleet, engines: Sequence[SimulatorConfig]) -> Fleet:
    fleet = await start_fleet(engines, models=UNREADABLE, remote_render_ms=5000)

    async def rendered() -> bool:
        """What they can is found out by the probe, when they join."""
        ways = (await fleet.get("/ready")).body["models"]["smollm2"]["rendered_by"].values()
        return len(ways) == len(engines) and set(ways) <= {"render", "tokenize"}

    await until(rendered)
    return fleet


async def all_known(fleet: Fleet) -> None:
    async def same() -> bool:
        known = [fleet.gateway.index.num_blocks(holder) for holder in range(len(fleet.engines))]
        return known == [len(engine.cached_blocks()) for engine in fleet.engines]

    await until(same)


@pytest.mark.parametrize("engine", [RENDERS, TOKENIZES], ids=["render", "tokenize"])
async def test_a_growing_chat_stays_where_its_prefix_is(
    start_fleet: StartFleet, engine: SimulatorConfig
) -> None:
    fleet = await start(start_fleet, [engine] * 3)
    turns, engines = [LONG], set()
    for turn in range(4):
        answer = await fleet.chat(*turns)
        engines.add(answer.engine)
        assert answer.expected_tokens == answer.cached_tokens
        assert (answer.matched > 0) is (turn > 0)
        turns += [answer.body["choices"][0]["message"]["content"], "and then?"]
        await all_known(fleet)

    assert len(engines) == 1
    assert await fleet.metric("inferway_decisions_total", reason="remote") == 4


async def test_it_routes_as_with_a_tokenizer_of_its_own(start_fleet: StartFleet) -> None:
    fleet = await start(start_fleet, [RENDERS] * 2)
    answer = await fleet.chat(LONG, tools=[{"type": "function", "function": {"name": "f"}}])
    text = await fleet.post("/v1/completions", {"model": "smollm2", "prompt": LONG * 2})
    own = await start_fleet([RENDERS])
    same = await own.chat(LONG, tools=[{"type": "function", "function": {"name": "f"}}])

    assert answer.headers["x-inferway-prompt-blocks"] == same.headers["x-inferway-prompt-blocks"]
    assert int(text.headers["x-inferway-prompt-blocks"]) > 5


async def test_ready_says_that_engines_render_it(start_fleet: StartFleet) -> None:
    fleet = await start(start_fleet, [RENDERS])

    model = (await fleet.get("/ready")).body["models"]["smollm2"]

    assert model["reason"] == "no-tokenizer"
    assert model["why"].endswith("; rendered by engines")
    assert list(model["rendered_by"].values()) == ["render"]


async def test_the_probe_compares_what_engines_render_with_what_they_see(
    start_fleet: StartFleet,
) -> None:
    fleet = await start(start_fleet, [RENDERS] * 2)

    async def proved() -> bool:
        engines = (await fleet.get("/ready")).body["engines"]
        return all(e["probes"]["smollm2"]["state"] == "agrees" for e in engines)

    await until(proved)


async def test_with_no_budget_it_goes_by_load_only(start_fleet: StartFleet) -> None:
    fleet = await start_fleet([RENDERS], models=UNREADABLE, remote_render_ms=0)

    answer = await fleet.chat(LONG)

    assert answer.status == 200
    assert await fleet.metric("inferway_decisions_total", reason="no-tokenizer") == 1


async def test_a_request_that_the_engine_refuses_is_answered_by_the_engine(
    start_fleet: StartFleet,
) -> None:
    fleet = await start(start_fleet, [RENDERS])

    answer = await fleet.chat("x " * 9000)

    assert answer.status == 400
    assert "maximum context length is 8192" in answer.body["error"]["message"]
    assert await fleet.metric("inferway_remote_prompts_total", outcome="refused") == 1


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


async def test_a_chat_with_an_image_is_scored_by_what_comes_before_it(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(2)
    answer = await fleet.chat(LONG)
    await all_known(fleet)

    scores = await fleet.scores(LONG, "Yes.", [{"type": "text", "text": "And this?"}, IMAGE])

    text = (await fleet.scores(LONG))[answer.engine]
    assert scores.pop(answer.engine) in (text - 1, text)
    assert text > 5
    assert set(scores.values()) == {0}
