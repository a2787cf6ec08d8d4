"""The queue for places: by priority, and within one priority fair between tenants.

Fair is start-time fair queueing (Goyal, Vin and Cheng, 1996) with requests of equal cost: each
tenant's next request has a start tag, the later of the queue's virtual time and the end of the
tenant's last one; the smallest goes next, and the virtual time becomes its tag. So of two tenants
that both keep waiting neither is served more than one request ahead of the other, however many
each has sent, and who was idle has saved nothing up. A request is of one *lane*, the model it is
for, and of a tenant's requests only those of one lane keep their order: who waits for a full model
holds up nobody else.

A request's rank, if it is given one, goes before the order of arrival. Who may go on, and whose
turn it is among tenants, a `QueueGate` may say instead.

Who comes when the queue is full displaces the newest request of the tenant that has most of them in
the lowest priority, if that is lower than its own, or if that tenant has more of them than it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter, itemgetter
from typing import Protocol

from inferway.scheduling.flow_control.policies import ChoosesFlow

_SLACK = 16  # what has gone is kept up to as much again, and this
_RANK = attrgetter("rank")

_Entry = tuple[float, float, int, str]  # tag, rank, number, tenant


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits."""

    lane: str
    tenant: str
    priority: int
    deadline: float  # it waits no longer
    came: float
    rank: float = 0.0  # the smaller, the sooner, among its tenant's
    number: int = 0  # in order of arrival


class QueueGate(Protocol):
    """Narrows the requests that may go on (saturation_gate)."""

    def floor(self, lane: str) -> float:
        """Return the lowest priority of which requests of that lane may go on."""

    def chooser(self, priority: int) -> ChoosesFlow | None:
        """Return what chooses among the tenants of that priority; None: they take turns."""


@dataclass(slots=True)
class _Line:
    """One lane's of one priority. Of each tenant the heap has an entry for its first request, with
    its start tag; entries of requests that are not first any more are dropped when they come up."""

    waiting: dict[str, deque[Waiter]] = field(default_factory=dict)  # by tenant; none is empty
    heap: list[_Entry] = field(default_factory=list)
    size: int = 0

    def enter(self, tenant: str, tag: float) -> None:
        """Put the tenant's first request into the heap, once it is another one."""
        first = self.waiting[tenant][0]
        heappush(self.heap, (tag, first.rank, first.number, tenant))
        if len(self.heap) > 2 * len(self.waiting) + _SLACK:
            self.heap = [entry for entry in self.heap if self._is_first(entry)]
            heapify(self.heap)

    def first(self, ends: dict[str, float]) -> _Entry:
        """Return the heap's entry of the request whose turn is next; there must be one."""
        heap = self.heap
        while True:
            tag, rank, number, tenant = heap[0]
            if not self._is_first(heap[0]):
                heappop(heap)
            elif ends.get(tenant, 0.0) > tag:  # served in another lane since
                heapreplace(heap, (ends[tenant], rank, number, tenant))
            else:
                return heap[0]

    def _is_first(self, entry: _Entry) -> bool:
        waiters = self.waiting.get(entry[3])
        return waiters is not None and waiters[0].number == entry[2]


@dataclass(slots=True)
class _Level:
    """The requests of one priority that wait."""

    virtual: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)  # of tenants served lately
    lines: dict[str, _Line] = field(default_factory=dict)  # by lane; none is empty
    sizes: dict[str, int] = field(default_factory=dict)  # of tenants
    size: int = 0

    def begin(self, tenant: str) -> float:
        """Return the start tag of the tenant's next request."""
        return max(self.virtual, self.ends.get(tenant, 0.0))

    def served(self, tenant: str, tag: float) -> None:
        """A request with this tag has had its turn."""
        self.virtual = max(self.virtual, tag)
        self.ends[tenant] = tag + 1.0
        if len(self.ends) > 2 * len(self.sizes) + _SLACK:
            self.ends = {name: end for name, end in self.ends.items() if end > self.virtual}


class FairQueue:
    """See the module. A turn costs log(tenants that wait), whatever they have sent."""

    def __init__(self) -> None:
        self._levels: dict[int, _Level] = {}
        self._lanes: dict[str, int] = {}  # how many wait for each
        self._number = 0
        self.size = 0

    def __iter__(self) -> Iterator[Waiter]:
        for level in self._levels.values():
            for line in level.lines.values():
                for waiters in line.waiting.values():
                    yield from waiters

    def sizes(self) -> dict[int, int]:
        """Return how many wait, by priority."""
        return {priority: level.size for priority, level in self._levels.items()}

    def size_of(self, priority: int) -> int:
        """Return how many of that priority wait."""
        level = self._levels.get(priority)
        return 0 if level is None else level.size

    def lanes(self) -> Collection[str]:
        """Return the lanes in which requests wait."""
        return self._lanes.keys()

    def add(self, waiter: Waiter) -> None:
        self._number += 1
        waiter.number = self._number
        tenant = waiter.tenant
        level = self._levels.get(waiter.priority)
        if level is None:
            level = self._levels[waiter.priority] = _Level()
        line = level.lines.setdefault(waiter.lane, _Line())
        waiters = line.waiting.get(tenant)
        if waiters is None:
            line.waiting[tenant] = deque([waiter])
            line.enter(tenant, level.begin(tenant))
        elif waiter.rank >= waiters[-1].rank:
            waiters.append(waiter)
        else:
            place = bisect_right(waiters, waiter.rank, key=_RANK)
            waiters.insert(place, waiter)
            if not place:
                line.enter(tenant, level.begin(tenant))
        line.size += 1
        level.sizes[tenant] = level.sizes.get(tenant, 0) + 1
        level.size += 1
        self._lanes[waiter.lane] = self._lanes.get(waiter.lane, 0) + 1
        self.size += 1

    def remove(self, waiter: Waiter) -> bool:
        """Take the waiter out of the queue; return False if it does not wait."""
        level = self._levels.get(waiter.priority)
        line = level.lines.get(waiter.lane) if level is not None else None
        waiters = line.waiting.get(waiter.tenant) if line is not None else None
        if level is None or line is None or waiters is None or waiter not in waiters:
            return False
        was_first = waiters[0] is waiter
        waiters.remove(waiter)
        if waiters and was_first:
            line.enter(waiter.tenant, level.begin(waiter.tenant))
        self._gone(level, line, waiter)
        return True

    def pop(
        self, is_open: Callable[[str], bool], gate: QueueGate | None = None, now: float = 0.0
    ) -> Waiter | None:
        """Take out and return the waiter whose turn it is, of those whose lane is open, and whom
        the gate lets go on; None if there is none. `now`: seconds, for the gate."""
        opened = [lane for lane in self._lanes if is_open(lane)]
        floors = {} if gate is None else {lane: gate.floor(lane) for lane in opened}
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            lines = [
                level.lines[lane]
                for lane in opened
                if lane in level.lines and (gate is None or priority >= floors[lane])
            ]
            if not lines:
                continue
            chooser = None if gate is None else gate.chooser(priority)
            if chooser is None:
                entry, line = min(
                    ((line.first(level.ends), line) for line in lines), key=itemgetter(0)
                )
                tag, tenant = entry[0], entry[3]
            else:
                line, tenant = _chosen(lines, chooser, now)
                tag = level.begin(tenant)
            waiter = line.waiting[tenant].popleft()
            level.served(tenant, tag)
            if line.waiting[tenant]:
                line.enter(tenant, level.begin(tenant))
            self._gone(level, line, waiter)
            return waiter
        return None

    def victim(self, priority: int, tenant: str, *, of_its_own: bool = False) -> Waiter | None:
        """Return the waiter whom a newcomer displaces, one of its own priority if there is no more
        room for that; None if the newcomer has no room."""
        lowest = priority if of_its_own else min(self._levels, default=None)
        if lowest is None or lowest > priority or lowest not in self._levels:
            return None
        level = self._levels[lowest]
        most = max(level.sizes, key=level.sizes.__getitem__)
        if lowest == priority and level.sizes[most] <= level.sizes.get(tenant, 0) + 1:
            return None
        newest = [line.waiting[most][-1] for line in level.lines.values() if most in line.waiting]
        return max(newest, key=lambda waiter: waiter.number)

    def ahead(self, lane: str, priority: int, tenant: str) -> int:
        """Return how many of the lane go before a newcomer, if no others come."""
        count = 0
        for other, level in self._levels.items():
            line = level.lines.get(lane)
            if line is None or other < priority:
                continue
            own = len(line.waiting.get(tenant, ()))
            if other > priority:
                count += line.size
            elif not own:
                count += len(line.waiting)
            else:
                count += sum([min(len(waiters), own + 1) for waiters in line.waiting.values()])
        return count

    def _gone(self, level: _Level, line: _Line, waiter: Waiter) -> None:
        lane, tenant = waiter.lane, waiter.tenant
        if not line.waiting[tenant]:
            del line.waiting[tenant]
        line.size -= 1
        if not line.size:
            del level.lines[lane]
        level.size -= 1
        if not level.size:
            del self._levels[waiter.priority]
        self.size -= 1
        _less(level.sizes, tenant)
        _less(self._lanes, lane)


def _chosen(lines: Sequence[_Line], chooser: ChoosesFlow, now: float) -> tuple[_Line, str]:
    """The line and the tenant whose first request goes next."""
    firsts: dict[str, tuple[float, int, _Line]] = {}
    came: dict[str, float] = {}
    for line in lines:
        for tenant, waiters in line.waiting.items():
            first = waiters[0]
            if tenant not in firsts or (first.rank, first.number) < firsts[tenant][:2]:
                firsts[tenant] = (first.rank, first.number, line)
                came[tenant] = first.came
    tenant = chooser.next_flow(came, now)
    return firsts[tenant][2], tenant


def _less(counts: dict[str, int], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
