"""A hub tells other gateways what its workers send, and its workers what the others do."""

from __future__ import annotations

import msgspec
from tests.cluster.gateways import Gateway
from tests.cluster.test_peers import told as all_is_told

from inferway.cluster.bus.peer import FIRST_NUMBER
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sharing import Answered, Begins, Event, Kind, Waits
from inferway.cluster.bus.messages import Message, PeerTold
from inferway.cluster.bus.workers import PeerOutbox, Peers
from inferway.workers.replicas import WorkersLearners, WorkersOutlet


class Telling:
    """What a hub tells other gateways (`replicas.Replicas`)."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.counts = 0

    def tell(self, plugin: int, event: Event) -> None:
        assert plugin == 0
        self.told.append(event)

    def counted(self) -> None:
        self.counts += 1


def waits(number: int) -> Waits:
    return Waits("a", number, 10.0, 5.0, 1.0, 5.0, 10.0, 20.0)


def test_requests_of_all_workers_have_numbers_of_the_hubs() -> None:
    telling = Telling()
    outlet = WorkersOutlet(telling)  # type: ignore[arg-type]

    outlet.learned(1, 0, waits(1))
    outlet.learned(2, 0, waits(1))
    outlet.learned(2, 0, Begins(1, 2.0, is_assumed=False))
    outlet.learned(2, 0, Begins(1, 2.0, is_assumed=False))
    outlet.learned(1, 0, Answered(5))
    outlet.ended(1, 9.0)
    outlet.ended(2, 9.0)

    assert telling.told == [
        msgspec.structs.replace(waits(1), number=1),
        msgspec.structs.replace(waits(1), number=2),
        Begins(2, 2.0, is_assumed=False),
        Answered(5),
        Begins(1, 9.0, is_assumed=False),
    ]


async def test_workers_hear_what_other_gateways_tell_and_forget_it_with_them() -> None:
    hub, plugin = ExpectedTtft(), ExpectedTtft()
    worker = Peers([plugin.share(lambda _: None)])
    sent: list[Message] = []
    learners = WorkersLearners([hub.share(lambda _: None)], sent.append)

    learners.hear(FIRST_NUMBER, 0, waits(1))
    learners.hear(FIRST_NUMBER, 0, waits(2))
    learners.heard(FIRST_NUMBER)
    [message] = sent
    assert isinstance(message, PeerTold)
    worker.hear(message)

    slot = plugin.slots.slot_of("a", 0.0)
    assert plugin.learning.backlog.requests[slot] == 2
    learners.gone(FIRST_NUMBER, 3.0)
    assert sent[1] == PeerTold(FIRST_NUMBER)
    worker.hear(PeerTold(FIRST_NUMBER))
    assert plugin.learning.backlog.requests[slot] == 0


async def test_a_new_worker_is_told_what_was_learned() -> None:
    old, plugin = Gateway(0), ExpectedTtft()
    worker = Peers([plugin.share(lambda _: None)])
    slot = old.plugin.slots.slot_of("a", 0.0)
    for number in range(60):
        old.learning.took(Kind.TPOT, slot, (1.0, 2.0), 33.0, number / 10)

    worker.hear(WorkersLearners([old.sharing], lambda _: None).all_known(6.0))

    there = plugin.slots.slot_of("a", 0.0)
    assert 30.0 < plugin.learning.tpot.expected(there, (1.0, 2.0)) < 36.0


async def test_what_a_worker_tells_the_others_is_passed_on() -> None:
    telling = Telling()
    outlet = WorkersOutlet(telling)  # type: ignore[arg-type]
    hub = Peers([ExpectedTtft().share(lambda _: None)], passes_on=outlet)

    def pass_on(message: Message) -> None:
        assert isinstance(message, PeerTold)
        hub.hear(message)

    PeerOutbox(1, pass_on).learned(0, waits(7))
    await all_is_told()

    assert [type(event) for event in telling.told] == [Waits]
    assert telling.counts == 1
