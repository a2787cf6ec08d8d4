"""`inferway serve --workers N`: the hub.

The hub follows the engines, as one gateway alone does, and tells its workers what they are and
hold; workers answer requests. A worker that ends, or hangs, is
replaced; the connections that it had end as any lost server's. The kernel gives each new connection
to one of the workers, which all listen on the same port (SO_REUSEPORT).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from inferway.app import Gateway
from inferway.config import UNIX, ModelRewrite, ServeSettings
from inferway.config.setting import without_once
from inferway.errors import ConfigError
from inferway.extension import merge
from inferway.fleet.shared_columns import SharedColumns, shared_memory
from inferway.fleet.subscriber import EventSubscriber
from inferway.indexer import FleetParts
from inferway.kv.index.build import build_index
from inferway.metrics import Family
from inferway.replicas.build import has_peers
from inferway.scheduling.expected_ttft.sharing import Event
from inferway.servers import Process
from inferway.tasks import Tasks
from inferway.telemetry.engine_speeds import told_by
from inferway.workers.asking import Asking
from inferway.workers.hand_overs import WorkersHandOver
from inferway.workers.link import Link
from inferway.workers.messages import (
    Alive,
    AskNumbers,
    AskSnapshots,
    Begin,
    Commit,
    Doubt,
    FamilyTold,
    HubTold,
    LiveSample,
    Message,
    Numbers,
    OutcomeTold,
    PeerTold,
    Ping,
    Prepare,
    Prepared,
    PromptsOffered,
    Publish,
    Settled,
    SnapshotsTold,
    StreamFinding,
    StreamNoted,
    Suspect,
)
from inferway.workers.numbers import added_up, cache_worth, samples
from inferway.workers.peers import Peers, shared
from inferway.workers.replicas import WorkersLearners, meet
from inferway.workers.reports import offer, publish, sample
from inferway.workers.reserved import ReservedPort
from inferway.workers.seat import Seat
from inferway.workers.teller import FleetTeller, ToldIndex

PING_SECONDS = 1.0
PINGS_A_LOOK = 3  # from one look at the workers' numbers to the next, while the page is open

_METRICS = "/metrics"
# which say what caches are worth, or what outages do to requests
_OF_ENGINES = ("/admin/engines", "/admin/drain", "/admin/alarms")
_ADMIN = "/admin/"

# What is done about what a worker has noted of a stream.
_DONE: Mapping[StreamFinding, Callable[[EventSubscriber], None]] = {
    StreamFinding.ADDS_NOT_UP: lambda stream: stream.recheck(),
    StreamFinding.DROPS_LAST_BLOCK: lambda stream: stream.drops_last_block(),
    StreamFinding.REPORTS: lambda stream: stream.count_no_copies(),
}

log = logging.getLogger("inferway")


class ServingHub:
    """`serving.Served`: the gateway that follows the engines, and the workers beside it."""

    def __init__(self, settings: ServeSettings, workers: int, *, picks: bool = False) -> None:
        """Raises ConfigError."""
        _check_together(settings)
        self.settings = settings
        self.port = settings.port  # that the workers listen on; 0 on a Unix socket
        self._picks = picks
        self._index = build_index(settings.index, ToldIndex)
        self._directory = Path(tempfile.mkdtemp(prefix="inferway-"))
        self._memory = shared_memory(workers + 1)
        self._columns = SharedColumns(self._memory, 0)
        self._hand_overs = WorkersHandOver(self._tell, workers, time.monotonic)
        parts = FleetParts(self._index, self._columns, on_change=self._look_soon)
        process = Process(
            *(parts, self._socket, True),
            gather=self._gather,
            with_others=self._with_others,
            prepare_others=self._prepare,
            on_rules=self._tell_rules,
            on_drained=self._look_soon,
            hands_over=self._hand_overs,
        )
        self._teller: FleetTeller | None = None
        try:
            self.gateway = Gateway(settings, picks=picks, process=process)
        except BaseException:
            self._forget_files()
            raise
        self.seats = [
            Seat(place, self._memory, self._tell_all, self._heard, self._ended)
            for place in range(1, workers + 1)
        ]
        self._told = HubTold({}, [], wants_prompts=False)
        self._reserved_ports: list[ReservedPort] = []
        self._picker = settings.picker  # with the ports that are reserved
        self._tasks = Tasks(log, "a worker is no longer looked after, by a fault of the gateway")
        self._asking = Asking()
        self._since: dict[int, dict[str, int]] = {}  # place -> extension -> its last snapshot
        self._peers: Peers | None = None
        self._learners: WorkersLearners | None = None  # of what other gateways tell
        self._numbers: Sequence[Sequence[FamilyTold]] = ()

    # serving.Served

    async def start(self) -> None:
        """Start the gateway, then all workers. Raises ConfigError, with all closed again."""
        gateway = self.gateway
        try:
            self._reserve_ports()
            await gateway.start()
            is_drained = gateway.standing.drained.__contains__
            self._teller = teller = FleetTeller(gateway.fleet, self._index, is_drained, self._tell)
            if self.settings.records.directory is not None or has_peers(self.settings):
                sharing = shared(gateway.learning_plugins, _to_nobody)
                outlet = None
                if has_peers(self.settings):
                    self._learners, outlet = await meet(gateway, sharing, self._tell)
                self._peers = Peers(sharing, passes_on=outlet)  # files have it, too
            self._does = self._what_to_do()
            teller.look()
            for seat in self.seats:
                self._tasks.spawn(seat.keep())
            await asyncio.gather(*[seat.started() for seat in self.seats])
            self._tasks.spawn(self._ping())
        except BaseException as e:
            await self.close(quietly=not isinstance(e, asyncio.CancelledError))
            raise
        log.info("%s", gateway.told_of(self._url, len(self.seats)))

    async def close(self, *, quietly: bool = False) -> None:
        """Let running answers end, then close the rest; `quietly`: parts do not say that they have
        stopped."""
        self.stop_accepting()
        await self.gateway.stop_extensions()  # or workers would wait for answers that we give
        await asyncio.gather(*[seat.left(self.settings.timeouts.drain) for seat in self.seats])
        await self._tasks.close()
        teller, self._teller = self._teller, None
        if teller is not None:
            teller.close()
        await self.gateway.close(quietly=quietly)
        self._forget_files()

    async def reload(self, read: Callable[[], ServeSettings]) -> None:
        """Have all processes go on with the settings that `read` returns, or none."""
        await self.gateway.reload(read)

    def stop_accepting(self) -> None:
        for seat in self.seats:
            seat.leave()
        for port in self._reserved_ports:
            port.close()

    def cut_connections(self) -> None:
        for seat in self.seats:
            seat.signal(signal.SIGTERM)  # the second one cuts them
        self.gateway.cut_connections()

    # what admins look at

    def _with_others(self, families: Iterable[Family]) -> Iterator[Family]:
        return added_up(families, self._numbers)

    async def _gather(self, path: str) -> None:
        """Fetch what the path shows of all workers."""
        if path == _METRICS or path.startswith(_OF_ENGINES):
            await self._fetch_numbers()
        elif path.startswith(_ADMIN):
            await self._fetch_snapshots()

    async def _fetch_numbers(self) -> None:
        answers = await self._asking.all(self.seats, lambda _, number: AskNumbers(number))
        self._numbers = [told.families for told in answers.values() if isinstance(told, Numbers)]
        self.gateway.worth.hear([cache_worth(each) for each in self._numbers])
        self.gateway.speeds.hear(told_by([samples(each) for each in self._numbers]))

    async def _fetch_snapshots(self) -> None:
        since = self._since
        answers = await self._asking.all(
            self.seats, lambda seat, number: AskSnapshots(number, since.get(seat.place, {}))
        )
        found = {
            s: told.snapshots for s, told in answers.items() if isinstance(told, SnapshotsTold)
        }
        for seat, told in found.items():
            since[seat.place] = {name: snapshot.until for name, snapshot in told.items()}
        merge(self.gateway.extensions, [*found.values()])

    # what is told

    async def _tell_all(self, seat: Seat, link: Link) -> None:
        """All that a new worker must know. What changes meanwhile it hears as the others do."""
        assert self._teller is not None
        settings = self._for_workers(self.settings)
        link.send(
            Begin(
                *(settings, seat.place, self._socket),
                picks=self._picks,
                publishes=self.gateway.publisher is not None,
            )
        )
        link.send(self._told)
        seat.hears_all()
        link.send(self._teller.engines())
        await self._teller.tell_held(link)
        if self._learners is not None:
            link.send(self._learners.all_known(asyncio.get_running_loop().time()))
        link.send(Settled())

    def _look_soon(self) -> None:
        """Have the workers told of engines that have changed."""
        if self._teller is not None:
            self._teller.look_soon()

    def _tell(self, message: Message) -> None:
        for seat in self.seats:
            seat.send(message)

    def _tell_others(self, seat: Seat, message: Message) -> None:
        for other in self.seats:
            if other is not seat:
                other.send(message)

    def _tell_rules(self, objectives: dict[str, int], rewrites: list[ModelRewrite]) -> None:
        self._told = HubTold(objectives, rewrites, self._told.wants_prompts)
        self._tell(self._told)

    def _for_workers(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(without_once(settings), port=self.port, picker=self._picker)

    async def _prepare(self, settings: ServeSettings) -> Callable[[], Awaitable[None]]:
        """Have all workers prepared for these settings. Return what has them go on."""
        new = self._for_workers(settings)
        answers = await self._asking.all(self.seats, lambda _, number: Prepare(number, new))
        for answer in answers.values():
            if isinstance(answer, Prepared) and answer.error is not None:
                raise ConfigError(answer.error)
        return partial(self._commit, settings, new)

    async def _commit(self, settings: ServeSettings, of_workers: ServeSettings) -> None:
        self.settings = settings
        self._tell(Commit(of_workers))  # whoever is just starting has been given the old ones

    async def _ping(self) -> None:
        for number in count():
            await asyncio.sleep(PING_SECONDS)
            self._tell(Ping())
            wanted = self.gateway.orphans.wanted
            if self._told.wants_prompts != wanted:
                self._told = msgspec.structs.replace(self._told, wants_prompts=wanted)
                self._tell(self._told)
            for seat in self.seats:
                seat.look()
            if self.gateway.needs_snapshots:
                await self._fetch_snapshots()
                if number % PINGS_A_LOOK == 0:
                    await self._fetch_numbers()

    # what workers say

    def _heard(self, seat: Seat, message: Message) -> None:
        do = self._does.get(type(message))
        if do is None:
            log.error("worker %d said %s, which is not for the hub", seat.place, type(message))
        else:
            do(seat, message)

    def _what_to_do(self) -> dict[type[Message], Callable[[Seat, Any], None]]:
        gateway, fleet = self.gateway, self.gateway.fleet
        return {
            Alive: self._alive,
            Prepared: self._asking.answered,
            SnapshotsTold: self._asking.answered,
            PeerTold: self._pass_on,
            StreamNoted: self._noted,
            OutcomeTold: self._outcome,
            LiveSample: lambda _, told: sample(fleet, told),
            PromptsOffered: lambda _, told: offer(gateway.orphans, told),
            Numbers: self._asking.answered,
            Publish: lambda _, told: publish(gateway.publisher, told),
            Suspect: lambda _, told: fleet.watch.suspect(told.engine),
            Doubt: lambda _, told: self._index.apply(told.ops),
        }

    def _alive(self, seat: Seat, told: Alive) -> None:
        self._hand_overs.heard(seat.place, told.hand_overs)
        if told.asked:
            self._index.note_matched(told.asked)

    def _pass_on(self, seat: Seat, told: PeerTold) -> None:
        self._tell_others(seat, told)
        if self._peers is not None:
            self._peers.hear(told)

    def _outcome(self, seat: Seat, told: OutcomeTold) -> None:
        now = asyncio.get_running_loop().time()
        self.gateway.standing.hear(told.engine, told.has_failed, now)
        self._tell_others(seat, told)

    def _noted(self, _: Seat, told: StreamNoted) -> None:
        engine = self.gateway.fleet.engine(told.engine)
        for stream in () if engine is None else engine.subscribers:
            if stream.holder == told.holder:
                _DONE[told.noted](stream)

    def _ended(self, seat: Seat) -> None:
        self._asking.ended(seat)
        self._columns.process_ended(seat.place)
        self._since.pop(seat.place, None)
        self._hand_overs.ended(seat.place)
        self._pass_on(seat, PeerTold(seat.place))

    # where the workers listen

    @property
    def _socket(self) -> str:
        return str(self._directory / "hub.sock")

    @property
    def _url(self) -> str:
        host = self.settings.host
        scheme = "http" if self.settings.tls_cert is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def _reserve_ports(self) -> None:
        """Raises ConfigError if somebody else listens there."""
        settings, picker = self.settings, self.settings.picker
        self.port = self._reserved(settings.host, settings.port)
        if self._picks:
            self._picker = msgspec.structs.replace(
                picker,
                grpc_port=self._reserved(settings.host, picker.grpc_port),
                grpc_health_port=self._reserved(settings.host, picker.grpc_health_port),
            )

    def _reserved(self, host: str, port: int) -> int:
        reserved = ReservedPort(host, port)
        self._reserved_ports.append(reserved)
        return reserved.port

    def _forget_files(self) -> None:
        if self._memory != -1:
            os.close(self._memory)
            self._memory = -1
        shutil.rmtree(self._directory, ignore_errors=True)


def _to_nobody(_: int, __: Event) -> None:
    """The hub sends no requests of its own."""


def _check_together(settings: ServeSettings) -> None:
    """Raises ConfigError for what several processes cannot serve together."""
    if settings.host.startswith(UNIX):
        raise ConfigError(
            f"workers: several processes cannot share the Unix socket {settings.host!r}; listen on"
            " a port (host: 127.0.0.1), or serve with one worker"
        )
