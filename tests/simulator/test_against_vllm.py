"""Our cache beside vLLM's own, operation by operation, byte by byte.

The recording is vLLM 0.32's KVCacheManager under random requests, written by
scripts/golden_kv_cache.py: admissions, generated tokens, evictions, preemptions, resets, salts
and an adapter, and the batch that vLLM would publish after each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferway.blocks.dialects import Dialect, Lora
from inferway.simulator.cache import Adapter, KvCache, Run
from inferway.simulator.events import encode_batch

GOLDEN = Path(__file__).parents[1] / "golden" / "simulator" / "kv_cache.jsonl"


class Replayed:
    """Does to our cache what the recording did to vLLM's."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._cache = KvCache(settings["num_blocks"], settings["block_size"], Dialect())
        self._adapter = Adapter(1, Lora(*settings["lora"]))
        self._runs: dict[int, Run] = {}

    def do(self, name: str, *args: Any) -> object:
        operation: object = getattr(self, name)(*args)
        return operation

    def admit(self, key: int, tokens: list[int], salt: str | None, lora: bool) -> int | None:
        self._runs[key] = Run(list(tokens), self._adapter if lora else None, salt)
        return self.readmit(key)

    def readmit(self, key: int) -> int | None:
        return self._cache.admit(self._runs[key])

    def token(self, key: int, token: int) -> bool:
        run = self._runs[key]
        run.tokens.append(token)
        if not self._cache.reserve(run):
            self._cache.release(run)
            return False
        return True

    def free(self, key: int) -> None:
        self._cache.release(self._runs[key])

    def reset(self) -> bool:
        return self._cache.clear()

    def batch(self) -> str | None:
        events = self._cache.take_events()
        if not events:
            return None
        return encode_batch(events, timestamp=0.0, rank=0, format="map").hex()


def test_the_cache_does_and_publishes_what_vllms_does() -> None:
    settings, *steps = map(json.loads, GOLDEN.read_text().splitlines())
    ours = Replayed(settings)

    for number, step in enumerate(steps):
        found = {"result": ours.do(*step["do"]), "batch": ours.batch()}

        assert found == {"result": step["result"], "batch": step["batch"]}, f"step {number}"


def test_the_recording_holds_every_kind_of_event_and_refusals() -> None:
    text = GOLDEN.read_text()
    steps = [json.loads(line) for line in text.splitlines()[1:]]
    refused = {step["do"][0] for step in steps if step["result"] in (None, False)}

    for kind in ("BlockStored", "BlockRemoved", "AllBlocksCleared", "tiny-lora", "salt"):
        assert kind.encode().hex() in text
    assert {"admit", "readmit", "token", "reset"} <= refused
