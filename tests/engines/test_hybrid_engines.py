"""Engines of models whose layers need different parts of the KV cache: what the gateway believed
of each prompt is what the engine took from its cache, to the token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.engines.conftest import FULL, Say, ServingProgram, serve
from tests.engines.drawn_prompts import reused, wrong
from tests.engines.engine import BLOCK_SIZE, RealEngine, wait_until_ready
from tests.engines.hybrid_models import EAGLE_HEAD, GEMMA_3, LLAMA, QWEN3_NEXT, write_model

NewLog = Callable[[str], Path]

CACHE = ("--load-format", "dummy", "--enable-prefix-caching", "--num-gpu-blocks-override")


@dataclass(frozen=True)
class Served:
    """A model and how it is served."""

    config: Mapping[str, Any]
    num_blocks: int
    flags: Sequence[str] = ()
    num_prompts: int = 24


# The CPU's kernel of the gated delta net takes no other dtype. vLLM makes blocks of 64 tokens, or
# of 96 where the CPU has a kernel for states of 32 bits; retention intervals are multiples of both.
STATES = ("--dtype", "bfloat16")

# What drafts without a model changes nothing of what is reused.
NGRAM = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'

SERVED = {
    "states": Served(QWEN3_NEXT, 400, STATES, 40),
    "states-hits-within-blocks": Served(QWEN3_NEXT, 400, (*STATES, "--prefix-match-unit", "32")),
    "states-kept-at-intervals": Served(
        QWEN3_NEXT, 400, (*STATES, "--prefix-cache-retention-interval", "192")
    ),
    "windows": Served(GEMMA_3, 1600),
    "n-gram": Served(LLAMA, 400, ("--speculative-config", NGRAM)),
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


@pytest.fixture(scope="module")
def drafting(
    vllm: Path,
    whole_model: Path,
    new_log: NewLog,
    say: Say,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealEngine]:
    """An engine that drafts by EAGLE."""
    head = write_model(EAGLE_HEAD, whole_model, tmp_path_factory.mktemp("draft") / "eagle")
    eagle = {"method": "eagle", "model": str(head), "num_speculative_tokens": 1}
    served = Served(LLAMA, 400, ("--speculative-config", json.dumps(eagle)))
    with started("eagle", served, vllm, whole_model, new_log, say) as engine:
        yield engine


def test_an_engine_with_a_draft_model_drops_the_last_block(
    drafting: RealEngine, new_log: NewLog
) -> None:
    arguments = ["serve", "--engine", f"{drafting.url},speculation=eagle"]
    with ServingProgram(arguments, new_log("gateway-eagle"), "kv-aware") as program:
        found = reused(program.url, drafting, 200 if FULL else 16, seed=4)

    assert wrong(found) == []
    assert any(each.actual for each in found)


def test_that_an_engine_drops_the_last_block_is_found_out_from_its_answers(
    drafting: RealEngine, new_log: NewLog
) -> None:
    log = new_log("gateway-finds-out")
    with serve([drafting], log) as program:
        found = reused(program.url, drafting, 200 if FULL else 16, seed=5)

    missed = wrong(found)
    assert missed
    assert {each.believed - each.actual for each in missed} == {BLOCK_SIZE}
    assert wrong(found[-5:]) == []
    assert "it drops the last block, as vLLM does with EAGLE and MTP drafts" in log.read_text()


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
