"""What workers tell each other of their requests, so that each decides as if it had sent them all.

The hub passes it on unread: whoever tells many thousand times a second must not cost it much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

import msgspec

from inferway.kv.index.speculative import Speculation, SpeculativeOverlay
from inferway.model import BlockKey, HolderId
from inferway.routing.limits.request_quarantine import RequestQuarantine
from inferway.routing.structured_gate.quarantine import Quarantine
from inferway.scheduling.expected_ttft.known import Known
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Event, Sharing
from inferway.workers.messages import Message, PeerTold

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


class PeerOutbox:
    """Tells the other workers what this one's requests do. Its `overlay` is the worker's."""

    def __init__(
        self,
        place: int,
        send: Callable[[Message], None],
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`place`: of this worker. `soon`: as the overlay takes it."""
        self._place = place
        self.overlay = ToldOverlay(self.tell, soon)
        self._send = send
        self._encoder = msgspec.msgpack.Encoder()
        self._outgoing: list[PeerMessage] = []
        self._flushed = 0.0  # when, by the loop's clock

    def tell(self, message: PeerMessage) -> None:
        if not self._outgoing:
            loop = asyncio.get_running_loop()
            wait = self._flushed + TOGETHER_SECONDS - loop.time()
            if wait > 0:
                loop.call_later(wait, self._flush)
            else:
                loop.call_soon(self._flush)
        self._outgoing.append(message)

    def learned(self, plugin: int, event: Event) -> None:
        """Tell what the plugin of that place has learned."""
        self.tell(Learned(plugin, event))

    def suspected(self, digest: str, engine: str, counts: bool) -> None:
        """Tell as `RequestQuarantine` tells."""
        self.tell(Suspected(digest, engine, counts))

    def judged(self, spec: str, struck: bool) -> None:
        """Tell as `Quarantine` tells."""
        self.tell(Judged(spec, struck))

    def _flush(self) -> None:
        self._flushed = asyncio.get_running_loop().time()
        messages, self._outgoing = self._outgoing, []
        self._send(PeerTold(self._place, self._encoder.encode(messages)))


def shared(
    plugins: Sequence[ExpectedTtft], tell: Callable[[int, Event], None]
) -> Sequence[Sharing]:
    """Have the plugins tell others what they learn, each with its place. Return who takes over what
    the others tell."""
    return [plugin.share(partial(tell, number)) for number, plugin in enumerate(plugins)]


class Peers:
    """Takes over what other workers tell."""

    def __init__(
        self,
        sharing: Sequence[Sharing],
        overlay: ToldOverlay | None = None,
        quarantine: Quarantine | None = None,
        suspects: RequestQuarantine | None = None,
        passes_on: PassesOn | None = None,
    ) -> None:
        """`sharing`: of the plugins of the scheduling that learn. `overlay`: None where no request
        is decided. `quarantine`: None: shapes are the engines' matter. `suspects`: None: no request
        is refused for that. `passes_on`: None: there are no other gateways."""
        self._sharing = sharing
        self._overlay = overlay
        self._quarantine = quarantine
        self._suspects = suspects
        self._passes_on = passes_on
        self._decoder = msgspec.msgpack.Decoder(list[PeerMessage])
        self._heard: dict[tuple[int, int], Speculation] = {}  # (place, number)

    def hear(self, told: PeerTold) -> None:
        """Take over what another process has told, or that it has ended."""
        if not told.payload:
            self._gone(told.place, asyncio.get_running_loop().time())
            return
        for message in self._decoder.decode(told.payload):
            match message:
                case Learned():
                    self._sharing[message.plugin].hear(told.place, message.event)
                    if self._passes_on is not None:
                        self._passes_on.learned(told.place, message.plugin, message.event)
                case Adopted():
                    now = asyncio.get_running_loop().time()
                    self._sharing[message.plugin].adopt(message.known, now)
                case OnItsWay() if self._overlay is not None:
                    heard = self._overlay.hear(message.holder, message.keys)
                    self._heard[told.place, message.number] = heard
                case Arrived() if self._overlay is not None:
                    speculation = self._heard.pop((told.place, message.number), None)
                    if speculation is not None:
                        self._overlay.remove(speculation)
                case Judged() if self._quarantine is not None:
                    self._quarantine.hear(message.spec, message.struck)
                case Suspected() if self._suspects is not None:
                    self._suspects.hear(message.digest, message.engine, message.counts)
        if self._passes_on is not None:
            self._passes_on.heard()

    def _gone(self, place: int, now: float) -> None:
        """Forget what is on its way from a worker that has ended."""
        for key in [key for key in self._heard if key[0] == place]:
            if self._overlay is not None:
                self._overlay.remove(self._heard.pop(key))
        for sharing in self._sharing:
            sharing.gone(place, now)
        if self._passes_on is not None:
            self._passes_on.ended(place, now)
