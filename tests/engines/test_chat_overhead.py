"""The experiment of seed 000, scaled down: the same tokens as chat and as completion."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.engines.engine import BLOCK_SIZE, RealEngine

from inferway_bench.chat_overhead import CHAT_OVERHEAD, ChatOverheadPlan


def test_a_chat_and_a_completion_with_its_tokens_are_the_same_to_real_engines(
    engines: Sequence[RealEngine],
) -> None:
    """The run compares prompt_token_ids before the load, and prompt tokens of every pair."""
    plan = ChatOverheadPlan(
        rates=(0.5,),
        seconds=24,
        prompt_tokens=(200, 300),
        output_tokens=(1, 10),
        warm_up_rate=0.5,
        warm_up_seconds=8,
        engines=tuple(engine.url for engine in engines),
    )

    run = CHAT_OVERHEAD.run(plan, lambda *_: None)

    assert "12 requests, 100.00% of them answered" in run.about[0]
    assert "left out because these differed: 0." in run.about[1]
    counted = r"Cached by the engines: (\d+) tokens. Matched by the gateway: (\d+) blocks"
    found = re.search(counted, run.about[1])
    assert found is not None
    tokens, blocks = map(int, found.groups())
    assert tokens == blocks * BLOCK_SIZE > 0
