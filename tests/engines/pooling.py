"""A real engine of a pooling model behind a gateway, and what both say of each prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.engines import client
from tests.engines.conftest import Say, ServingProgram
from tests.engines.engine import BLOCK_SIZE, MODEL, RealEngine, wait_until_ready
from tests.engines.waiting import wait_until


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

    def asked(self, path: str, fields: dict[str, Any]) -> tuple[int, int]:
        """Return the blocks that are matched, and those that the engine has reused."""
        before = self.counted("hits")
        answer = client.post(f"{self.url}{path}", {"model": MODEL, **fields})
        assert answer.status == 200, answer.raw
        reused = (self.counted("hits") - before) / BLOCK_SIZE
        return int(answer.headers.get("x-inferway-matched-blocks", 0)), int(reused)

    def wait_until_matched(self, path: str, fields: dict[str, Any]) -> None:
        """Wait until all that the engine reuses is matched, and it is not nothing."""
        first = self.asked(path, fields)

        def is_matched() -> bool:
            matched, reused = self.asked(path, fields)
            return matched == reused > first[1] or (matched == reused == first[1] > 0)

        wait_until(is_matched, "all that the engine reuses is matched", seconds=10)


@contextmanager
def serving_pooling(
    engine: RealEngine, new_log: Callable[[str], Path], say: Say, *flags: str
) -> Iterator[Pooling]:
    """Start the engine, and the gateway with `flags` before it."""
    try:
        engine.start()
        wait_until_ready([engine], say)
        log = new_log(f"gateway-{engine.log.stem}")
        with _Serving(["serve", "--engine", engine.url, *flags], log) as gateway:
            yield Pooling(engine, gateway.url)
    finally:
        engine.kill()


class _Serving(ServingProgram):
    """Is entered when the model is known: no probe tells how a pooling engine renders."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        super().__init__(arguments, log, "kv-aware")

    def _knows_all(self) -> bool:
        report = client.get(f"{self.url}/ready").json
        return bool(report["models"].get(MODEL, {}).get("reason") == "kv-aware")
