"""One engine's events on the gateway's way to the index, without the subscriber's sockets."""

from __future__ import annotations

from collections.abc import Iterable

from inferway.events.adapters.sglang import open_batch
from inferway.events.apply import EngineBlocks
from inferway.events.dialect import DialectFinder, DialectState
from inferway.events.event import BlockStored
from inferway.events.follower import EngineFollower
from inferway.events.stream import StreamState
from inferway.index.memory import MemoryIndex
from inferway.model import HolderId


class FollowedEngine:
    """In step with an engine that has stored nothing yet. On is what the gateway has on: order and
    digests of batches, orphans, copies, losses; from `find_dialect` on, the check of its hashes."""

    def __init__(self, holder: HolderId, block_size: int, index: MemoryIndex) -> None:
        self.blocks = EngineBlocks(holder, block_size, holdings=index)
        self.follower = EngineFollower(self.blocks, holdings=index)
        self._finder = DialectFinder()
        self._index = index
        self._seq = 0
        for steps in (self.follower.resume(), self.follower.replay_ended(True)):
            for _ in steps:  # nothing to be done: the engine has answered that it has nothing
                pass

    def find_dialect(self, payloads: Iterable[bytes]) -> None:
        """Until it is known how the blocks of these are hashed, or that it is none of the ways we
        know, as with random hashes. The gateway does so beside the first events."""
        for payload in payloads:
            for event in open_batch(payload).decoded().events:
                if isinstance(event, BlockStored):
                    self._finder.see(event)
            while self._finder.has_work:
                self._finder.step(64)
            if self._finder.state is not DialectState.UNKNOWN:
                break
        self.blocks.verify_hashes(self._finder)

    def apply(self, payloads: Iterable[bytes]) -> None:
        """The next batches."""
        live, index = self.follower.live, self._index
        for seq, payload in enumerate(payloads, self._seq):
            for step in live(seq, payload):
                assert isinstance(step, list)
                index.apply(step)
            self._seq = seq + 1
        assert self.follower.state is StreamState.EXACT
