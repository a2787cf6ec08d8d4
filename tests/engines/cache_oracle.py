"""What vLLM's own cache manager would reuse, beside what Inferway believes. No model, no GPU.

    VLLM_PYTHON -m tests.engines.cache_oracle [--steps 2000] [--seeds 3] [--only NAME ...]

VLLM_PYTHON is that of an environment with vLLM; the sources of another version may stand first in
PYTHONPATH. Each case is a set of groups of KV caches as models have them. Prompts that share
beginnings come, are looked up (`get_computed_blocks`: the truth), get their slots in chunks as the
scheduler cuts them, decode some tokens, are preempted or aborted, and freed, several at a time; the
pool is small, so that blocks are evicted. Before each look-up Inferway is asked, whose index has
been fed with the very events, as msgpack. One line of JSON for each case.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import msgspec
import numpy as np
import tests.engines.own_path  # noqa: F401  # before the gateway is imported
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

import vllm
from inferway.kv.blocks.dialects import LoraAdapter
from inferway.kv.blocks.extra_keys import BlockExtras, request_extras
from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.events.adapters.vllm import open_batch
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.dialect_finder import DialectFinder
from inferway.kv.events.event_applier import EventApplier
from inferway.kv.events.groups import CacheFacts
from inferway.kv.events.hidden_places import Beside
from inferway.kv.index.memory import MemoryIndex
from inferway.model import BlockKey, Cut, MediaSpan, block_size_of, lookahead_of

_A: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float16}
_STARTS = inspect.signature(KVCacheManager.__init__).parameters
HAS_LOOKAHEAD = "num_hash_lookahead_tokens" in _STARTS


def full(size: int = 16) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=size, **_A)


def mla(size: int = 16) -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=size, **_A)


def sink(size: int = 16) -> SinkFullAttentionSpec:
    return SinkFullAttentionSpec(block_size=size, sink_len=size, **_A)


def window(size: int = 16, tokens: int = 64) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=size, sliding_window=tokens, **_A)


def window_mla(size: int = 16, tokens: int = 64) -> SlidingWindowMLASpec:
    return SlidingWindowMLASpec(block_size=size, sliding_window=tokens, **_A)


def local(size: int = 16, chunk: int = 128) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=chunk, **_A)


def mamba(size: int = 16, mode: str = "align") -> MambaSpec:
    return MambaSpec(
        block_size=size, shapes=((2, 64),), dtypes=(torch.float32,), mamba_cache_mode=mode
    )


@dataclass(frozen=True)
class Case:
    groups: Sequence[Any]
    eagle: Sequence[int] | None = None  # groups with a draft model's layers; (): none is flagged
    scheduler_block: int = 16
    hash_size: int = 16
    kept: int | None = None  # prefix_cache_retention_interval
    lookahead: int = 0
    loras: bool = False
    media: bool = False

    @property
    def facts(self) -> CacheFacts:
        chunks = [getattr(group, "attention_chunk_size", None) or 0 for group in self.groups]
        drops = self.eagle is not None and not self.lookahead
        draft = tuple(self.eagle) if self.eagle else None
        return CacheFacts(drops, draft, max(chunks), self.hash_size, self.scheduler_block)


CASES = {
    "full": Case([full()]),
    "full, 64": Case([full(64)], None, 64, 64),
    "mla": Case([mla()]),
    "full+mla": Case([full(), mla()]),
    "sink full+window": Case([sink(), window()]),
    "full, adapters and salts": Case([full()], loras=True),
    "full+window": Case([full(), window()]),
    "window before full": Case([window(), full()]),
    "full+window, adapters and salts": Case([full(), window()], loras=True),
    "full+window of 17": Case([full(), window(16, 17)]),
    "full+window of 1": Case([full(), window(16, 1)]),
    "full+window MLA": Case([full(), window_mla()]),
    "full+two windows": Case([full(), window(16, 64), window(16, 128)]),
    "full+equal windows": Case([full(), window(), window(), window()]),
    "full 32+window 16": Case([full(32), window(16)], None, 32, 16),
    "full 16+window 32": Case([full(16), window(32, 100)], None, 32, 16),
    "full 64+window 16": Case([full(64), window(16, 40)], None, 64, 16),
    "full 64+window 32+window 16": Case([full(64), window(32, 80), window(16, 40)], None, 64, 16),
    "window 16+full 64+window 32": Case([window(16, 40), full(64), window(32, 80)], None, 64, 16),
    "full 32+full 16": Case([full(32), full(16)], None, 32, 16),
    "windows alone": Case([window()]),
    "two windows alone": Case([window(16, 64), window(16, 128)]),
    "windows 16 and 32 alone": Case([window(16, 64), window(32, 64)], None, 32, 16),
    "full+local": Case([full(), local()]),
    "local alone": Case([local()]),
    "full+local+window": Case([full(), local(), window()]),
    "full+mamba align": Case([full(), mamba()]),
    "mamba align before full": Case([mamba(), full()]),
    "full+mamba align, adapters and salts": Case([full(), mamba()], loras=True),
    "full+mamba align, 64": Case([full(64), mamba(64)], None, 64, 64),
    "full+mamba align, hash finer": Case([full(64), mamba(64)], None, 64, 16),
    "full 16+mamba align 64": Case([full(16), mamba(64)], None, 64, 16),
    "full+three mambas align": Case([full(), mamba(), mamba(), mamba()]),
    "full+mamba align+window": Case([full(), mamba(), window()]),
    "mamba align alone": Case([mamba()]),
    "full+mamba all": Case([full(), mamba(mode="all")]),
    "full+mamba all, 64": Case([full(64), mamba(64, "all")], None, 64, 64),
    "full, eagle": Case([full()], [0]),
    "full, eagle, unflagged": Case([full()], ()),
    "full+full draft, eagle": Case([full(), mla()], [1]),
    "full+window, eagle": Case([full(), window()], [0]),
    "full+window, eagle, unflagged": Case([full(), window()], ()),
    "full 32+window 16, eagle": Case([full(32), window(16)], [0], 32, 16),
    "windows alone, eagle": Case([window()], ()),
    "full+mamba align, eagle": Case([full(), mamba()], [0]),
    "full+mamba align, eagle, unflagged": Case([full(), mamba()], ()),
    "full+mamba align, hash finer, eagle": Case([full(64), mamba(64)], [0], 64, 16),
    "full+mamba all, eagle": Case([full(), mamba(mode="all")], [0]),
    "full+window, kept 0": Case([full(), window()], kept=0),
    "full+window, kept 128": Case([full(), window()], kept=128),
    "full 64+window 16, kept 128": Case([full(64), window(16, 40)], None, 64, 16, kept=128),
    "windows alone, kept 128": Case([window()], kept=128),
    "full+window, eagle, kept 128": Case([full(), window()], [0], kept=128),
    "full+mamba align, kept 0": Case([full(), mamba()], kept=0),
    "full+mamba align, kept 128": Case([full(), mamba()], kept=128),
    "full+mamba align, eagle, kept 128": Case([full(), mamba()], [0], kept=128),
    "full+mamba align, hash finer, kept 0": Case([full(64), mamba(64)], None, 64, 16, kept=0),
    **{f"full, look-ahead {n}": Case([full()], [0], lookahead=n) for n in range(1, 5)},
    "full+window, look-ahead 1": Case([full(), window()], [0], lookahead=1),
    "full+window, look-ahead 3, kept 128": Case([full(), window()], [0], lookahead=3, kept=128),
    "full+mamba align, look-ahead 1": Case([full(), mamba()], [0], lookahead=1),
    "full+mamba align, look-ahead 4": Case([full(), mamba()], [0], lookahead=4),
    "full 32+window 16, look-ahead 2": Case([full(32), window(16)], [0], 32, 16, lookahead=2),
    "full, look-ahead 1, adapters and salts": Case([full()], [0], lookahead=1, loras=True),
    "full, pictures": Case([full()], loras=True, media=True),
    "full+window, pictures": Case([full(), window()], loras=True, media=True),
    "full 64+window 16, pictures": Case([full(64), window(16, 40)], None, 64, 16, media=True),
    "full+mamba align, pictures": Case([full(), mamba()], media=True),
    "full+mamba align, hash finer, pictures": Case(
        [full(64), mamba(64)], None, 64, 16, loras=True, media=True
    ),
    "full+window, eagle, pictures": Case([full(), window()], [0], media=True),
    "full, look-ahead 2, pictures": Case([full()], [0], lookahead=2, loras=True, media=True),
    "full+window, look-ahead 1, pictures": Case([full(), window()], [0], lookahead=1, media=True),
    "full+mamba align, look-ahead 4, pictures": Case(
        [full(), mamba()], [0], lookahead=4, loras=True, media=True
    ),
    "full 32+window 16, look-ahead 2, pictures": Case(
        [full(32), window(16)], [0], 32, 16, lookahead=2, media=True
    ),
}


class Engine:
    """vLLM's cache manager, and the part of its scheduler that cuts prompts."""

    def __init__(self, case: Case, blocks: int, rng: Random) -> None:
        config = KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"l{i}"], group, is_eagle_group=i in (case.eagle or ()))
                for i, group in enumerate(case.groups)
            ],
            prefix_cache_retention_interval=case.kept,
        )
        more = {"num_hash_lookahead_tokens": case.lookahead} if case.lookahead else {}
        self.case, self.rng = case, rng
        # look-ahead hashes take the place of the drop
        self.drops = case.eagle is not None and not case.lookahead
        self.manager = KVCacheManager(
            *(config, 65536, case.scheduler_block, case.hash_size),
            use_eagle=self.drops,
            enable_kv_cache_events=True,
            **more,
        )
        self.is_aligned = any(
            isinstance(g, MambaSpec) and g.mamba_cache_mode == "align" for g in case.groups
        )
        coordinator = self.manager.coordinator
        self.is_fine = (
            isinstance(coordinator, HybridKVCacheCoordinator)
            and coordinator.enable_partial_hash_hits
        )
        self.hasher = get_request_block_hasher(case.hash_size, sha256, **more)
        self.count = 0
        self.chunk = 0

    def request(self, asked: Asked) -> Request:
        self.count += 1
        features = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=each.identifier,
                mm_position=PlaceholderRange(offset=each.offset, length=each.length),
            )
            for each in asked.media
        ]
        return Request(
            request_id=f"r{self.count}",
            prompt_token_ids=asked.ids,
            mm_features=features or None,
            sampling_params=SamplingParams(max_tokens=64),
            pooling_params=None,
            lora_request=asked.lora,
            cache_salt=asked.salt,
            block_hasher=self.hasher,
        )

    def events(self) -> bytes | None:
        events = self.manager.take_events()
        return msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=events)) if events else None

    def _next(self, request: Request) -> int:
        """The tokens of a request's next step, as Scheduler cuts prompts."""
        done: int = request.num_computed_tokens
        take: int = min(self.chunk, request.num_tokens - done)
        if not self.is_aligned or done >= request.num_prompt_tokens:
            return take
        size, end = self.case.scheduler_block, done + take
        last = request.num_tokens // size * size
        if self.drops:
            last = max(last - size, 0)
        stops = [last]
        if self.is_fine:
            unit = self.case.hash_size
            kept = 0 if self.drops else max(1, self.case.lookahead)
            stops.append((request.num_prompt_tokens - kept) // unit * unit - unit * self.drops)
        if end < last:
            end = end // size * size
        else:
            end = min([stop for stop in stops if done < stop < end], default=end)
        return max(end - done, 0) or take

    def step(self, request: Request, hit: int, blocks: Any) -> bool:
        """Compute one chunk of the prompt. False where the pool is too full."""
        is_first = blocks is not None
        request.num_computed_tokens = hit if is_first else request.num_computed_tokens
        num_new = self._next(request)
        if is_first:
            request.num_computed_tokens = 0
        more = (hit, blocks) if is_first else ()
        if self.manager.allocate_slots(request, num_new, *more) is None:
            return False
        request.num_computed_tokens = (hit if is_first else request.num_computed_tokens) + num_new
        return True

    def decode(self, request: Request) -> bool:
        request.append_output_token_ids(self.rng.randrange(1000))
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True


@dataclass
class Tally:
    equal: int = 0
    too_much: int = 0
    too_little: int = 0
    unequal_while_exact: int = 0
    hit: int = 0
    tokens: int = 0
    first: list[object] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class Running:
    request: Request
    decodes: int


@dataclass(frozen=True)
class Asked:
    """A prompt, and the numbers of its adapter and its salt; 0: it has none. `pictures`: its tokens
    say where pictures stand, of this number."""

    ids: list[int]
    lora_number: int = 0
    salt_number: int = 0
    pictures: int = 0

    @property
    def media(self) -> list[MediaSpan]:
        """Of prompts that begin alike, and have pictures of the same number, the same."""
        found: list[MediaSpan] = []
        end = 0
        for at, token in enumerate(self.ids if self.pictures else ()):
            length = 1 + token % 71
            if at >= end and token % 40 == 0 and at + length <= len(self.ids):
                found.append(MediaSpan(f"p{token}-{self.pictures}", at, length))
                end = at + length
        return found

    @property
    def lora(self) -> LoRARequest | None:
        number = self.lora_number
        return LoRARequest(f"a{number}", number, f"/a{number}") if number else None

    @property
    def salt(self) -> str | None:
        return f"s{self.salt_number}" if self.salt_number else None


def prompts(rng: Random, *, has_loras: bool, has_media: bool) -> Iterator[Asked]:
    """Yield prompts that share beginnings."""
    lengths = (40, 96, 200, 400)
    stems = [[rng.randrange(1000) for _ in range(rng.choice(lengths))] for _ in range(6)]
    while True:
        stem = rng.choice(stems)
        if rng.random() < 0.5:
            ids = stem + [rng.randrange(1000) for _ in range(rng.randrange(1, 200))]
            if rng.random() < 0.3:
                stems[rng.randrange(6)] = ids
        else:
            ids = stem[: rng.randrange(1, len(stem) + 1)]
            ids = ids + [rng.randrange(1000) for _ in range(rng.randrange(40))]
        lora, salt = has_loras * rng.randrange(3), has_loras * rng.randrange(3)
        yield Asked(ids[:3000], lora, salt, rng.randrange(3) if has_media else 0)


class Gateway:
    """What Inferway believes of one engine, from its events."""

    def __init__(self, case: Case) -> None:
        facts, self.index = case.facts, MemoryIndex()
        self.blocks = EngineBlocks(
            *(0, case.scheduler_block),
            holdings=self.index,
            lora_path=lambda name: f"/{name}",
            cache_facts=lambda: facts,
        )
        self.applier = EventApplier(
            self.blocks, adapter=open_batch, can_replay=False, holdings=self.index
        )
        self.blocks.verify_hashes(
            DialectFinder(
                lora_path=lambda name: f"/{name}", hash_size=lambda: self.blocks.hash_size
            )
        )
        self._do(self.applier.resume())
        self._seq = 0

    def hear(self, payload: bytes) -> None:
        self._do(self.applier.live(self._seq, payload))
        self._seq += 1

    def believed(self, asked: Asked) -> int:
        """The tokens of a prompt that the engine is believed to reuse."""
        cut = self.blocks.cut_seen
        if cut is None:
            return 0
        found = self.index.match_now(*self._keys(cut, asked))
        if 0 in found.reuse:
            return found.reuse[0].tokens
        size = block_size_of(cut)
        return min(found.blocks.get(0, 0), (len(asked.ids) - 1) // size) * size

    def expect(self, asked: Asked) -> None:
        """The prompt goes to the engine."""
        cut = self.blocks.cut_seen
        if cut is not None:
            keys, _ = self._keys(cut, asked)
            lora = asked.lora
            adapter = LoraAdapter(lora.lora_name, lora.lora_path) if lora else None
            beside = Beside(adapter, asked.salt, asked.media)
            self._do(self.blocks.expect_prompt(asked.ids, keys, beside))

    def _keys(self, cut: Cut, asked: Asked) -> tuple[list[BlockKey], PromptPlaces]:
        tokens = np.array(asked.ids, np.uint32)
        size, lookahead = block_size_of(cut), lookahead_of(cut)
        hasher = BlockHasher(size, 0, lookahead)
        lora = asked.lora
        name, path = (lora.lora_name, lora.lora_path) if lora else (None, None)
        extras, media = request_extras(name, asked.salt, path), asked.media
        of_blocks = extras
        if media:
            of_blocks = (extras or BlockExtras()).with_media(media, size, lookahead)
        keys = hasher.keys(tokens, of_blocks)
        return keys, PromptPlaces(hasher, tokens, keys, extras, media)

    def _do(self, steps: Iterable[object]) -> None:
        for step in steps:
            if isinstance(step, list):
                self.index.apply(step)


class History:
    """A drawn history of one engine. `on_events` gets each payload that it publishes, `on_look_up`
    each prompt and how many of its tokens are reused."""

    def __init__(
        self,
        case: Case,
        seed: int,
        tally: Tally,
        on_events: Callable[[bytes], object] = lambda _: None,
        on_look_up: Callable[[list[int], int], object] = lambda *_: None,
    ) -> None:
        self._rng = Random(seed)
        self._engine = Engine(case, self._rng.choice((120, 300, 900)), self._rng)
        self._gateway = Gateway(case)
        self._tally = tally
        self._on_events, self._on_look_up = on_events, on_look_up
        self._running: list[Running] = []
        self._prompts = prompts(self._rng, has_loras=case.loras, has_media=case.media)

    def run(self, steps: int) -> None:
        engine, rng, tally = self._engine, self._rng, self._tally
        for _ in range(steps):
            asked = next(self._prompts)
            request = engine.request(asked)
            found, hit, boundary = engine.manager.get_computed_blocks(request)
            request.shared_prefix_boundary = boundary
            self._on_look_up(asked.ids, hit)
            believed, state = self._gateway.believed(asked), str(self._gateway.applier.state)
            _count(tally, len(asked.ids), hit, believed)
            tally.unequal_while_exact += believed != hit and state == "exact"
            self._gateway.expect(asked)
            tally.states[state] = tally.states.get(state, 0) + 1
            if self._prefill(request, hit, found):
                self._running.append(Running(request, rng.choice((0, 3, 40))))
            else:
                engine.manager.free(request)
            engine.manager.new_step_starts()
            while self._running and (len(self._running) > 3 or rng.random() < 0.6):
                self._decode()
            self._hear()
        gateway = self._gateway
        for skipped in (gateway.applier.stats.skipped, gateway.blocks.stats.skipped):
            for reason, count in skipped.items():
                tally.errors[reason] = tally.errors.get(reason, 0) + count

    def _prefill(self, request: Request, hit: int, found: Any) -> bool:
        """Compute a prompt in chunks. False where the pool is too full, or the request is
        aborted."""
        engine, rng = self._engine, self._rng
        engine.chunk = rng.choice((64, 128, 512, 4096))
        first = (hit, found)
        while request.num_computed_tokens < request.num_prompt_tokens:
            if not engine.step(request, *first):
                return False
            first = (0, None)
            if rng.random() < 0.7:
                engine.manager.new_step_starts()
            if rng.random() < 0.02:
                return False
            if self._running and rng.random() < 0.5:
                self._decode()
            self._hear()
        return True

    def _hear(self) -> None:
        payload = self._engine.events()
        if payload is not None:
            self._on_events(payload)
            self._gateway.hear(payload)

    def _decode(self) -> None:
        """One of the running requests goes on by a token, or ends."""
        each = self._rng.choice(self._running)
        is_going = each.decodes > 0 and self._engine.decode(each.request)
        each.decodes -= 1
        if not is_going:
            self._running.remove(each)
            self._engine.manager.free(each.request)
        self._engine.manager.new_step_starts()


def _count(tally: Tally, num_tokens: int, hit: int, believed: int) -> None:
    tally.tokens += num_tokens
    tally.hit += hit
    tally.equal += believed == hit
    tally.too_much += believed > hit
    tally.too_little += believed < hit
    if believed != hit and not tally.first:
        tally.first = [num_tokens, hit, believed]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    init_none_hash(sha256)
    for name in options.only or CASES:
        case, tally = CASES[name], Tally()
        line: dict[str, object] = {"vllm": vllm.__version__, "case": name}
        if case.lookahead and not HAS_LOOKAHEAD:
            continue
        try:
            for seed in range(options.seed, options.seed + options.seeds):
                History(case, seed, tally).run(options.steps)
        except (AssertionError, ValueError, IndexError, NotImplementedError, TypeError) as e:
            if os.environ.get("TB"):
                traceback.print_exc()
            line["cannot"] = f"{type(e).__name__}: {str(e)[:200]}"
        line |= vars(tally)
        print(msgspec.json.encode(line).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
