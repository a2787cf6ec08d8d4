"""Our engine beside vLLM's own, byte by byte.

Two recordings: golden/simulator is vLLM 0.32's KVCacheManager under random operations
(admissions, generated tokens, evictions, preemptions, resets, salts, an adapter, reports of what
is reused), with the batch that it would publish after each; written by scripts/golden_kv_cache.py.
golden/vllm is a real engine under real requests, with what it published.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferway.kv.blocks.dialects import Dialect, LoraAdapter
from inferway_sim.cache import Adapter, EngineCache, KvCache, Run
from inferway_sim.config import LatencyModel
from inferway_sim.events import encode_batch
from inferway_sim.kv_groups.cache import GroupedCache
from inferway_sim.kv_groups.spec import KvGroup, KvGroups
from inferway_sim.scheduler import RunningRequest, Scheduler

GOLDEN = Path(__file__).parents[1] / "golden"
OPERATIONS = GOLDEN / "simulator" / "kv_cache.jsonl"


class Replayed:
    """Does to our cache what the recording did to vLLM's."""

    def __init__(self, settings: dict[str, Any], cache: EngineCache) -> None:
        self._cache = cache
        self._adapter = Adapter(1, LoraAdapter(*settings["lora"]))
        self._runs: dict[int, Run] = {}

    def do(self, name: str, *args: Any) -> object:
        operation: object = getattr(self, name)(*args)
        return operation

    def admit(
        self, key: int, tokens: list[int], salt: str | None, lora: bool, report_all: bool
    ) -> int | None:
        self._runs[key] = Run(list(tokens), self._adapter if lora else None, salt, report_all)
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


def one_group(num_blocks: int, block_size: int) -> EngineCache:
    """The cache of several groups, with one of full attention."""
    return GroupedCache(num_blocks, KvGroups((KvGroup("full", block_size),)), Dialect(), 60)


def plain(num_blocks: int, block_size: int) -> EngineCache:
    return KvCache(num_blocks, block_size, Dialect())


@pytest.mark.parametrize("make_cache", [plain, one_group])
def test_the_cache_does_and_publishes_what_vllms_does(
    make_cache: Callable[[int, int], EngineCache],
) -> None:
    settings, *steps = map(json.loads, OPERATIONS.read_text().splitlines())
    ours = Replayed(settings, make_cache(settings["num_blocks"], settings["block_size"]))

    for number, step in enumerate(steps):
        found = {"result": ours.do(*step["do"]), "batch": ours.batch()}

        assert found == {"result": step["result"], "batch": step["batch"]}, f"step {number}"


def test_the_recording_holds_every_kind_of_event_and_refusals() -> None:
    text = OPERATIONS.read_text()
    steps = [json.loads(line) for line in text.splitlines()[1:]]
    refused = {step["do"][0] for step in steps if step["result"] in (None, False)}

    for kind in ("BlockStored", "BlockRemoved", "AllBlocksCleared", "tiny-lora", "salt"):
        assert kind.encode().hex() in text
    assert {"admit", "readmit", "token", "reset"} <= refused
    reported = [step for step in steps if step["do"][0] == "admit" and step["do"][-1]]
    assert any(step["result"] for step in reported)
    assert any(step["result"] is None and step["batch"] for step in reported)


class RealEngineAgain:
    """A simulated engine that is asked what a real one was asked, and says what that one said."""

    def __init__(self, recording: dict[str, Any]) -> None:
        info = recording["cache_config_info"]
        num_blocks = int(info.partition('num_gpu_blocks="')[2].partition('"')[0])
        seed = {} if recording["hash_seed"] is None else {"seed": recording["hash_seed"]}
        dialect = Dialect(recording["hash_algorithm"], **seed)
        cache = KvCache(num_blocks, recording["block_size"], dialect)
        self._scheduler = Scheduler(cache, LatencyModel(), max_num_seqs=8, max_waiting=8)
        self.batches: list[bytes] = []

    def answer(self, request: dict[str, Any]) -> int:
        """The cached tokens of the last prompt, which is what vLLM reports."""
        jobs = list(_jobs(request))
        for job in jobs:
            self._scheduler.add(job)
        while self._scheduler.next_due(0.0) is not None:
            events = self._scheduler.step(0.0).events
            if events:
                self.batches.append(encode_batch(events, timestamp=0.0, rank=0, format="map"))
        return jobs[-1].num_cached_tokens

    def reset(self) -> None:
        assert self._scheduler.cache.clear()


def _jobs(request: dict[str, Any]) -> Iterator[RunningRequest]:
    prompts, replies = request["prompt_token_ids"], request["token_ids"]
    prompts = prompts * (len(replies) // len(prompts))  # n answers to one prompt
    for prompt, reply in zip(prompts, replies, strict=True):
        run = Run(list(prompt), cache_salt=request["body"].get("cache_salt"))
        yield RunningRequest(run, reply, arrived=0.0)


def _published(recording: dict[str, Any]) -> list[list[Any]]:
    """The events of each batch that the real engine published, in order."""
    payloads = [base64.b64decode(frames[-1]) for frames in recording["replay_from_0"][:-1]]
    return [msgspec.msgpack.decode(payload)[1:] for payload in payloads]


@pytest.mark.parametrize("name", ["conversation", "eviction", "xxhash"])
def test_a_simulated_engine_publishes_what_the_real_one_published(name: str) -> None:
    recording = json.loads((GOLDEN / "vllm" / f"{name}.json").read_text())
    engine = RealEngineAgain(recording)

    for request in recording["requests"]:
        if request["name"] == "reset":
            engine.reset()
            continue

        assert engine.answer(request) == request["cached_tokens"], request["name"]

    assert [msgspec.msgpack.decode(batch)[1:] for batch in engine.batches] == _published(recording)
