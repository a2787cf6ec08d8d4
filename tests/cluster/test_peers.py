"""What a worker hears of the others' requests."""

from __future__ import annotations

import asyncio

import numpy as np

from inferway.cluster.bus.inbox import Inbox, shared
from inferway.cluster.bus.messages import Message
from inferway.cluster.bus.peer_messages import PeerTold
from inferway.cluster.bus.workers import TOGETHER_SECONDS, WorkerOutbox
from inferway.model import Endpoint
from inferway.scheduling.expected_ttft.backlog import QueuedRequest
from inferway.scheduling.expected_ttft.plugin import ExpectedTtft
from inferway.scheduling.expected_ttft.sent_log import ROW
from inferway.scheduling.expected_ttft.sharing import open_logs

HOLDER = 3
KEYS = [11, 12, 13]


async def told() -> None:
    """Return when everything has been sent that was told before."""
    sent = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * TOGETHER_SECONDS, sent.set)
    await sent.wait()


class Two:
    """Two workers, the first of which the second hears."""

    def __init__(self) -> None:
        sent = np.zeros((3, ROW))
        self.plugins = [ExpectedTtft(), ExpectedTtft()]
        for plugin in self.plugins:
            plugin.slots.rows([Endpoint("e", "http://e", HOLDER)], 0.0)
        self.one, other = WorkerOutbox(1, self._sent), WorkerOutbox(2, lambda _: None)
        outboxes = zip(self.plugins, (self.one, other), strict=True)
        sharing = [shared([plugin], outbox.learned) for plugin, outbox in outboxes]
        for place, each in enumerate(sharing, 1):
            open_logs(each, sent, place)
        self.sharing, self.overlay = sharing[1], other.overlay  # of the second
        self.other = Inbox(self.sharing, self.overlay)

    def _sent(self, message: Message) -> None:
        assert isinstance(message, PeerTold)
        self.other.hear(message, 0.0)

    def elsewhere(self) -> dict[int, int]:
        """What the other believes to be on its way, of the prompt."""
        return self.overlay.extend(KEYS, {})


async def test_a_request_counts_with_all_workers_at_once_and_not_twice_when_they_are_told() -> None:
    two = Two()
    one, other = [plugin.learning for plugin in two.plugins]
    log = two.sharing[0].log
    assert log is not None
    for number in (1, 2):
        request = QueuedRequest(0, 100.0 * number, 10.0, holder=HOLDER)
        one.waits(request, 0.0, work=10.0, new_tokens=100.0, prompt_tokens=100.0)
        unheard = list(log.unheard())
        await told()

        assert list(log.unheard()) == []
        assert other.backlog.requests.tolist() == [number]
    assert unheard == [(HOLDER, 200.0)]  # of the first nothing is known before the worker is


async def test_a_prompt_on_its_way_counts_with_all_workers_until_it_has_arrived() -> None:
    two = Two()
    coming = two.one.overlay.add(HOLDER, KEYS, skip=0)
    assert two.elsewhere() == {}
    await told()
    assert two.elsewhere() == {HOLDER: 3}

    two.one.overlay.remove(coming)
    two.one.overlay.remove(coming)
    await told()

    assert two.elsewhere() == {}


async def test_a_worker_that_ends_brings_nothing_any_more() -> None:
    two = Two()
    two.one.overlay.add(HOLDER, KEYS)
    await told()

    two.other.hear(PeerTold(2), 0.0)  # another one
    assert two.elsewhere() == {HOLDER: 3}
    two.other.hear(PeerTold(1), 0.0)

    assert two.elsewhere() == {}
