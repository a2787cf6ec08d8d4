"""One holder's way into Redis: what to write next, and what an answer means; and all holders that
this gateway knows. No I/O, no clock.

    lease    picture in Redis     what comes next
    none     not ours             nothing; operations still go into `chains`, for the day we write
    ours     unknown              begin: all that is attached, piece by piece, into a new picture,
                                  then what has changed meanwhile; the last batch puts it in place
    ours     ours                 what has changed, in the order in which it did

A batch is kept until it is answered and sent again as it is if its answer is lost; its number
tells the server whether it has been there. Changes wait as keys, each once, however often it
changed, and are looked up when their batch is made. When more has changed than there is, and
more than `max_pending`, a new picture is the shorter way: so the queue is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, islice

from inferway.kv.index.protocol import (
    FULL_ATTENTION,
    Clear,
    Copy,
    LastReport,
    Op,
    Remove,
    Store,
    Tier,
    Window,
)
from inferway.kv.index.redis.chains import Chains
from inferway.model import BlockKey, HolderId

Arg = bytes | str | int


@dataclass(frozen=True, slots=True)
class Write:
    """One call of scripts.WRITE for the holder `name`."""

    name: str
    args: Sequence[Arg]
    num_keys: int
    complete: bool  # after it, Redis has all that was known when the batch was made


class Mode(StrEnum):
    """The modes of scripts.WRITE, in its words."""

    BEGIN = "begin"
    MORE = "more"
    WIPE = "wipe"
    LIVE = "live"


class WriteAnswer(StrEnum):
    """What scripts.WRITE answers."""

    OK = "ok"
    DONE = "done"
    FENCED = "fenced"
    STEP = "step"


@dataclass(slots=True)
class WriterStats:
    """Plain integers, read when somebody scrapes."""

    batches: int = 0
    keys: int = 0  # in those batches
    pictures: int = 0  # written from scratch
    fenced: int = 0  # batches refused because the lease had gone to another gateway
    repairs: int = 0  # pictures begun because Redis had not what it should


# A set in Redis, as its key ends.
SetName = str

# A set, + or -, the keys that go into it or are taken from it.
Change = tuple[SetName, str, Sequence[BlockKey]]


class Changes:
    """First what is being written (a whole picture, or what had changed when the last of it was
    taken), then what changes meanwhile.

    What is taken is looked up when it is written. A key of the first kind that has changed again
    waits for its new turn, so that a set closed under "parent of" stays so after each of them.
    """

    def __init__(self, everything: Iterable[Iterable[BlockKey]] | None = None) -> None:
        """`everything`, in pieces, is to be written first."""
        self._new: dict[BlockKey, None] = {}
        self._going: Iterator[BlockKey] | None = None
        if everything is not None:
            self._going = chain.from_iterable(everything)

    def __bool__(self) -> bool:
        return self._going is not None or bool(self._new)

    def __len__(self) -> int:
        """How many have changed since the last began to be written."""
        return len(self._new)

    def note(self, keys: Sequence[BlockKey]) -> None:
        """Note that these have changed, in this order."""
        new = self._new
        if not new.keys().isdisjoint(keys):
            for key in keys:
                new.pop(key, None)
        new.update(dict.fromkeys(keys))

    def take(self, limit: int) -> Sequence[BlockKey]:
        """Return the next keys to write. Fewer than `limit` may be all for now, but not the
        last."""
        if self._going is None:
            if not self._new:
                return ()
            self._going, self._new = iter(self._new), {}
        taken = list(islice(self._going, limit))
        if len(taken) < limit:
            self._going = None
        if self._new:
            return [key for key in taken if key not in self._new]
        return taken


@dataclass(slots=True, eq=False)
class HolderWriter:
    """Written by `RedisIndex` alone. `name`: the holder's, the same in every gateway; None until
    it is introduced."""

    stats: WriterStats
    max_pending: int
    ttl_ms: int  # of what is written
    name: str | None = None
    told: LastReport | None = None
    lease: str | None = None
    mode: Mode = Mode.BEGIN
    batch: int = 0  # number of the last one made
    sent: Write | None = None  # made and not answered
    _chains: Chains = field(default_factory=Chains)
    _windows: dict[int, int] = field(default_factory=dict)
    _changes: dict[int, Changes] = field(default_factory=lambda: {FULL_ATTENTION: Changes()})
    _news: bool = False  # `told` or windows have changed
    _rubble: list[Iterator[None]] = field(default_factory=list)  # of what was cleared

    @property
    def num_blocks(self) -> int:
        return len(self._chains)

    @property
    def num_pending(self) -> int:
        """How many keys wait to be written."""
        return sum(len(changes) for changes in self._changes.values())

    @property
    def able(self) -> bool:
        """Whether this gateway may be the holder's writer."""
        return self.name is not None and self.told is not None and self.told.fit

    @property
    def busy(self) -> bool:
        """Whether this gateway is the writer and Redis does not have everything that it knows."""
        return self.lease is not None and (self.sent is not None or not self._nothing_new())

    def num_bytes(self) -> int:
        """Return about what it takes, without what waits to be written."""
        return self._chains.num_bytes()

    # what is known

    def apply(self, op: Op) -> None:
        match op:
            case Store(_, keys, parent, tier, group):
                self._note(group, self._chains.store(keys, parent, tier, group))
            case Copy(_, keys, tier, group):
                self._note(group, self._chains.copy(keys, tier, group))
            case Remove(_, keys, tier, group):
                self._note(group, self._chains.remove(keys, tier, group))
            case Clear():
                self._clear()
            case Window(_, group, blocks):
                self._news |= self._windows.get(group, 0) != blocks
                self._windows[group] = blocks

    def held(self, keys: Sequence[BlockKey], tier: Tier, group: int) -> list[BlockKey]:
        """Return those of `keys` that lie there, in their order."""
        return [key for key in keys if self._chains.lies_in(key, tier, group)]

    def clear_up(self) -> bool:
        """Free a piece of what was cleared: a million blocks at once take 60 ms. Returns whether
        there was one."""
        while self._rubble:
            for _ in self._rubble[-1]:
                return True
            self._rubble.pop()
        return False

    def tell(self, told: LastReport) -> None:
        self._news |= told != self.told
        self.told = told

    def _clear(self) -> None:
        self._rubble.append(self._chains.dismantle())
        self._chains, self._windows = Chains(), {}
        self._changes = {FULL_ATTENTION: Changes()}
        self.mode = Mode.WIPE if self.mode in (Mode.LIVE, Mode.WIPE) else Mode.BEGIN

    def _note(self, group: int, keys: Sequence[BlockKey]) -> None:
        if self.lease is None or self.mode is Mode.BEGIN:
            return  # a new picture is going to have it
        changes = self._changes.get(group)
        if changes is None:
            changes = self._changes[group] = Changes()
        changes.note(keys)
        if len(changes) > max(self.max_pending, len(self._chains)):
            self._begin()

    # what is written

    def leased(self, lease: str | None) -> None:
        """Take whose lease it is, as the server says; None: not ours. A new one begins a new
        picture."""
        if lease != self.lease:
            self.lease = lease
            self.sent = None
            self._begin()

    def next_write(self, limit: int) -> Write | None:
        """Return the batch to send now, of at most `limit` keys; the last one again until
        `answered`."""
        if self.lease is None or self.name is None:
            return None
        if self.sent is None and not self._nothing_new():
            self.sent = self._make(limit)
        return self.sent

    def answered(self, answer: WriteAnswer) -> None:
        """Take what the server said to the batch in `sent`."""
        sent, self.sent = self.sent, None
        if sent is None:
            return
        if answer is WriteAnswer.FENCED:
            self.stats.fenced += 1
            self.leased(None)
        elif answer is WriteAnswer.STEP:
            self.stats.repairs += 1
            self._begin()
        else:
            self.stats.batches += 1
            self.stats.keys += sent.num_keys

    @property
    def settled(self) -> int | None:
        """The number of the last batch, if the server has said that it has all that we know."""
        return None if self.lease is None or self.busy else self.batch

    def audit(self, settled: int | None, batch: int, num_held: int) -> None:
        """Take what the server said: that `batch` was the last, with so many keys in `held`. If all
        was settled when it was asked, and is, both must be ours; a server that has lost something,
        or all, is written anew."""
        if settled is None or settled != self.settled:
            return
        if batch != self.batch or num_held != self._chains.num_attached:
            self.stats.repairs += 1
            self._begin()

    def _begin(self) -> None:
        self.mode = Mode.BEGIN
        self._changes = {FULL_ATTENTION: Changes()}

    def _nothing_new(self) -> bool:
        return self.mode is Mode.LIVE and not self._news and not any(self._changes.values())

    def _make(self, limit: int) -> Write:
        mode = self.mode
        if mode is Mode.BEGIN:
            self.stats.pictures += 1
            self._changes = {FULL_ATTENTION: Changes(self._chains.attached())}
            for group in self._chains.other_groups:
                self._changes[group] = Changes(self._chains.members(group))
            self.mode = Mode.MORE
        taken: dict[int, Sequence[BlockKey]] = {}
        for group, changes in self._changes.items():
            taken[group] = changes.take(limit)
            limit -= len(taken[group])
        complete = not any(self._changes.values())
        if complete or mode is Mode.WIPE:
            self.mode = Mode.LIVE
        return self._write(mode, taken, complete)

    def _write(self, mode: Mode, taken: Mapping[int, Sequence[BlockKey]], complete: bool) -> Write:
        assert self.name is not None
        assert self.lease is not None
        assert self.told is not None
        told = self.told
        self.batch += 1
        if complete:
            self._news = False
        args: list[Arg] = [
            *(self.lease, self.batch, mode, int(complete), self.ttl_ms, " ".join(self._sets())),
            " ".join(f"{group}:{blocks}" for group, blocks in self._windows.items() if blocks),
            " ".join(map(str, self._chains.lower_tiers)),
            *(told.state, "" if told.seq is None else told.seq, told.digest),
        ]
        for group, keys in taken.items():
            for name, sign, members in self._of(group, keys):
                if members:
                    args += (name, sign, struct.pack(f"<{len(members)}Q", *members))
        return Write(self.name, args, sum(map(len, taken.values())), complete)

    def _sets(self) -> list[SetName]:
        groups = sorted({*self._chains.other_groups, *self._windows})
        return ["held", *(f"t{t}" for t in self._chains.lower_tiers), *(f"g{g}" for g in groups)]

    def _of(self, group: int, keys: Sequence[BlockKey]) -> Iterator[Change]:
        if group != FULL_ATTENTION:
            yield f"g{group}", "+", [key for key in keys if self._chains.is_in(key, group)]
            yield f"g{group}", "-", [key for key in keys if not self._chains.is_in(key, group)]
            return
        tiers = [(key, self._chains.tier(key)) for key in keys]
        yield "held", "+", [key for key, tier in tiers if tier is not None]
        yield "held", "-", [key for key, tier in tiers if tier is None]
        for lower in self._chains.lower_tiers:
            yield f"t{lower}", "+", [key for key, tier in tiers if tier == lower]
            yield f"t{lower}", "-", [key for key, tier in tiers if tier != lower]


class HolderRegistry:
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
        """Return the holder's own writer, made when it is first asked for."""
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
        """Forget a holder. Returns its writer; None if it was not here."""
        writer = self._writers.pop(holder, None)
        self._rename()
        return writer

    def leased(self, holder: HolderId) -> HolderWriter | None:
        """Return the holder's writer, if the lease is ours."""
        writer = self._writers.get(holder)
        return writer if writer is not None and writer.lease is not None else None

    def leased_names(self) -> list[str]:
        """Return the names of all holders whose lease is ours."""
        return [w.name for w in self._writers.values() if w.lease is not None and w.name]

    def _rename(self) -> None:
        named = [(h, w.name) for h, w in self._writers.items() if w.name is not None]
        self.named = tuple(holder for holder, _ in named)
        self.names = tuple(name for _, name in named)
