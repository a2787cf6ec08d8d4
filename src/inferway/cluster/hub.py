"""`inferway serve --workers N`: the hub.

The hub follows the engines, as one gateway alone does, and tells its workers what they are and
hold; workers answer requests. A worker that ends, or hangs, is replaced; the connections that it
had end as any lost server's. The kernel gives each new connection to one of the workers, which all
listen on the same port (SO_REUSEPORT).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from inferway.app import Gateway
from inferway.cluster.bus.inbox import Inbox, shared
from inferway.cluster.bus.link import Link
from inferway.cluster.bus.messages import (
    AskWorker,
    Begin,
    DecisionTold,
    EngineNoted,
    FamilyTold,
    Finding,
    HubTold,
    Judged,
    LiveSample,
    Message,
    PromptsOffered,
    Report,
    Subject,
    Wanted,
    WorkerAnswer,
)
from inferway.cluster.bus.peer_messages import PeerMessage, PeerTold, encode
from inferway.cluster.bus.replicas import build_replicas, has_peers
from inferway.cluster.hand_overs import WorkersHandOver
from inferway.cluster.numbers import added_up, cache_worth, samples
from inferway.cluster.seat import Seat
from inferway.cluster.teller import FleetTeller, ToldIndex
from inferway.config import UNIX, ServeSettings
from inferway.config.setting import without_once
from inferway.errors import ConfigError
from inferway.extension import merge
from inferway.fleet.fleet import Fleet
from inferway.fleet.prober import LivePrompt
from inferway.fleet.shared_columns import SharedColumns, shared_memory
from inferway.indexer import FleetParts
from inferway.kv.index.build import build_index
from inferway.model import Prompt, TokenIds
from inferway.prompts.files.given_files import check_given
from inferway.scheduling.expected_ttft.sharing import Event
from inferway.servers import Process
from inferway.serving import Served
from inferway.tasks import Tasks
from inferway.telemetry.engine_speeds import told_by

PING_SECONDS = 1.0
PINGS_A_LOOK = 3  # from one look at the workers' numbers to the next, while the page is open

_METRICS = "/metrics"
# which say what caches are worth, or what outages do to requests
_OF_ENGINES = ("/admin/engines", "/admin/drain", "/admin/alarms")
_ADMIN = "/admin/"

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
            with_others=lambda families: added_up(families, self._numbers),
            prepare_others=self._prepare,
            on_rules=lambda given, rewrites: self._tell_hub(objectives=given, rewrites=rewrites),
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
        self._told = HubTold()
        self._reserved_ports: list[ReservedPort] = []
        self._picker = settings.picker  # with the ports that are reserved
        self._tasks = Tasks(log, "a worker is no longer looked after, by a fault of the gateway")
        self._since: dict[int, dict[str, int]] = {}  # place -> extension -> its last snapshot
        self._of_workers: Inbox | None = None  # None: nobody here must know what workers do
        self._of_gateways: Inbox | None = None
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
            await self._listen_to_workers()
            teller.look()
            for seat in self.seats:
                self._tasks.spawn(seat.keep())
            await asyncio.gather(*[seat.started() for seat in self.seats])
            self._tasks.spawn(self._ping())
        except BaseException as e:
            await self.close(quietly=not isinstance(e, asyncio.CancelledError))
            raise
        log.info("%s", gateway.told_of(self._url, len(self.seats)))

    async def _listen_to_workers(self) -> None:
        """Take over what workers do, where it is written or told other gateways. Raises
        ConfigError."""
        gateway = self.gateway
        sharing = shared(gateway.learning_plugins, _to_nobody)
        if has_peers(self.settings):
            self._of_gateways = inbox = Inbox(sharing, pass_on=self._tell_peers)
            replicas = build_replicas(gateway.settings, gateway.fleet, inbox)
            await gateway.meet(replicas)
            self._of_workers = Inbox(sharing, pass_on=replicas.pass_on)
        elif self.settings.records.directory is not None:
            self._of_workers = Inbox(sharing)

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

    async def _gather(self, path: str) -> None:
        """Fetch what the path shows of all workers."""
        if path == _METRICS or path.startswith(_OF_ENGINES):
            await self._fetch_numbers()
        elif path.startswith(_ADMIN):
            await self._fetch_snapshots()

    async def _ask(self, wanted: Wanted, **about: Any) -> dict[Seat, WorkerAnswer]:
        """Return the answers of those that give one in time."""
        answers = await asyncio.gather(*[seat.ask(wanted, **about) for seat in self.seats])
        return {seat: told for seat, told in zip(self.seats, answers, strict=True) if told}

    async def _fetch_numbers(self) -> None:
        answers = await self._ask(Wanted.NUMBERS)
        self._numbers = [told.families for told in answers.values()]
        self.gateway.worth.hear([cache_worth(each) for each in self._numbers])
        self.gateway.speeds.hear(told_by([samples(each) for each in self._numbers]))

    async def _fetch_snapshots(self) -> None:
        answers = await self._ask(Wanted.SNAPSHOTS, since=self._since)
        for seat, told in answers.items():
            self._since[seat.place] = {name: each.until for name, each in told.snapshots.items()}
        merge(self.gateway.extensions, [told.snapshots for told in answers.values()])

    # what is told

    async def _tell_all(self, seat: Seat, link: Link) -> None:
        """Tell a new worker all that it must know. What changes meanwhile it hears as the others
        do."""
        assert self._teller is not None
        link.send(self._begin(seat))
        link.send(self._told)
        seat.hears_all()
        link.send(self._teller.engines())
        await self._teller.tell_held(link)
        if self._of_gateways is not None:
            link.send(self._of_gateways.all_known(asyncio.get_running_loop().time()))
        link.send(msgspec.structs.replace(self._told, is_all=True))

    def _begin(self, seat: Seat) -> Begin:
        settings, publishes = self._for_workers(self.settings), self.gateway.publisher is not None
        return Begin(settings, seat.place, self._socket, self._picks, publishes)

    def _look_soon(self) -> None:
        """Have the workers told of engines that have changed."""
        if self._teller is not None:
            self._teller.look_soon()

    def _tell(self, message: Message) -> None:
        for seat in self.seats:
            seat.send(message)

    def _tell_peers(self, who: int, message: PeerMessage | None) -> None:
        """Tell the workers what another gateway tells."""
        self._tell(PeerTold(who, b"" if message is None else encode(message)))

    def _tell_others(self, seat: Seat, message: Message) -> None:
        for other in self.seats:
            if other is not seat:
                other.send(message)

    def _tell_hub(self, **changed: Any) -> None:
        self._told = msgspec.structs.replace(self._told, **changed)
        self._tell(self._told)

    def _for_workers(self, settings: ServeSettings) -> ServeSettings:
        return msgspec.structs.replace(without_once(settings), port=self.port, picker=self._picker)

    async def _prepare(self, settings: ServeSettings) -> Callable[[], Awaitable[None]]:
        """Have all workers prepared for these settings. Return what has them go on."""
        answers = await self._ask(Wanted.SETTINGS, settings=self._for_workers(settings))
        for answer in answers.values():
            if answer.error is not None:
                raise ConfigError(answer.error)
        return partial(self._commit, settings)

    async def _commit(self, settings: ServeSettings) -> None:
        self.settings = settings
        for seat in self.seats:
            seat.send(self._begin(seat))  # whoever is just starting has been given the old ones

    async def _ping(self) -> None:
        for number in count():
            await asyncio.sleep(PING_SECONDS)
            self._tell(AskWorker(Wanted.ALIVE))
            wanted = self.gateway.orphans.wanted
            if self._told.wants_prompts != wanted:
                self._tell_hub(wants_prompts=wanted)
            for seat in self.seats:
                seat.look()
            if self.gateway.needs_snapshots:
                await self._fetch_snapshots()
                if number % PINGS_A_LOOK == 0:
                    await self._fetch_numbers()

    # what workers say

    def _heard(self, seat: Seat, message: Message) -> None:
        match message:
            case PeerTold():
                self._pass_on(seat, message)
            case EngineNoted():
                self._noted(message)
            case Report():
                _take(self.gateway, message)
            case Judged(subject=subject):
                if subject is Subject.ENGINE:
                    now = asyncio.get_running_loop().time()
                    self.gateway.standing.hear(message.name, message.is_bad, now)
                self._tell_others(seat, message)
            case WorkerAnswer():
                self._hand_overs.heard(seat.place, message.hand_overs)
                if message.asked:
                    self._index.note_matched(message.asked)
            case _:
                log.error("worker %d said %s, which is not for the hub", seat.place, type(message))

    def _pass_on(self, seat: Seat, told: PeerTold) -> None:
        self._tell_others(seat, told)
        if self._of_workers is not None:
            self._of_workers.hear(told, asyncio.get_running_loop().time())

    def _noted(self, told: EngineNoted) -> None:
        """Do what is done about what a worker has noted of an engine."""
        fleet = self.gateway.fleet
        engine = fleet.engine(told.engine)
        streams = () if engine is None else engine.subscribers
        stream = next((each for each in streams if each.holder == told.holder), None)
        match told.finding:
            case Finding.LACKS:
                self._index.apply(told.ops)
            case Finding.HAS_FAILED:
                fleet.watch.suspect(told.engine)
            case Finding.ADDS_NOT_UP if stream is not None:
                stream.recheck()
            case Finding.DROPS_LAST_BLOCK if stream is not None:
                stream.drops_last_block()
            case Finding.REPORTS if stream is not None:
                stream.count_no_copies()

    def _ended(self, seat: Seat) -> None:
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


class ReservedPort:
    """A port on which several processes of ours are to listen, and nobody else. It is bound, and
    not listened on, until `close`; `port` is the one that the system has chosen if it was 0.

    Who shares a port by SO_REUSEPORT would let a second gateway of the same user share it, which
    would take half of the connections, and nobody would know. So a hub also has a socket in the
    abstract namespace, named by host and port: it is gone when its hub is. Workers that a killed
    hub has left behind still listen; the next one may share the port with them until they end.
    """

    def __init__(self, host: str, port: int) -> None:
        """Raises ConfigError if somebody else listens there."""
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = socket.socket()
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, address = found[0]
            self._socket.close()
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind(address)
            self.port: int = self._socket.getsockname()[1]
            self._name.bind(f"\0inferway {address[0]} {self.port}")
        except OSError as e:
            self.close()
            if e.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use; stop what listens there or choose another"
                ) from e
            raise ConfigError(f"cannot listen on {host}, port {port}: {e.strerror or e}") from e

    def close(self) -> None:
        """Let others have it. It may be called twice."""
        self._name.close()
        self._socket.close()


def _take(gateway: Gateway, report: Report) -> None:
    """Do with a worker's request what the hub does with it."""
    match report.of:
        case LiveSample() as live:
            _sample(gateway.fleet, live)
        case PromptsOffered() as told if gateway.orphans.wanted:
            prompts = {
                size: [Prompt(_ids(each.ids), each.keys, None, each.media) for each in items]
                for size, items in told.prompts.items()
            }
            of = {"lora": told.lora, "lora_path": told.lora_path, "cache_salt": told.cache_salt}
            gateway.orphans.offer(prompts, **of)
        case DecisionTold(topic=topic, body=body) if gateway.publisher is not None:
            gateway.publisher.publish(topic, msgspec.msgpack.decode(body))


def _sample(fleet: Fleet, told: LiveSample) -> None:
    """Compare what a worker has sampled, if engine and model are still there."""
    engine, model = fleet.engine(told.engine), fleet.models.get(told.model)
    endpoints = () if engine is None else engine.endpoints
    endpoint = next((each for each in endpoints if each.holder == told.holder), None)
    if model is not None and endpoint is not None and fleet.prober.may_ask(endpoint):
        ids = None if told.ids is None else [_ids(each) for each in told.ids]
        live = LivePrompt(model, endpoint, told.path, msgspec.json.decode(told.fields), ids)
        fleet.prober.sample(live, lambda: None)  # the worker has gone on already


def _ids(told: bytes) -> TokenIds:
    return np.frombuffer(told, np.uint32)


def built(settings: ServeSettings, *, picks: bool = False) -> Served:
    """Return what is to be served with. `picks`: it is an endpoint picker. Raises ConfigError."""
    check_given(settings.models)
    workers = num_workers(settings)
    if workers == 1:
        return Gateway(settings, picks=picks)
    return ServingHub(settings, workers, picks=picks)


def num_workers(settings: ServeSettings) -> int:
    """Return how many processes are to answer requests; `auto` leaves a core to the hub."""
    if settings.workers == "auto":
        return max(1, len(os.sched_getaffinity(0)) - 1)
    return settings.workers


def _to_nobody(_: int, __: Event) -> None:
    """The hub sends no requests of its own."""


def _check_together(settings: ServeSettings) -> None:
    """Raises ConfigError for what several processes cannot serve together."""
    if settings.host.startswith(UNIX):
        raise ConfigError(
            f"workers: several processes cannot share the Unix socket {settings.host!r}; listen on"
            " a port (host: 127.0.0.1), or serve with one worker"
        )
