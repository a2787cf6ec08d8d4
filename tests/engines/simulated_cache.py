"""The simulated cache of several groups beside vLLM's own `KVCacheManager`, over drawn histories.

    PYTHONPATH=src:structured/src:EXTRA VLLM_PYTHON tests/engines/simulated_cache.py
        [--steps N] [--seed N] [--only CASE …] [--keep-going]

EXTRA is a directory with xxhash, which vLLM's environment lacks.

Both look the same requests up, compute them in the same steps, preempt and end them; what they
find, whether they have room, where steps end, and what they publish after each step has to be
equal. No model is needed. With vLLM 0.33's sources before 0.32's on PYTHONPATH its rules are met;
cases of one version alone are left out with the other. Exits with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

import vllm
from inferway.kv.blocks.dialects import DEFAULT_SEED, Dialect
from inferway_sim.cache import Run
from inferway_sim.events import encode_batch
from inferway_sim.kv_groups.cache import GroupedCache
from inferway_sim.kv_groups.spec import (
    KvGroup,
    KvGroups,
    SpeculativeDecoding,
    read_groups,
)

IS_033 = not vllm.__version__.startswith("0.32")
MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class Case:
    groups: str
    retention: int | None = None
    unit: int | None = None
    speculation: SpeculativeDecoding = field(default_factory=SpeculativeDecoding)
    budgets: tuple[int, ...] = (64, 128, 512, 4096)
    only: str = ""  # the version that has it

    def config(self, budget: int) -> KvGroups:
        groups = read_groups(self.groups, 16)
        largest = max(group.block_size for group in groups)
        return KvGroups(
            groups,
            self.retention,
            self.unit,
            self.speculation,
            max(budget, largest),
            "0.33" if IS_033 else "0.32",
        )


def speculative(method: Any, num_tokens: int = 3, lookahead: int = 0) -> SpeculativeDecoding:
    return SpeculativeDecoding(method, num_tokens, lookahead)


CASES = {
    "full": Case("full"),
    "full+window": Case("full,window:64"),
    "full+window, window smaller than a block": Case("full,window:8"),
    "full 32+window 16": Case("full:32,window:64:16"),
    "full 16+window 32": Case("full:16,window:64:32"),
    "full+two windows": Case("full,window:64,window:128"),
    "windows alone": Case("window:64"),
    "two windows alone": Case("window:64,window:100:32"),
    "full+local": Case("full,local:128"),
    "local alone": Case("local:128"),
    "full+mamba align": Case("full,mamba:align"),
    "full+mamba align, 64": Case("full:64,mamba:align:64"),
    "full+two mamba": Case("full,mamba:align,mamba:align"),
    "mamba alone": Case("mamba:align"),
    "full+window+mamba": Case("full,window:64,mamba:align"),
    "full+mamba all": Case("full,mamba:all", only="0.32"),
    "full+mamba, hash finer": Case("full:64,mamba:align:64", unit=16),
    "full+window+mamba, hash finer": Case("full:64,window:48:16,mamba:align:64"),
    "full 32+mamba 64": Case("full:32,mamba:align:64"),
}
CASES |= {
    f"{name}, kept {kept}": replace(CASES[name], retention=kept)
    for name, kept in (
        ("full", 0),
        ("full+window", 0),
        ("full+window", 128),
        ("full+two windows", 0),
        ("full 32+window 16", 0),
        ("full 32+window 16", 128),
        ("windows alone", 0),
        ("windows alone", 128),
        ("full+local", 0),
        ("full+mamba align", 0),
        ("full+mamba align", 128),
        ("full+two mamba", 0),
        ("full+mamba, hash finer", 0),
        ("full+mamba, hash finer", 128),
        ("full+window+mamba", 0),
        ("full+mamba all", 0),
    )
}
_DRAFTED = (
    "full",
    "full+window",
    "full 32+window 16",
    "windows alone",
    "full+mamba align",
    "full+two mamba",
    "full+window+mamba",
    "full+mamba, hash finer",
    "full+mamba align, 64",
    "full+window, kept 0",
    "full+window, kept 128",
    "full+mamba align, kept 0",
    "full+mamba align, kept 128",
    "full+mamba, hash finer, kept 0",
)
CASES |= {
    f"{name}, {method}": replace(CASES[name], speculation=speculative(method))
    for name in _DRAFTED
    for method in ("eagle", "mtp", "ngram")
}
CASES |= {
    f"{name}, look-ahead {ahead}": replace(
        CASES[name],
        speculation=speculative("mtp", max(ahead, 1), ahead),
        only="0.33",
    )
    for name in _DRAFTED
    for ahead in (1, 2, 3, 4)
    if ahead == 1 or "full" in name  # without full attention vLLM fails for hashes to come
}


def spec_of(group: KvGroup, config: KvGroups) -> KVCacheSpec:
    size, attention = group.block_size, {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
    match group.kind:
        case "full":
            return FullAttentionSpec(block_size=size, **attention)
        case "window":
            more = max(0, config.speculation.prefill_lookahead - 1)
            return SlidingWindowSpec(
                block_size=size, sliding_window=group.reach, extra_retained_tokens=more, **attention
            )
        case "local":
            return ChunkedLocalAttentionSpec(
                block_size=size, attention_chunk_size=group.reach, **attention
            )
        case "mamba":
            return MambaSpec(
                block_size=size,
                shapes=((2, 64),),
                dtypes=(torch.float32,),
                mamba_cache_mode=group.mode,
                num_speculative_blocks=config.speculation.num_tokens,
            )


class RealCache:
    """vLLM's manager, driven as its scheduler drives it."""

    def __init__(self, config: KvGroups, num_blocks: int) -> None:
        speculation = config.speculation
        is_drawn = speculation.has_draft_layers and speculation.method == "mtp"
        full = next((i for i, g in enumerate(config.groups) if g.kind == "full"), None)
        cache_config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec(
                    [f"layer{i}"], spec_of(group, config), is_eagle_group=is_drawn and i == full
                )
                for i, group in enumerate(config.groups)
            ],
            prefix_cache_retention_interval=config.retention_interval,
        )
        ahead = speculation.hash_lookahead
        more = {"num_hash_lookahead_tokens": ahead} if ahead else {}
        self.manager = KVCacheManager(
            cache_config,
            MAX_MODEL_LEN,
            config.block_size,
            config.hash_unit,
            max_in_flight_tokens=config.max_num_batched_tokens,
            use_eagle=speculation.drops_last_block,
            num_prefill_lookahead=speculation.prefill_lookahead,
            enable_kv_cache_events=True,
            **more,
        )
        self._hasher = get_request_block_hasher(config.hash_unit, sha256, **more)
        self._config = config
        partial = getattr(self.manager.coordinator, "enable_partial_hash_hits", False)
        aligned = min(group.block_size for group in config.groups)
        self._scheduler: Any = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=aligned),
            block_size=config.block_size,
            hash_block_size=config.hash_unit,
            mamba_partial_cache_hit=config.hash_unit < config.block_size and partial,
            use_eagle_block_drop=speculation.drops_last_block,
            num_hash_lookahead_tokens=ahead,
            mamba_has_prefill_checkpoint_blocks=False,
            mamba_prefill_checkpoint_alignment=None,
            mamba_shared_prefix_checkpoint=False,
            max_num_scheduled_tokens=config.max_num_batched_tokens,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
            num_prefill_lookahead=speculation.prefill_lookahead,
        )

    def request(self, name: str, run: Run) -> Request:
        extra_args = {"kv_cache_report_mode": "full"} if run.report_all else None
        return Request(
            request_id=name,
            prompt_token_ids=list(run.tokens),
            sampling_params=SamplingParams(max_tokens=1000, extra_args=extra_args),
            pooling_params=None,
            cache_salt=run.cache_salt,
            block_hasher=self._hasher,
        )

    def step_end(self, request: Request, start: int) -> int:
        """Where vLLM's scheduler ends the step."""
        num_new = min(request.num_tokens - start, self._config.max_num_batched_tokens)
        local = start - request.num_computed_tokens
        if self._config.aligned_size is not None:
            num_new = Scheduler._mamba_block_aligned_split(self._scheduler, request, num_new, local)
        num_new = Scheduler._reserve_prefill_lookahead(self._scheduler, request, start, num_new)
        return start + int(num_new)

    def end_step(self) -> None:
        _, kept = self.manager.take_kv_cache_block_copies()
        self.manager.block_pool.free_blocks(kept)
        self.manager.new_step_starts()

    def batch(self) -> list[Any]:
        events = self.manager.take_events()
        encoded = msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=events, data_parallel_rank=0))
        return comparable(encoded)


def comparable(batch: bytes) -> list[Any]:
    """The events of a batch. A block's hashes are removed in the order of a set."""
    found: list[Any] = []
    for event in msgspec.msgpack.decode(batch)[1]:
        if event["type"] == "BlockRemoved" and found and isinstance(found[-1], set):
            found[-1].add((event["group_idx"], event["block_hashes"][0], len(found[-1])))
        elif event["type"] == "BlockRemoved":
            found.append({(event["group_idx"], event["block_hashes"][0], 0)})
        else:
            found.append(event)
    return [
        sorted(each[:2] for each in event) if isinstance(event, set) else event for event in found
    ]


# How many tokens answers have, and a full group room for.
LOADS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1, 1, 3, 12), 1100),
    ((1, 3, 60), 2500),
    ((60, 120), 1100),
    ((60, 200), 1600),
)


class DifferenceError(Exception):
    """The two caches differ."""


@dataclass(eq=False)
class Both:
    """One request in both caches."""

    request: Request
    run: Run
    left: int  # tokens to be said
    start: int = 0  # tokens computed
    preempted: int = 0


class History:
    """A drawn history of one case."""

    def __init__(self, case: Case, rng: random.Random) -> None:
        self.rng = rng
        self.config = case.config(rng.choice(case.budgets))
        # Short answers make for many look-ups; long ones in a small pool, for preemptions.
        self.lengths, room = rng.choice(LOADS)
        num_blocks = sum(
            8 + (0 if group.aligns else room // group.block_size) for group in self.config.groups
        )
        num_blocks = max(num_blocks, 60)
        seed = os.environ.get("PYTHONHASHSEED") or DEFAULT_SEED
        self.real = RealCache(self.config, num_blocks)
        self.ours = GroupedCache(num_blocks, self.config, Dialect(seed=seed), MAX_MODEL_LEN)
        self.running: list[Both] = []
        self.waiting: list[Both] = []
        self.stems = [self._words(rng.choice((40, 96, 200, 400))) for _ in range(6)]
        self.num_requests = self.num_lookups = self.num_tokens = self.num_hits = 0
        self.num_preempted = self.num_events = self.num_refused = self.num_steps = 0

    def step(self) -> None:
        """One step of a scheduler: those that run go on, then others are admitted."""
        self.num_steps += 1
        for both in list(self.running):
            if both in self.running:
                self._go_on(both)
        if not self.waiting and self.rng.random() < 0.6:
            self.waiting.append(self._drawn())
        while self.waiting and len(self.running) < 6 and self._admit(self.waiting[0]):
            self.waiting.pop(0)
            if self.rng.random() < 0.5:
                self.waiting.append(self._drawn())
        self.real.end_step()
        self.ours.end_step()
        batch = encode_batch(self.ours.take_events(), timestamp=0.0, rank=0, format="map")
        expected = self.real.batch()
        self.num_events += len(expected)
        self._same("events", expected, comparable(batch))
        self._same(
            "free", self.real.manager.block_pool.get_num_free_blocks(), self.ours.num_free_blocks
        )
        if not self.running and self.rng.random() < 0.05:
            self._same("reset", self.real.manager.reset_prefix_cache(), self.ours.clear())

    def _words(self, count: int) -> list[int]:
        return [self.rng.randrange(1000) for _ in range(count)]

    def _drawn(self) -> Both:
        rng = self.rng
        stem = rng.choice(self.stems)
        if rng.random() < 0.5:
            tokens = stem + self._words(rng.randrange(1, 200))
            if rng.random() < 0.3:
                self.stems[rng.randrange(6)] = tokens[:700]
        else:
            tokens = stem[: rng.randrange(1, len(stem) + 1)] + self._words(rng.randrange(40))
        self.num_requests += 1
        # Of a block that a hit ends in, vLLM reports what it cannot.
        report_all = rng.random() < 0.1 and not self.config.has_fine_hits
        salt = "salt" if rng.random() < 0.1 else None
        run = Run(list(tokens), cache_salt=salt, report_all=report_all)
        request = self.real.request(f"r{self.num_requests}", run)
        return Both(request, run, rng.choice(self.lengths))

    def _admit(self, both: Both) -> bool:
        request, run = both.request, both.run
        blocks, expected, junction = self.real.manager.get_computed_blocks(request)
        request.shared_prefix_boundary = junction
        hit = self.ours.look_up(run)
        self.num_lookups += 1
        self.num_tokens += request.num_tokens
        self.num_hits += expected
        self._same("hit", (expected, junction), (hit.num_tokens, hit.junction))
        end = self.real.step_end(request, expected)
        self._same("end of step", end, self.ours.step_end(run, expected))
        if end <= expected:
            return False
        is_admitted = (
            self.real.manager.allocate_slots(
                request,
                end - expected,
                expected,
                blocks,
                num_lookahead_tokens=self.config.speculation.num_lookahead_slots,
                full_sequence_must_fit=True,
            )
            is not None
        )
        self._same("admitted", is_admitted, self.ours.take_step(run, end, hit))
        if is_admitted:
            request.num_computed_tokens = both.start = end
            self.running.append(both)
        else:
            self.num_refused += 1
            if not self.running:  # it is too large for the pool
                raise DifferenceError("a request alone has no room: draw a larger pool")
        return is_admitted

    def _go_on(self, both: Both) -> None:
        request, run = both.request, both.run
        is_prefill = both.start < request.num_tokens
        drafts = 0
        if is_prefill:
            end = self.real.step_end(request, both.start)
            self._same("end of step", end, self.ours.step_end(run, both.start))
            if end <= both.start:
                return
        else:
            drafts = self._say(both)
            if both.left <= 0 or request.num_tokens > 3000 or self.rng.random() < 0.05:
                self._end(both)
                return
            end = request.num_tokens + drafts
        while both in self.running:
            has_room = (
                self.real.manager.allocate_slots(
                    request,
                    end - request.num_computed_tokens,
                    num_lookahead_tokens=self.config.speculation.num_lookahead_slots,
                )
                is not None
            )
            if not is_prefill:
                assert run.state is not None
                run.state.num_computed = len(run.tokens) - 1
            self._same("room", has_room, self.ours.take_step(run, end))
            if has_room:
                both.start = min(end, request.num_tokens)
                request.num_computed_tokens = both.start
                return
            self._preempt(self.running[-1])

    def _say(self, both: Both) -> int:
        """The step before said a token, and accepted some drafts. Returns how many are drafted."""
        request, run = both.request, both.run
        num_said = 1
        if request.num_tokens > both.run.num_prompt_tokens:
            num_said += self.rng.randint(0, self.config.speculation.num_tokens)
        words = self._words(num_said)
        request.append_output_token_ids(words)
        run.tokens += words
        both.left -= num_said
        request.num_computed_tokens = request.num_tokens - 1
        return self.config.speculation.num_tokens

    def _end(self, both: Both) -> None:
        self.running.remove(both)
        run = both.run
        if IS_033 and self.config.speculation.num_tokens:
            self.real.manager.cache_blocks(both.request, both.request.num_computed_tokens)
        self.ours.finish(run, run.tokens.pop())
        self.real.manager.free(both.request)

    def _preempt(self, both: Both) -> None:
        self.running.remove(both)
        self.num_preempted += 1
        self.real.manager.free(both.request)
        self.ours.release(both.run)
        both.request.num_computed_tokens = both.start = 0
        both.preempted += 1
        self.waiting.insert(0, both)

    def _same(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise DifferenceError(f"{what}: vLLM {expected!r}\n  the simulator {found!r}")


def run_case(name: str, case: Case, steps: int, seed: int) -> bool:
    counts = dict.fromkeys(("lookups", "tokens", "hits", "preempted", "events", "refused"), 0)
    error = ""
    for number in range(8):
        history = History(case, random.Random(f"{seed} {number}"))
        try:
            for _ in range(steps // 8):
                history.step()
        except DifferenceError as e:
            error = f"  history {number}, step {history.num_steps}, {history.config}: {e}"
        for key in counts:
            counts[key] += getattr(history, f"num_{key}")
        if error:
            break
    share = 100 * counts["hits"] / max(1, counts["tokens"])
    print(
        f"{'DIFFERS' if error else 'equal  '} {name:44s} {counts['lookups']:6d} look-ups "
        f"({share:4.1f} % hit), {counts['events']} events, {counts['preempted']} preempted, "
        f"{counts['refused']} refused",
        flush=True,
    )
    if error:
        print(error[:3000], flush=True)
    return not error


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--keep-going", action="store_true")
    arguments = parser.parse_args()
    init_none_hash(sha256)
    print("vLLM", vllm.__version__)
    version = "0.33" if IS_033 else "0.32"
    cases = {n: c for n, c in CASES.items() if c.only in ("", version)}
    all_equal = True
    for name in arguments.only or cases:
        all_equal &= run_case(name, CASES[name], arguments.steps, arguments.seed)
        if not all_equal and not arguments.keep_going:
            break
    sys.exit(not all_equal)


if __name__ == "__main__":
    main()
