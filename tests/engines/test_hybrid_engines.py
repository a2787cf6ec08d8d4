"""Engines of models whose layers need different parts of the KV cache: what the gateway believed
of each prompt is what the engine took from its cache, to the token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.conftest import FULL, Say, serve
from tests.engines.drawn_prompts import reused, wrong
from tests.engines.engine import RealEngine, wait_until_ready
from tests.engines.hybrid_models import GEMMA_3, QWEN3_NEXT, write_model

NewLog = Callable[[str], Path]

CACHE = ("--load-format", "dummy", "--enable-prefix-caching", "--num-gpu-blocks-override")


@dataclass(frozen=True)
class Served:
    """A model and how it is served."""

    config: Mapping[str, Any]
    num_blocks: int
    flags: Sequence[str] = ()
    num_prompts: int = 24


# The CPU's kernel of the gated delta net takes no other dtype. vLLM makes blocks of 64 tokens.
STATES = ("--dtype", "bfloat16")

SERVED = {
    "states": Served(QWEN3_NEXT, 400, STATES, 40),
    "states-hits-within-blocks": Served(QWEN3_NEXT, 400, (*STATES, "--prefix-match-unit", "32")),
    "states-kept-at-each-block": Served(
        QWEN3_NEXT, 400, (*STATES, "--prefix-cache-retention-interval", "64")
    ),
    "windows": Served(GEMMA_3, 1600),
}


@contextmanager
def started(
    name: str, served: Served, vllm: Path, tokenizer_dir: Path, new_log: NewLog, say: Say
) -> Iterator[RealEngine]:
    """The engine, ready."""
    log = new_log(f"engine-{name}")
    model_dir = write_model(served.config, tokenizer_dir, log.with_name(f"model-{name}"))
    flags = [*CACHE, str(served.num_blocks), *served.flags]
    engine = RealEngine(vllm, model_dir, log, flags)
    try:
        engine.start()
        wait_until_ready([engine], say)
        yield engine
    finally:
        engine.kill()


@pytest.mark.timeout(3000 if FULL else 400)
@pytest.mark.parametrize("name", SERVED)
def test_what_is_believed_of_a_prompt_is_what_the_engine_takes_from_its_cache(
    name: str, vllm: Path, whole_model: Path, new_log: NewLog, say: Say
) -> None:
    served = SERVED[name]
    with (
        started(name, served, vllm, whole_model, new_log, say) as engine,
        serve([engine], new_log(f"gateway-{name}")) as program,
    ):
        found = reused(program.url, engine, 500 if FULL else served.num_prompts)

    assert wrong(found) == []
    assert sum(each.actual for each in found) > sum(each.prompt for each in found) / 4
