"""An index on a server, in several processes of one gateway: the hub writes it, workers read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from inferway.kv.index.changes import BlockChange, IndexChanges
from inferway.kv.index.holder_sets import NOBODY
from inferway.kv.index.protocol import FULL_ATTENTION, Clear, Op, Remove
from inferway.kv.index.redis import RedisIndex
from inferway.model import BlockKey
from inferway.workers.follower import Send
from inferway.workers.messages import Doubt


class WrittenIndex(RedisIndex):
    """The hub's (`teller.HubIndex`). Workers are told of removals only, which say later why a
    prompt was not reused; the rest they read on the server."""

    _tell_changes: Callable[[IndexChanges], None] | None = None

    def tell_to(self, tell: Callable[[IndexChanges], None] | None) -> None:
        """Tell of removals from now on; with None no more."""
        self._tell_changes = tell

    def apply(self, ops: Iterable[Op]) -> None:
        ops = list(ops)
        super().apply(ops)
        removed = [
            BlockChange(NOBODY, list(op.keys), op.holder, is_removal=op.group == FULL_ATTENTION)
            for op in ops
            if isinstance(op, Remove)
        ]
        cleared = [op.holder for op in ops if isinstance(op, Clear)]
        if self._tell_changes is not None and (removed or cleared):
            self._tell_changes(IndexChanges(removed, cleared))

    def picture(self) -> Iterator[IndexChanges]:
        """Yield nothing."""
        return iter(())

    def note_matched(self, keys: Iterable[BlockKey]) -> None:
        """Do nothing: nothing is dropped."""


class ReadIndex(RedisIndex):
    """A worker's (`follower.WorkerIndex`): it never says how true a picture is, and so has no
    lease."""

    send: Send

    def apply(self, ops: Iterable[Op]) -> None:
        self.send(Doubt(list(ops)))

    def hear(self, changes: IndexChanges) -> None:
        """Do nothing: the hub has written it."""

    def asked(self) -> list[BlockKey]:
        return []
