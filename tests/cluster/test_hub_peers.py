"""A hub tells other gateways what its workers send, and its workers what the others do."""

from __future__ import annotations

import asyncio

from tests.cluster.gateways import NAMES, Gateway
from tests.cluster.test_peers import told as all_is_told
from tests.cluster.test_replicas import Wire

from inferway.cluster.bus.inbox import Inbox, shared
from inferway.cluster.bus.messages import Message
from inferway.cluster.bus.peer import FIRST_NUMBER
from inferway.cluster.bus.peer_messages import (
    PeerMessage,
    PeerTold,
    Shared,
    decode_peer,
    of_process,
)
from inferway.cluster.bus.replicas import Replicas
from inferway.cluster.bus.workers import WorkerOutbox
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Begins, Comes, Kind, Sharing, Waits


def waits(number: int) -> Waits:
    return Waits("a", number, 10.0, 5.0, 1.0, 5.0, 10.0, 20.0)


def sharing(plugin: ExpectedTtft) -> list[Sharing]:
    return [*shared([plugin], lambda *_: None)]


def test_requests_of_all_workers_are_those_of_their_hub_and_end_with_the_worker() -> None:
    hub, other = Gateway(1), Gateway(2)

    def believed() -> tuple[list[float], list[float]]:
        for payload in hub.says(2.0):
            other.hear(1, payload, 2.0)
        found = other.believes(2.0)
        return found["waiting"], found["coming"]

    other_of = hub.says_all(1.0)
    for payload in other_of:
        other.hear(1, payload, 1.0)
    for place in (1, 2):  # each with numbers of its own
        hub.outbox.tell(0, waits(1), place)
        hub.outbox.tell(0, Comes("b", 2.0), place)
    assert believed() == ([2.0, 0.0, 0.0], [0.0, 4.0, 0.0])

    hub.outbox.tell(0, Begins(1, 2.0, is_assumed=False), 2)
    hub.outbox.tell(0, Begins(1, 2.0, is_assumed=False), 2)
    hub.outbox.tell(0, Comes("b", 1.0), 2)
    assert believed() == ([1.0, 0.0, 0.0], [0.0, 3.0, 0.0])

    hub.outbox.ended(1, 2.0)
    hub.outbox.ended(2, 2.0)
    assert believed() == ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])


def test_what_other_gateways_tell_is_passed_on_and_forgotten_with_them() -> None:
    plugin, passed = ExpectedTtft(), list[tuple[int, PeerMessage | None]]()
    inbox = Inbox(sharing(plugin), pass_on=lambda *told: passed.append(told))
    message = decode_peer(of_process([Shared(0, waits(1)), Shared(0, waits(2))]))

    inbox.take(FIRST_NUMBER, message, 2.0)
    slot = plugin.slots.slot_of("a", 0.0)
    assert plugin.learning.backlog.requests[slot] == 2
    inbox.gone(FIRST_NUMBER, 3.0)

    assert plugin.learning.backlog.requests[slot] == 0
    assert passed == [(FIRST_NUMBER, message), (FIRST_NUMBER, None)]


def test_a_new_worker_is_told_what_was_learned() -> None:
    old, plugin = Gateway(0), ExpectedTtft()
    worker = Inbox(sharing(plugin))
    slot = old.plugin.slots.slot_of("a", 0.0)
    for number in range(60):
        old.learning.took(Kind.TPOT, slot, (1.0, 2.0), 33.0, number / 10)

    worker.hear(old.inbox.all_known(6.0), 6.0)

    there = plugin.slots.slot_of("a", 0.0)
    assert 30.0 < plugin.learning.tpot.expected(there, (1.0, 2.0)) < 36.0


async def test_what_a_worker_tells_the_others_is_passed_on_until_it_has_ended() -> None:
    gateway, clock = Gateway(0), asyncio.get_running_loop().time
    replicas = Replicas(*(gateway.outbox, gateway.inbox, gateway.table, Wire("hub")), lambda: NAMES)
    hub = Inbox(sharing(ExpectedTtft()), pass_on=replicas.pass_on)

    def pass_on(message: Message) -> None:
        assert isinstance(message, PeerTold)
        hub.hear(message, clock())

    WorkerOutbox(1, pass_on).learned(0, waits(7))
    await all_is_told()

    other = Gateway(2)
    for payload in gateway.says_all(clock()):
        other.hear(0, payload, clock())
    assert other.believes(clock())["waiting"] == [1.0, 0.0, 0.0]
    pass_on(PeerTold(1))
    for payload in gateway.says(clock()):
        other.hear(0, payload, clock())
    assert other.believes(clock())["waiting"] == [0.0, 0.0, 0.0]
