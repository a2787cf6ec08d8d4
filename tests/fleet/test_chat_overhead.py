"""The experiment of seed 000, scaled down: the same tokens as chat and as completion."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fleet.engine import BLOCK_SIZE, RealEngine

from inferway_bench.chat_overhead.run import Plan, run_chat_overhead
from inferway_bench.chats import default_data_dir


def test_a_chat_and_a_completion_with_its_tokens_are_the_same_to_real_engines(
    engines: Sequence[RealEngine],
) -> None:
    """The run compares prompt_token_ids before the load, and prompt tokens of every pair."""
    plan = Plan(
        rates=(0.5,),
        seconds=24,
        prompt_tokens=(200, 300),
        output_tokens=(1, 10),
        warm_up_rate=0.5,
        warm_up_seconds=8,
        engines=tuple(engine.url for engine in engines),
    )

    [measured] = run_chat_overhead(default_data_dir(), plan, print).stages

    assert measured.num_succeeded == measured.num_sent == 12
    assert measured.num_unlike == 0
    assert measured.cached_tokens is not None
    least, most = measured.matched_blocks
    assert least == most > 0
    assert measured.cached_tokens == (least * BLOCK_SIZE, most * BLOCK_SIZE)
