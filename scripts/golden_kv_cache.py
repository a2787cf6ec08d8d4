"""Writes tests/golden/simulator/kv_cache.jsonl: what vLLM's own KV cache manager does with a
random sequence of requests. Run it with a Python that has vLLM:

    /path/to/vllm-venv/bin/python scripts/golden_kv_cache.py > tests/golden/simulator/kv_cache.jsonl

One line per operation: {"do": [name, ...], "result": ..., "batch": hex of the msgpack that vLLM
would publish, or null}. The first line names version and settings.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

import vllm

BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 4, 24, 60
NUM_OPERATIONS = 600
LORA = ("tiny-lora", "/adapters/tiny")


class RealCache:
    """vLLM's manager, driven as its scheduler drives it."""

    def __init__(self) -> None:
        init_none_hash(sha256)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32
        )
        config = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
        self.manager = KVCacheManager(
            config, MAX_MODEL_LEN, BLOCK_SIZE, BLOCK_SIZE, enable_kv_cache_events=True
        )
        self.requests: dict[int, Request] = {}

    def admit(
        self, key: int, tokens: list[int], salt: str | None, lora: bool, report_all: bool
    ) -> int | None:
        extra_args = {"kv_cache_report_mode": "full"} if report_all else None
        self.requests[key] = Request(
            str(key),
            tokens,
            SamplingParams(max_tokens=100, extra_args=extra_args),
            None,
            lora_request=LoRARequest(LORA[0], 1, LORA[1]) if lora else None,
            cache_salt=salt,
            block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
        )
        return self._schedule(key)

    def readmit(self, key: int) -> int | None:
        return self._schedule(key)

    def token(self, key: int, token: int) -> bool:
        request = self.requests[key]
        request.append_output_token_ids(token)
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True

    def free(self, key: int) -> None:
        request = self.requests[key]
        self.manager.free(request)
        request.num_computed_tokens = 0

    def reset(self) -> bool:
        return self.manager.reset_prefix_cache()

    def batch(self) -> str | None:
        events = self.manager.take_events()
        if not events:
            return None
        batch = KVEventBatch(ts=0.0, events=events, data_parallel_rank=0)
        return msgspec.msgpack.Encoder().encode(batch).hex()

    def _schedule(self, key: int) -> int | None:
        request = self.requests[key]
        blocks, num_cached, _ = self.manager.get_computed_blocks(request)
        num_new = request.num_tokens - num_cached
        if self.manager.allocate_slots(request, num_new, num_cached, blocks) is None:
            return None
        request.num_computed_tokens = request.num_tokens
        return num_cached


def main() -> None:
    rng, cache = random.Random(20), RealCache()
    print(json.dumps({"vllm": vllm.__version__, "block_size": BLOCK_SIZE, "num_blocks": NUM_BLOCKS,
                      "lora": LORA}))  # fmt: skip
    running: list[int] = []
    outside: list[int] = []  # preempted, or never admitted
    for number in range(NUM_OPERATIONS):
        do = choose(rng, number, running, outside, cache)
        result: Any = getattr(cache, do[0])(*do[1:])
        if do[0] in ("admit", "readmit"):
            if result is None:
                outside.append(do[1])
            else:
                running.append(do[1])
        elif do[0] == "free" or (result is False and do[0] == "token"):
            running.remove(do[1])
            if do[0] == "token":
                cache.free(do[1])
            if rng.random() < 0.3:
                outside.append(do[1])
        print(json.dumps({"do": do, "result": result, "batch": cache.batch()}))


def choose(
    rng: random.Random, number: int, running: list[int], outside: list[int], cache: RealCache
) -> list[Any]:
    if number % 100 > 90:  # everybody leaves, so that a reset can succeed
        return ["free", running[0]] if running else ["reset"]
    long = [k for k in running if cache.requests[k].num_tokens >= MAX_MODEL_LEN - 1]
    if long:
        return ["free", long[0]]
    kind = rng.choices(["admit", "token", "free", "readmit", "reset"], [30, 50, 15, 10, 2])[0]
    if kind == "token" and running:
        return ["token", rng.choice(running), rng.randrange(3)]
    if kind == "free" and running:
        return ["free", rng.choice(running)]
    if kind == "readmit" and outside:
        return ["readmit", outside.pop(rng.randrange(len(outside)))]
    if kind == "reset":
        return ["reset"]
    tokens = [rng.randrange(2)] * rng.randint(1, 14) + [rng.randrange(2)] * rng.randint(0, 14)
    salt, lora = rng.choice([None] * 8 + ["salt"]), rng.random() < 0.15
    return ["admit", number, tokens, salt, lora, rng.random() < 0.2]


if __name__ == "__main__":
    main()
