"""Workers tell each other of their requests, so that each decides as if it had sent them all.

The hub passes it on unread: whoever tells many thousand times a second must not cost it much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from inferway.cluster.bus.peer_messages import OnItsWay, PeerTold, Shared, of_process
from inferway.kv.index.speculative import Speculation, SpeculativeOverlay
from inferway.model import BlockKey, HolderId
from inferway.scheduling.expected_ttft.sharing import Event

# What is told within this time of the last message goes out together, for a message takes three
# processes' time. The first one goes out at once.
TOGETHER_SECONDS = 0.002


class ToldOverlay(SpeculativeOverlay):
    """An overlay whose prompts others are told of as well."""

    def __init__(
        self,
        tell: Callable[[OnItsWay], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        super().__init__(soon)
        self._tell = tell
        self._numbers = count(1)
        self._told: dict[Speculation, int] = {}
        self._heard: dict[tuple[int, int], Speculation] = {}  # (who, number)

    def add(self, holder: HolderId, keys: Sequence[BlockKey], skip: int = 0) -> Speculation:
        speculation = super().add(holder, keys, skip)
        if speculation.active:
            number = self._told[speculation] = next(self._numbers)
            self._tell(OnItsWay(number, holder, speculation.keys))
        return speculation

    def remove(self, speculation: Speculation) -> None:
        super().remove(speculation)
        number = self._told.pop(speculation, None)
        if number is not None:
            self._tell(OnItsWay(number, speculation.holder))

    def hear(self, who: int, told: OnItsWay) -> None:
        """Count a prompt that another worker has sent, or count it no more."""
        if told.keys:
            self._heard[who, told.number] = super().add(told.holder, told.keys)
        elif (speculation := self._heard.pop((who, told.number), None)) is not None:
            super().remove(speculation)

    def gone(self, who: int) -> None:
        """Count nothing more of a worker that has ended."""
        for key in [key for key in self._heard if key[0] == who]:
            super().remove(self._heard.pop(key))


class WorkerOutbox:
    """Tells the other workers what this one's requests do. Its `overlay` is the worker's."""

    def __init__(
        self,
        place: int,
        send: Callable[[PeerTold], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`place`: of this worker. `soon`: as the overlay takes it."""
        self._place = place
        self.overlay = ToldOverlay(self._prompt, soon)
        self._send = send
        self._shared: list[Shared] = []
        self._prompts: list[OnItsWay] = []
        self._is_due = False
        self._flushed = 0.0  # when, by the loop's clock

    def learned(self, plugin: int, event: Event) -> None:
        """Tell what the plugin of that place has learned."""
        self._shared.append(Shared(plugin, event))
        self._flush_soon()

    def _prompt(self, told: OnItsWay) -> None:
        self._prompts.append(told)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        wait = self._flushed + TOGETHER_SECONDS - loop.time()
        if wait > 0:
            loop.call_later(wait, self._flush)
        else:
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushed, self._is_due = asyncio.get_running_loop().time(), False
        payload = of_process(shared=self._shared, prompts=self._prompts)
        self._shared, self._prompts = [], []
        self._send(PeerTold(self._place, payload))
