"""A pooling model that keeps prompts: what the gateway matches of embeddings is what the engine
reuses of them, as its counters tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engines import client
from tests.engines.conftest import Say, ServingProgram
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.waiting import wait_until

TEXT = "The keeper of the tower counted every boat that passed by in winter. " * 12
CHAT = [{"role": "system", "content": TEXT}, {"role": "user", "content": "And then?"}]


class Pooling(NamedTuple):
    engine: RealEngine
    url: str  # the gateway's

    def counted(self, name: str) -> float:
        lines = client.get(f"{self.engine.url}/metrics").raw.decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f"vllm:prefix_cache_{name}_total")
        )

    def embed(self, fields: dict[str, Any]) -> tuple[int, int]:
        """Return the blocks that are matched, and those that the engine has reused."""
        before = self.counted("hits")
        answer = client.post(f"{self.url}/v1/embeddings", {"model": MODEL, **fields})
        assert answer.status == 200, answer.raw
        reused = (self.counted("hits") - before) / BLOCK_SIZE
        return int(answer.headers["x-inferway-matched-blocks"]), int(reused)


@pytest.fixture(scope="module")
def pooling(
    vllm: Path, small_model: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[Pooling]:
    engine = RealEngine(vllm, small_model, new_log("engine-pooling"), ("--runner", "pooling"))
    try:
        engine.start()
        wait_until_ready([engine], say)
        with Serving(["serve", "--engine", engine.url], new_log("gateway-pooling")) as gateway:
            yield Pooling(engine, gateway.url)
    finally:
        engine.kill()


class Serving(ServingProgram):
    """Is entered when the model is known: no probe tells how a pooling engine renders."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        super().__init__(arguments, log, "kv-aware")

    def _knows_all(self) -> bool:
        report = client.get(f"{self.url}/ready").json
        return bool(report["models"].get(MODEL, {}).get("reason") == "kv-aware")


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
    first = pooling.embed(fields)

    def is_matched() -> bool:
        matched, reused = pooling.embed(fields)
        return matched == reused > first[1] or (matched == reused == first[1] > 0)

    wait_until(is_matched, "all that the engine reuses is matched", seconds=10)
