"""Handle calls and replicas -> ranked replicas, by the same director and index as the gateway's.

    choice = await journeys.choose(asked, id, among)   its replicas, best first; the first is booked
    journeys.routed(choice, replica)                   that one has taken it
    journeys.begun(choice, status)                     the first piece of its answer is here
    journeys.completed(id, replica)                    it has ended, well or not

A call that nobody says to be routed, because it reaches its replica by another way than the handle
(Ray's direct streaming), is let go of after a few seconds. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from inferway.config import EngineSettings, KvTransferSettings
from inferway.errors import InferwayError
from inferway.extension import methods
from inferway.fleet.orphan_resolution import OrphanResolver
from inferway.indexer import Indexer
from inferway.model import Headers, RequestHead, Target
from inferway.prompts.renderer import Renderer
from inferway.routing.director import EVENT_SECONDS, Director
from inferway.routing.journey import Journey
from inferway.routing.kv_legs import build_legs
from inferway.scheduling.load import scheduling_of
from inferway.tasks import Later
from inferway.telemetry.observers import AlarmObserver, PromptsForOrphans
from inferway_ray.announced import AnnouncedReplica
from inferway_ray.asked import AskedRequest
from inferway_ray.settings import RouterSettings
from inferway_ray.stand_in import NumRequests, StandIns

log = logging.getLogger("inferway_ray")

# So long a chosen replica counts as having the request, without word that it has taken it.
UNROUTED_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Choice:
    """One handle call, and where it may go. `replicas` are unique ids, best first."""

    request_id: str
    journey: Journey
    targets: Mapping[str, Target]  # by replica: its endpoint, or the best of its ranks
    at: str  # the replica that is booked
    is_routed: bool = False
    status: int = 200

    @property
    def replicas(self) -> Sequence[str]:
        return list(self.targets)

    @property
    def reason(self) -> str:
        return self.journey.record.reason

    @property
    def headers(self) -> Headers:
        """The headers that the engine of the booked replica needs beside the client's: its key, and
        the data-parallel rank that was chosen."""
        return self.targets[self.at].endpoint.headers


@dataclass(slots=True)
class Journeys:
    """Owns an Indexer, and stand-ins for engines without HTTP. `set_replicas` starts it; `close` it
    in the end. `num_requests` is asked how many requests a replica has."""

    settings: RouterSettings
    num_requests: NumRequests
    renderer: Renderer | None = None
    clock: Callable[[], float] = time.monotonic
    there: frozenset[str] = frozenset()  # replicas whose engine is known; written here alone
    _indexer: Indexer | None = None
    _director: Director | None = None
    _adopter: OrphanResolver | None = None
    _stand_ins: StandIns | None = None
    _known: Sequence[AnnouncedReplica] | None = None
    _open: dict[str, list[Choice]] = field(default_factory=dict)  # by request id
    _unrouted: Later = field(default_factory=lambda: Later(UNROUTED_SECONDS))
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def director(self) -> Director | None:
        """The director of all calls; None until the first engines are known."""
        return self._director

    @property
    def indexer(self) -> Indexer | None:
        """The indexer, which knows the engines' caches; None until the first engines are known."""
        return self._indexer

    @property
    def num_open(self) -> int:
        """The number of calls that are under way."""
        return sum([len(choices) for choices in self._open.values()])

    async def set_replicas(self, replicas: Sequence[AnnouncedReplica]) -> None:
        """Take these as the deployment's replicas from now on."""
        async with self._changing:
            if replicas == self._known:
                return
            engines = await self._engines(replicas)
            if self._indexer is None:
                if not engines:
                    return
                await self._start(engines)
            else:
                await self._indexer.fleet.set_engines(engines)
            self._known = replicas
            self.there = frozenset(engine.label for engine in engines)

    async def choose(
        self, asked: AskedRequest, request_id: str, among: Collection[str]
    ) -> Choice | None:
        """Return where the request goes, of the replicas `among`; None if that cannot be said, for
        whatever reason. The first replica counts as having it from now on."""
        director = self._director
        if director is None:
            return None
        head = RequestHead("POST", asked.path, "", asked.headers)
        allowed = None if self.there <= set(among) else frozenset(among)
        within = None if allowed is None else lambda endpoint: endpoint.engine in allowed
        try:
            journey = director.open(head, asked.body, request_id, within=within)
        except InferwayError:
            return None
        try:
            decision = await journey.decide()
        except InferwayError as e:  # the engine says to the client what is wrong
            log.debug("request %s is routed by Ray's default: %s", request_id, e)
            journey.close("error")
            return None
        except BaseException:
            journey.close("cancelled")
            raise
        targets: dict[str, Target] = {}
        for target in decision.targets:
            targets.setdefault(target.endpoint.engine, target)
        first = next(iter(targets))
        choice = Choice(request_id, journey, targets, first)
        journey.attempt(targets[first])
        self._open.setdefault(request_id, []).append(choice)
        self._unrouted(lambda: self._let_go(choice))
        return choice

    def routed(self, choice: Choice, replica: str) -> None:
        """Book the replica that has taken the request, if it is another than was chosen."""
        if choice.journey.closed:
            return
        choice.is_routed = True
        if replica == choice.at:
            return
        target = choice.targets.get(replica)
        if target is None:
            self.drop(choice)
            return
        choice.at = replica
        choice.journey.attempt(target)

    def begun(self, choice: Choice, status: int = 200) -> None:
        """Note that the answer has begun; expected-ttft learns from when it did."""
        if choice.journey.closed:
            return
        choice.status = status
        choice.journey.on_head(status)
        choice.journey.on_chunk(b"")

    def completed(self, request_id: str, replica: str) -> None:
        """A call of this request has ended at the replica. One that was refused there and has been
        chosen anew for another goes on."""
        for choice in self._open.get(request_id, ()):
            if choice.at == replica:
                self.drop(choice, "ok" if choice.status < 500 else "upstream_error")
                return

    def drop(self, choice: Choice, outcome: str = "cancelled") -> None:
        """Give back what the call took. Idempotent."""
        choice.journey.close(outcome)
        choices = self._open.get(choice.request_id)
        if choices is None or choice not in choices:
            return
        choices.remove(choice)
        if not choices:
            del self._open[choice.request_id]

    async def close(self) -> None:
        for choices in list(self._open.values()):
            for choice in list(choices):
                self.drop(choice)
        self._director = None
        if self._adopter is not None:
            await self._adopter.close()
        if self._indexer is not None:
            await self._indexer.close()
        if self._stand_ins is not None:
            await self._stand_ins.close()

    def _let_go(self, choice: Choice) -> None:
        if not choice.is_routed:
            self.drop(choice)

    async def _engines(self, replicas: Sequence[AnnouncedReplica]) -> list[EngineSettings]:
        engines = [each.engine for each in replicas if each.engine is not None]
        inside = [each for each in replicas if each.engine is None and each.events is not None]
        model = self.settings.model
        if model is None:
            if inside:
                log.warning(
                    "replicas %s have engines that no HTTP leads to, and are chosen by load only:"
                    ' give request_router_kwargs={"model": …}, what they serve',
                    ", ".join(each.replica for each in inside),
                )
            return engines
        if self._stand_ins is None:
            self._stand_ins = StandIns(model, self.num_requests)
        return [*engines, *await self._stand_ins.engines(inside)]

    async def _start(self, engines: Sequence[EngineSettings]) -> None:
        settings = msgspec.structs.replace(
            self.settings.serve,
            engines=list(engines),
            kv_transfer=KvTransferSettings(legs="off"),  # a handle's call goes to one replica
        )
        indexer = Indexer(settings, renderer=self.renderer)
        await indexer.start()
        self._indexer = indexer
        self._adopter = adopter = OrphanResolver(
            indexer.fleet.engines, on_moved=indexer.fleet.look_soon
        )
        adopter.start()
        self._director = Director(
            indexer.fleet,
            indexer.matcher,
            scheduling_of(settings, has_queue=False),
            self.clock,
            scoring=settings.scoring,
            off_loop=asyncio.to_thread,
            later=Later(EVENT_SECONDS),
            on_request=methods(
                [AlarmObserver(indexer.fleet.evidence), PromptsForOrphans(adopter)], "on_request"
            ),
            legs=build_legs(settings.kv_transfer, picks=True),
        )
