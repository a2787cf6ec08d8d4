"""Engines of models whose layers need different parts of the KV cache: what the gateway believed
of each prompt is what the engine took from its cache, to the token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.engines.conftest import FULL, Say, serve
from tests.engines.drawn_prompts import reused, wrong
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.hybrid_models import QWEN3_NEXT, write_model

NUM_PROMPTS = 500 if FULL else 40

FLAGS = ["--load-format", "dummy", "--enable-prefix-caching", "--num-gpu-blocks-override", "400"]
# The CPU's kernel of the gated delta net takes nothing else.
STATES = ["--dtype", "bfloat16"]


@pytest.fixture(scope="module")
def qwen3_next(whole_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(QWEN3_NEXT, whole_model, tmp_path_factory.mktemp("model") / "qwen3-next")


@pytest.fixture(scope="module")
def state_engine(
    vllm: Path, qwen3_next: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[RealEngine]:
    """An engine with state-space layers."""
    with ExitStack() as stack:
        engine = RealEngine(vllm, qwen3_next, new_log("engine-states"), [*FLAGS, *STATES])
        stack.callback(engine.kill)
        engine.start()
        wait_until_ready([engine], say)
        yield engine


def test_the_reuse_of_an_engine_with_state_space_layers_is_known_to_the_token(
    state_engine: RealEngine, new_log: Callable[[str], Path]
) -> None:
    with serve([state_engine], new_log("gateway-states")) as program:
        found = reused(program.url, state_engine, NUM_PROMPTS)

    assert wrong(found) == []
    assert sum(each.actual for each in found) > sum(each.prompt for each in found) / 4
