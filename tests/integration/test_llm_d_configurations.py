"""llm-d's guides and the router's own samples, unchanged: a gateway with each answers."""

from __future__ import annotations

import pytest
from tests.integration.conftest import StartFleet, simulated
from tests.scheduling.test_llm_d_samples import TAKEN, config

from inferway.config import EngineSettings
from inferway_sim.engine import SimulatedEngine

ROLES = ("decode", "prefill", "encode")
SERVED = [name for name in TAKEN if name.startswith(("guide-", "router-"))]
CHAT = {
    "model": "smollm2",
    "max_tokens": 2,
    "messages": [{"role": "user", "content": "hello " * 60}],
}


@pytest.mark.parametrize("name", SERVED)
async def test_a_gateway_with_it_answers(name: str, start_fleet: StartFleet) -> None:
    roles = iter(ROLES)

    def labelled(engine: SimulatedEngine) -> EngineSettings:
        return EngineSettings(url=engine.url, labels={"llm-d.ai/role": next(roles)})

    fleet = await start_fleet(
        [simulated()] * len(ROLES), by_hand=labelled, scheduling=dict(config(name))
    )

    answers = [await fleet.post("/v1/chat/completions", CHAT) for _ in range(2)]
    stream = b"".join(
        [
            chunk
            async for chunk in (
                await fleet.http.post(
                    f"{fleet.url}/v1/chat/completions", json={**CHAT, "stream": True}
                )
            ).content
        ]
    )

    assert [answer.status for answer in answers] == [200, 200]
    assert [len(answer.body["choices"]) for answer in answers] == [1, 1]
    assert stream.rstrip().endswith(b"data: [DONE]")
