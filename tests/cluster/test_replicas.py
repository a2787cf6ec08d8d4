"""Gateways take places among those that there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from tests.cluster.gateways import NAMES, Gateway

from inferway.cluster.bus.inbox import Inbox
from inferway.cluster.bus.replicas import Replicas
from inferway.scheduling.expected_ttft.sharing import Sharing


class Wire:
    """A transport that hands on what is sent within the process."""

    kind = "wire"
    endpoint = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self.others: list[Wire] = []
        self.heard: Callable[[str, bytes], None]
        self.lost: Callable[[str], None]

    async def open(self, heard: Callable[[str, bytes], None], lost: Callable[[str], None]) -> None:
        self.heard, self.lost = heard, lost

    async def close(self) -> None:
        self.others.clear()

    def send(self, payload: bytes) -> None:
        for other in self.others:
            other.heard(self.name, payload)

    def forget(self, address: str) -> None:
        """It has nothing of it."""


class Placed(Sharing):
    """One that notes what places it was given."""

    def __init__(self, gateway: Gateway) -> None:
        of = gateway.sharing
        super().__init__(of.learning, of.slots, of.tell)
        self.stands: asyncio.Queue[tuple[str, list[str]]] = asyncio.Queue()

    def stand(self, own: str, others: Collection[str]) -> None:
        self.stands.put_nowait((own, list(others)))


async def test_who_comes_and_goes_is_known_to_those_that_stand_among_them() -> None:
    wires = [Wire("first"), Wire("second")]
    found = [Placed(Gateway(1)), Placed(Gateway(2))]
    made = []
    for number, (wire, placed) in enumerate(zip(wires, found, strict=True), start=1):
        gateway = Gateway(number)
        wire.others = [other for other in wires if other is not wire]
        parts = (gateway.outbox, Inbox([placed]), gateway.table, wire)
        made.append(Replicas(*parts, lambda: iter(NAMES)))
    for each in made:
        await each.open()
    try:
        async with asyncio.timeout(30):
            stands = [await placed.stands.get() for placed in found]
        names = [own for own, _ in stands]
        assert len(set(names)) == 2
        assert [others for _, others in stands] == [[names[1]], [names[0]]]

        wires[0].lost("second")

        assert found[0].stands.get_nowait() == (names[0], [])
    finally:
        for each in made:
            await each.close()
