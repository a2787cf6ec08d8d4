"""What vLLM's publishers write of groups of KV caches, and what vLLM reuses then: recorded
(tests/golden/events), and known here to the token."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.blocks.places import PromptPlaces
from inferway.kv.events.adapters import vllm
from inferway.kv.events.apply import EngineBlocks
from inferway.kv.events.dialect_finder import DialectFinder
from inferway.kv.events.event_applier import EventApplier
from inferway.kv.events.groups import CacheFacts
from inferway.kv.events.hidden_places import Beside
from inferway.kv.events.stream import StreamState
from inferway.kv.index.memory import MemoryIndex
from inferway.model import block_size_of, lookahead_of

FILES = sorted((Path(__file__).parents[2] / "golden" / "events").glob("vllm_groups_*.json"))


def recordings() -> Iterator[Any]:
    for file in FILES:
        for name, recorded in json.loads(file.read_text()).items():
            yield pytest.param(recorded, id=f"{file.stem.removeprefix('vllm_groups_')} {name}")


class Gateway:
    """What is believed of the engine that has published it."""

    def __init__(self, facts: CacheFacts) -> None:
        self.index = MemoryIndex()
        self.blocks = EngineBlocks(
            0, facts.block_size, holdings=self.index, cache_facts=lambda: facts
        )
        self.blocks.verify_hashes(DialectFinder(hash_size=lambda: self.blocks.hash_size))
        self.applier = EventApplier(
            self.blocks, adapter=vllm.open_batch, can_replay=False, holdings=self.index
        )
        self.do(self.applier.resume())

    def do(self, steps: Iterable[object]) -> None:
        for step in steps:
            assert isinstance(step, list)
            self.index.apply(step)

    def reused(self, tokens: list[int]) -> int:
        """As believed; then the prompt goes to the engine."""
        cut = self.blocks.cut_seen
        if cut is None:
            return 0
        hasher = BlockHasher(block_size_of(cut), 0, lookahead_of(cut))
        ids = np.array(tokens, np.uint32)
        keys = hasher.keys(ids)
        found = self.index.match_now(keys, PromptPlaces(hasher, ids, keys))
        self.do(self.blocks.expect_prompt(tokens, keys, Beside()))
        if found.reuse:
            return found.reuse[0].tokens
        return min(found.blocks.get(0, 0), (len(tokens) - 1) // hasher.block_size) * (
            hasher.block_size
        )


@pytest.mark.parametrize("recorded", [*recordings()])
def test_what_is_believed_is_what_was_reused(recorded: dict[str, Any]) -> None:
    gateway, heard = Gateway(CacheFacts(**recorded["facts"])), 0
    believed = []

    for num_published, tokens, _ in recorded["look_ups"]:
        for payload in recorded["payloads"][heard:num_published]:
            gateway.do(gateway.applier.live(heard, base64.b64decode(payload)))
            heard += 1
        believed.append(gateway.reused(tokens))

    assert believed == [hit for _, _, hit in recorded["look_ups"]]
    assert any(believed)
    assert not gateway.applier.stats.skipped
    assert gateway.applier.state in (StreamState.EXACT, StreamState.PARTIAL)


def test_both_versions_are_recorded() -> None:
    assert [file.stem.rpartition("_")[2][:4] for file in FILES] == ["0.32", "0.33"]
