"""A pooling model that keeps prompts: what the gateway matches of embeddings is what the engine
reuses of them, as its counters tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.conftest import Say
from tests.engines.engine import RealEngine
from tests.engines.pooling import Pooling, serving_pooling

TEXT = "The keeper of the tower counted every boat that passed by in winter. " * 12
CHAT = [{"role": "system", "content": TEXT}, {"role": "user", "content": "And then?"}]


@pytest.fixture(scope="module")
def pooling(
    vllm: Path, small_model: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[Pooling]:
    engine = RealEngine(vllm, small_model, new_log("engine-pooling"), ("--runner", "pooling"))
    with serving_pooling(engine, new_log, say) as served:
        yield served


@pytest.mark.parametrize(
    "fields",
    [
        {"input": TEXT},
        {"input": [TEXT + "A.", TEXT + "B."]},
        {"input": TEXT, "add_special_tokens": False},
        {"input": TEXT, "truncate_prompt_tokens": 100, "truncation_side": "left"},
        {"input": TEXT, "truncate_prompt_tokens": -1},
        {"input": [*range(100, 300)]},
        {"messages": CHAT},
        {"messages": CHAT, "add_generation_prompt": True},
        {"input": CHAT},
        {"messages": [CHAT, CHAT[:1]]},
        {"input": TEXT, "cache_salt": "s"},
    ],
)
def test_what_is_matched_is_what_the_engine_reuses(
    fields: dict[str, Any], pooling: Pooling
) -> None:
    pooling.wait_until_matched("/v1/embeddings", fields)
