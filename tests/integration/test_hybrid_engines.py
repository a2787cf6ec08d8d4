"""What is believed of engines whose models have several KV cache groups is what they reuse."""

from __future__ import annotations

from functools import partial

import pytest
from tests.integration.conftest import LONG, Answer, StartFleet, simulated, until

from inferway_sim.kv_groups.spec import KvGroups, read_groups

MORE = "And that is not all that is to be said of it. "


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("full,window:64", 0),
        ("full,mamba:align", None),
        ("full,window:64,mamba:align", 0),
        ("full,mamba:all", 0),
    ],
)
async def test_what_is_believed_of_a_hybrid_engine_is_what_it_reuses(
    start_fleet: StartFleet, text: str, interval: int | None
) -> None:
    groups = KvGroups(
        read_groups(text, 16), retention_interval=interval, max_num_batched_tokens=128
    )
    fleet = await start_fleet([simulated(kv_groups=groups, max_model_len=4096)])
    answers: list[Answer] = []

    async def is_known(prompt: str) -> bool:
        answer = await fleet.chat(prompt)
        answers.append(answer)
        return 0 < answer.cached_tokens == answer.matched * 16

    for times in (0, 1, 4, 2, 4):
        prompt = LONG * 4 + MORE * times
        await until(partial(is_known, prompt))

    assert all(answer.matched * 16 <= answer.cached_tokens for answer in answers)
