"""A gateway that goes by load only."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.integration.conftest import LONG, Fleet, StartFleet

from inferway.cli.fleet_state import GatewayClient
from inferway.doctor.gateway import ask_gateway
from inferway.doctor.traffic_rules import judge_gateway


async def told(fleet: Fleet) -> tuple[bool, Any]:
    """Whether events are followed, and the first engine's stream."""
    body = (await fleet.get("/admin/engines")).body
    return body["kv_events"]["followed"], body["engines"][0]["endpoints"][0]["stream"]


async def test_its_tokenizer_is_loaded_when_somebody_asks_for_scores(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1, scoring=False)
    answer = await fleet.chat(LONG)
    before = await fleet.metric("inferway_encoder_info")
    scores = await fleet.scores(LONG)

    assert answer.status == 200
    assert before == 0
    assert await fleet.metric("inferway_encoder_info") == 1
    assert set(scores) == {answer.engine}


async def test_it_follows_no_events_until_somebody_asks_for_scores(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, scoring=False)
    await fleet.chat(LONG)
    before = await told(fleet)
    blocks = await fleet.metric("inferway_index_blocks")
    first, second = await asyncio.gather(fleet.scores(LONG), fleet.scores(LONG))

    assert before == (False, None)
    assert blocks == 0
    assert first == second
    assert min(first.values()) > 0  # a replay has brought what was stored before
    follows, stream = await told(fleet)
    assert (follows, stream["state"]) == (True, "exact")


async def test_it_says_that_it_follows_no_events_and_what_would_have_it(
    start_fleet: StartFleet,
) -> None:
    fleet = await start_fleet(1, scoring=False)
    found = await ask_gateway(fleet.url)
    assert found is not None
    said = [each.evidence for each in judge_gateway(found) if "KV events" in each.evidence]
    [engine] = (await asyncio.to_thread(GatewayClient(fleet.url).ask)).engines

    assert len(said) == 1
    assert "not followed" in said[0]
    assert "follow_events: always" in said[0]
    assert engine.cache == "-"


async def test_it_follows_events_from_the_start_if_it_is_told_to(start_fleet: StartFleet) -> None:
    fleet = await start_fleet(1, scoring=False, follow_events="always")
    found = await ask_gateway(fleet.url)
    assert found is not None

    follows, stream = await told(fleet)
    assert (follows, stream is not None) == (True, True)
    assert not [each for each in judge_gateway(found) if "KV events" in each.evidence]
