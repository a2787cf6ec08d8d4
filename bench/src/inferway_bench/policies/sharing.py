"""What several gateways before one simulated fleet tell each other, and when the others know it.

The workers of one machine count their requests in memory that all of them read, and one process
scrapes the engines for all. Gateways on several machines tell each other how many requests they
have at each engine. Both tell what their plugins learn
(`inferway.scheduling.expected_ttft.sharing`), and which prompts are on their way, unless those are
left out. What is told within a short time goes out together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from inferway.cluster.bus.peer_messages import OnItsWay
from inferway.cluster.bus.peer_messages import Shared as Learned
from inferway.cluster.bus.workers import TOGETHER_SECONDS, ToldOverlay
from inferway.kv.index.speculative import SpeculativeOverlay
from inferway.model import Candidates
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sent_log import ROW
from inferway.scheduling.expected_ttft.sharing import Begins, Event, Took, Waits, open_logs
from inferway_bench.processes import BenchError

_TOGETHER_MS = 20.0  # of gateways on several machines, at most


class SharingSpec(msgspec.Struct, frozen=True):
    """What is shared, and how late."""

    together_seconds: float  # what is told within this time goes out at its end
    way_seconds: float  # from there to the others
    one_machine: bool = False  # its processes share their counts, what is scraped, and a clock
    prompts: bool = True  # those on their way are told, too

    @property
    def delay_seconds(self) -> float:
        """The longest time from what happens to the others' knowing it."""
        return self.together_seconds + self.way_seconds


WORKERS = SharingSpec(TOGETHER_SECONDS, 0.0003, one_machine=True)
_KNOWN = "workers, and load@MS, peers@MS with the milliseconds until others know, such as peers@20"


def sharing_named(name: str) -> SharingSpec:
    """Return what is shared. Raises BenchError for a name that is not known."""
    kind, _, ms = name.partition("@")
    if name == "workers":
        return WORKERS
    if kind in ("load", "peers") and ms.isdecimal():
        together = min(float(ms), _TOGETHER_MS)
        way = float(ms) - together
        return SharingSpec(together / 1e3, way / 1e3, prompts=kind == "peers")
    raise BenchError(f"sharing {name!r} is not known; known: {_KNOWN}")


class Counted(msgspec.Struct, frozen=True):
    """So many requests more are at an engine, of which so many tokens are to be computed."""

    row: int
    by: int
    new_tokens: float


Message = Learned | OnItsWay | Counted


class Post:
    """What the gateways have told each other, until the others hear it."""

    def __init__(self, spec: SharingSpec, num_gateways: int, clock: Callable[[], float]) -> None:
        self.spec = spec
        self.num_gateways = num_gateways
        self._clock = clock
        # By gateway: the last batch that it tells, and until when it grows.
        self._batches: list[tuple[float, list[Message]]] = [(-1.0, []) for _ in range(num_gateways)]
        # By gateway: (when it comes, who tells it, the batch), in order.
        self._coming: list[deque[tuple[float, int, list[Message]]]] = [
            deque() for _ in range(num_gateways)
        ]
        # what processes of one machine write of what they send
        self.sent = np.zeros((num_gateways, ROW))

    def tell(self, who: int, message: Message) -> None:
        """Tell all others what has happened now."""
        now = self._clock()
        until, batch = self._batches[who]
        if now > until:
            last, until, batch = until, now + self.spec.together_seconds, []
            if self.spec.one_machine:  # the first message waits for no others
                until = max(now, last + self.spec.together_seconds)
            self._batches[who] = until, batch
            for other, coming in enumerate(self._coming):
                if other != who:
                    coming.append((until + self.spec.way_seconds, who, batch))
        batch.append(message)

    def arrived(self, where: int, now: float) -> Iterator[tuple[int, Message]]:
        """Yield who told what, of all that has come before `now`, once."""
        coming = self._coming[where]
        while coming and coming[0][0] < now:
            _, who, batch = coming.popleft()
            for message in batch:
                yield who, message


class Shared:
    """One gateway's part: it tells the others what it does, and takes over what they tell."""

    def __init__(
        self, place: int, post: Post, plugins: Sequence[ExpectedTtft], table: Candidates
    ) -> None:
        """`place`: its number among the gateways. `table`: where it counts requests."""
        self._place = place
        self._post = post
        self._table = table
        self._told = ToldOverlay(self._tell)
        self.overlay = self._told if post.spec.prompts else SpeculativeOverlay()
        delay = 0.0 if post.spec.one_machine else post.spec.delay_seconds
        self._sharing = [
            plugin.share(partial(self._learned, number), delay)
            for number, plugin in enumerate(plugins)
        ]
        others = [f"{other:04}" for other in range(post.num_gateways) if other != place]
        for each in self._sharing:
            each.stand(f"{place:04}", others)
        if post.spec.one_machine:
            open_logs(self._sharing, post.sent, place)

    def count(self, row: int, by: int, new_tokens: float) -> None:
        """Tell that the counts of an engine have changed."""
        if not self._post.spec.one_machine:
            self._tell(Counted(row, by, new_tokens))

    def hear(self, now: float) -> None:
        """Take over what has come by now."""
        for who, message in self._post.arrived(self._place, now):
            match message:
                case Counted():
                    self._table.in_flight[message.row] += message.by
                    self._table.recent_prefill_tokens[message.row] += message.new_tokens
                case Learned():
                    self._sharing[message.plugin].hear(who, self._at_our_time(message.event))
                case OnItsWay():
                    self._told.hear(who, message)

    def _tell(self, message: Message) -> None:
        self._post.tell(self._place, message)

    def _learned(self, plugin: int, event: Event) -> None:
        self._tell(Learned(plugin, event))

    def _at_our_time(self, event: Event) -> Event:
        """Clocks of machines differ, so a message says how long ago something was when it went out.
        How long it was on its way nobody knows."""
        if self._post.spec.one_machine or not isinstance(event, Waits | Begins | Took):
            return event
        return msgspec.structs.replace(event, at=event.at + self._post.spec.way_seconds)
