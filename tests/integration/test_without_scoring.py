"""A gateway that goes by load only."""

from __future__ import annotations

from tests.integration.conftest import LONG, StartFleet


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
