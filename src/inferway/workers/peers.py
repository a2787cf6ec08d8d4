"""What workers tell each other of their requests, so that each decides as if it had sent them all.

The hub passes it on unread: whoever tells many thousand times a second must not cost it much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

import msgspec

from inferway.kv.index.speculative import Speculation, SpeculativeOverlay
from inferway.model import BlockKey, HolderId
from inferway.routing.limits.request_quarantine import RequestQuarantine
from inferway.routing.structured_gate.quarantine import Quarantine
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event
from inferway.workers.messages import FromOther, Message, ToOthers

# What is told within this time of the last message goes out together, for a message takes three
# processes' time. The first one goes out at once.
TOGETHER_SECONDS = 0.002


class OnItsWay(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A prompt is on its way to a holder, and its blocks count as held there."""

    number: int  # among those of its worker
    holder: HolderId
    keys: Sequence[BlockKey]


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """They count no more."""

    number: int


class Learned(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What one of the scheduling's plugins has learned, by its place among them."""

    plugin: int
    event: Event


class Adopted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What a plugin of another gateway has learned, for those that do not know it yet."""

    plugin: int
    known: Known


class Judged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An engine was lost with a spec (`struck`), or has answered it to the end."""

    spec: str
    struck: bool


class Suspected(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An engine was lost with a request, or does not count any more (`RequestQuarantine.tell`)."""

    digest: str
    engine: str
    counts: bool


PeerMessage = OnItsWay | Arrived | Learned | Adopted | Judged | Suspected


class PassesOn(Protocol):
    """Who tells other gateways what workers tell each other. `place`: of the worker."""

    def learned(self, place: int, plugin: int, event: Event) -> None: ...
    def heard(self) -> None: ...
    def ended(self, place: int, now: float) -> None: ...


class ToldOverlay(SpeculativeOverlay):
    """An overlay whose prompts others are told of as well."""

    def __init__(
        self,
        tell: Callable[[PeerMessage], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        super().__init__(soon)
        self._tell = tell
        self._numbers = count(1)
        self._told: dict[Speculation, int] = {}

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
            self._tell(Arrived(number))

    def hear(self, holder: HolderId, keys: Sequence[BlockKey]) -> Speculation:
        """Count a prompt that another worker has sent. `remove` it."""
        return super().add(holder, keys)


class Peers:
    """`tell` the other workers, and `hear` them."""

    def __init__(
        self,
        send: Callable[[Message], None],
        plugins: Sequence[ExpectedTtft],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`plugins`: those of the scheduling that learn. `soon`: as the overlay takes it."""
        self.overlay = ToldOverlay(self.tell, soon)
        self.quarantine: Quarantine | None = None  # None: shapes are the engines' matter
        self.suspects: RequestQuarantine | None = None  # None: no request is refused for that
        self._send = send
        self.passes_on: PassesOn | None = None  # None: there are no other gateways
        self.sharing = [
            plugin.share(lambda event, number=number: self.tell(Learned(number, event)))  # type: ignore[misc]
            for number, plugin in enumerate(plugins)
        ]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[PeerMessage])
        self._outgoing: list[PeerMessage] = []
        self._flushed = 0.0  # when, by the loop's clock
        self._heard: dict[tuple[int, int], Speculation] = {}  # (place, number)

    def tell(self, message: PeerMessage) -> None:
        if not self._outgoing:
            loop = asyncio.get_running_loop()
            wait = self._flushed + TOGETHER_SECONDS - loop.time()
            if wait > 0:
                loop.call_later(wait, self._flush)
            else:
                loop.call_soon(self._flush)
        self._outgoing.append(message)

    def watch(self, quarantine: Quarantine) -> None:
        """Tell the others what becomes of specs, too."""
        self.quarantine = quarantine
        quarantine.tell = self._judged

    def watch_requests(self, suspects: RequestQuarantine) -> None:
        """Tell the others which requests engines were lost with, too."""
        self.suspects = suspects
        suspects.tell = self._suspected

    def _suspected(self, digest: str, engine: str, counts: bool) -> None:
        self.tell(Suspected(digest, engine, counts))

    def _judged(self, spec: str, struck: bool) -> None:
        self.tell(Judged(spec, struck))

    def hear(self, told: FromOther) -> None:
        """Take over what another worker has told."""
        for message in self._decoder.decode(told.payload):
            match message:
                case Learned():
                    self.sharing[message.plugin].hear(told.place, message.event)
                    if self.passes_on is not None:
                        self.passes_on.learned(told.place, message.plugin, message.event)
                case Adopted():
                    now = asyncio.get_running_loop().time()
                    self.sharing[message.plugin].adopt(message.known, now)
                case OnItsWay():
                    heard = self.overlay.hear(message.holder, message.keys)
                    self._heard[told.place, message.number] = heard
                case Judged() if self.quarantine is not None:
                    self.quarantine.hear(message.spec, message.struck)
                case Suspected() if self.suspects is not None:
                    self.suspects.hear(message.digest, message.engine, message.counts)
                case Arrived():
                    speculation = self._heard.pop((told.place, message.number), None)
                    if speculation is not None:
                        self.overlay.remove(speculation)
        if self.passes_on is not None:
            self.passes_on.heard()

    def gone(self, place: int, now: float) -> None:
        """Forget what is on its way from a worker that has ended."""
        for key in [key for key in self._heard if key[0] == place]:
            self.overlay.remove(self._heard.pop(key))
        for sharing in self.sharing:
            sharing.gone(place, now)
        if self.passes_on is not None:
            self.passes_on.ended(place, now)

    def _flush(self) -> None:
        self._flushed = asyncio.get_running_loop().time()
        messages, self._outgoing = self._outgoing, []
        self._send(ToOthers(self._encoder.encode(messages)))
