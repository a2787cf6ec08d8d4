"""The holders that this gateway knows, each with its writer, and what the server calls them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from inferway.index.redis.writer import HolderWriter, WriterStats
from inferway.model import HolderId


class Roll:
    """A holder is here from its first operation on, and has a name once it is introduced."""

    def __init__(self, prefix: str, stats: WriterStats, max_pending: int, ttl_ms: int) -> None:
        self._prefix = prefix
        self._make = partial(HolderWriter, stats, max_pending, ttl_ms)
        self._writers: dict[HolderId, HolderWriter] = {}
        self.named: tuple[HolderId, ...] = ()
        self.names: tuple[str, ...] = ()  # theirs, in the same order, as the server has them

    @property
    def writers(self) -> Mapping[HolderId, HolderWriter]:
        return self._writers

    def writer(self, holder: HolderId) -> HolderWriter:
        """Its own, made when it is first asked for."""
        writer = self._writers.get(holder)
        if writer is None:
            writer = self._writers[holder] = self._make()
        return writer

    def introduce(self, holder: HolderId, name: str) -> None:
        """Raises ValueError if another one has that name."""
        if self._prefix + name in self.names:
            raise ValueError(f"holder {name!r} is there already; each needs a name of its own")
        self.writer(holder).name = self._prefix + name
        self._rename()

    def remove(self, holder: HolderId) -> HolderWriter | None:
        """None: it was not here."""
        writer = self._writers.pop(holder, None)
        self._rename()
        return writer

    def leased(self, holder: HolderId) -> HolderWriter | None:
        """Its writer, if the lease is ours."""
        writer = self._writers.get(holder)
        return writer if writer is not None and writer.lease is not None else None

    def leased_names(self) -> list[str]:
        """Of all holders whose lease is ours."""
        return [w.name for w in self._writers.values() if w.lease is not None and w.name]

    def _rename(self) -> None:
        named = [(h, w.name) for h, w in self._writers.items() if w.name is not None]
        self.named = tuple(holder for holder, _ in named)
        self.names = tuple(name for _, name in named)
