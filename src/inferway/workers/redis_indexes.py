"""An index on a server, in several processes of one gateway: the hub writes it, workers read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from inferway.kv.index.protocol import Clear, Op, Remove
from inferway.kv.index.redis import RedisIndex
from inferway.model import BlockKey
from inferway.workers.follower import Send
from inferway.workers.messages import Doubt


class WrittenIndex(RedisIndex):
    """The hub's (`teller.HubIndex`). Workers are told of removals only, which say later why a
    prompt was not reused; the rest they read on the server."""

    tell_ops: Callable[[list[Op]], None] | None = None
    tell_dropped: Callable[[Remove], None] | None = None  # never: nothing is

    def apply(self, ops: Iterable[Op]) -> None:
        ops = list(ops)
        super().apply(ops)
        gone: list[Op] = [op for op in ops if isinstance(op, (Remove, Clear))]
        if self.tell_ops is not None and gone:
            self.tell_ops(gone)

    def snapshot(self) -> Iterator[list[Op]]:
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

    def hear(self, ops: Iterable[Op]) -> None:
        """Do nothing: the hub has written it."""

    def asked(self) -> list[BlockKey]:
        return []
