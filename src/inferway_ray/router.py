"""Ray Serve's handles choose replicas as the gateway chooses engines.

    @serve.deployment(request_router_config=router_config())
    class Engine: ...

Each process that holds a handle has a router, and each router an index of its own, kept true by the
replicas' KV events. What the router cannot say, before it knows the replicas' engines or of a call
without a prompt, Ray's default says. Routing never makes an answer impossible.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import (
    LocalityMixin,
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)
from ray.util import metrics

from inferway.errors import ConfigError, crash_report
from inferway.tasks import Tasks
from inferway_ray.announced import AnnouncedReplica, announced
from inferway_ray.asked import asked_of, put_headers
from inferway_ray.journeys import Choice, Journeys
from inferway_ray.observed import observe
from inferway_ray.settings import router_settings

log = logging.getLogger("inferway_ray")

ROUTER = "inferway_ray.router:InferwayRouter"
FLUSH_SECONDS = 5.0
# Beside the reasons of model.Reason: what Ray's default has chosen, and turns of replicas whose
# engines are not known.
DEFAULT, UNKNOWN = "ray-default", "replica-unknown"
_CHOICE = "_inferway_choice"  # of a pending request, which is chosen for anew after a refusal


def router_config(router: str = ROUTER, **settings: Any) -> RequestRouterConfig:
    """Return the configuration of a deployment whose replicas this router chooses. `settings`: as
    docs/guides/ray.md lists them. Raises ConfigError: here, where the deployment is written, and
    not in a router, which could only go without them."""
    router_settings(settings)
    return RequestRouterConfig(request_router_class=router, request_router_kwargs=settings)


class DecisionCounts:
    """Counts decisions for Ray's metric `ray_inferway_router_decisions_total` in the router's loop,
    and tells Ray every few seconds: its counters take microseconds each."""

    def __init__(self, application: str, deployment: str, tasks: Tasks) -> None:
        self._counter = metrics.Counter(
            "inferway_router_decisions",
            description="Handle calls routed, by why they went where they went.",
            tag_keys=("application", "deployment", "reason"),
        )
        self._counter.set_default_tags({"application": application, "deployment": deployment})
        self._new: Counter[str] = Counter()
        self._tasks = tasks

    def decided(self, reason: str) -> None:
        if not self._new:
            self._tasks.spawn(self._flush())
        self._new[reason] += 1

    async def _flush(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        told, self._new = self._new, Counter()
        for reason, number in told.items():
            self._counter.inc(number, tags={"reason": reason})


class InferwayRouter(LocalityMixin, MultiplexMixin, RequestRouter):  # type: ignore[misc]
    """See the module. Ray calls all of it on one event loop."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Take the settings in `request_router_kwargs`. Bad ones are an error in the log, and
        everything is routed by Ray's default."""
        self._told: set[str] = set()
        self._random = Random()
        self._tasks = Tasks(log, "the router's view of its replicas is not up to date")
        self._counts = DecisionCounts(self.app_name, self._deployment_id.name, self._tasks)
        self._journeys: Journeys | None = None
        try:
            settings = router_settings(kwargs)
        except ConfigError as e:
            log.error("deployment %s is routed by Ray's default: %s", self._deployment_id, e)
        else:
            self._journeys = Journeys(settings, self._num_requests)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        if self._journeys is not None:
            self._tasks.spawn(self._journeys.set_replicas(self._announced()))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        if self._journeys is not None:
            self._tasks.spawn(self._journeys.set_replicas(self._announced()))

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas one by one, the cheapest first; those that Ray's default would try if
        nothing is known of the request."""
        choice = None
        if pending_request is not None and self._journeys is not None:
            unknown = self._unknown(self._journeys, candidate_replicas)
            if unknown:
                self._counts.decided(UNKNOWN)
                return [unknown]
            try:
                choice = await self._choose(self._journeys, candidate_replicas, pending_request)
            except Exception as e:
                log.error("a request is routed by Ray's default: %s", crash_report(e))
        self._counts.decided(DEFAULT if choice is None else choice.reason)
        if choice is None:
            chosen: list[list[RunningReplica]]
            chosen = await PowerOfTwoChoicesRequestRouter.choose_replicas(
                self, candidate_replicas=candidate_replicas, pending_request=pending_request
            )
            return chosen
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[by_id[name]] for name in choice.replicas if name in by_id]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        choice: Choice | None = getattr(pending_request, _CHOICE, None)
        journeys = self._journeys
        if choice is None or journeys is None:
            return
        journeys.routed(choice, replica_id.unique_id)
        if pending_request.metadata.is_streaming:
            observe(result, partial(self._begun, journeys, choice))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        if self._journeys is not None:
            self._journeys.completed(internal_request_id, replica_id.unique_id)

    def _begun(self, journeys: Journeys, choice: Choice, status: int) -> None:
        """Tell the event loop from the thread that reads the answer."""
        self._event_loop.call_soon_threadsafe(journeys.begun, choice, status)

    async def _choose(
        self,
        journeys: Journeys,
        candidates: Sequence[RunningReplica],
        pending: PendingRequest,
    ) -> Choice | None:
        before: Choice | None = getattr(pending, _CHOICE, None)
        if before is not None:  # its replica has refused it
            journeys.drop(before)
            setattr(pending, _CHOICE, None)
        metadata = pending.metadata
        asked = asked_of(pending.args, pending.kwargs, metadata.call_method)
        if asked is None:
            return None
        among = self._among(candidates, pending)
        choice = await journeys.choose(asked, metadata.internal_request_id, among)
        if choice is None:
            return None
        setattr(pending, _CHOICE, choice)
        if choice.headers:
            put_headers(pending.args, choice.headers)
        return choice

    def _unknown(
        self, journeys: Journeys, candidates: Sequence[RunningReplica]
    ) -> list[RunningReplica]:
        """The replicas whose engines are not known yet, or never will be, as often as it is their
        turn: they would get no request otherwise, and the others all of them."""
        if journeys.director is None:
            return []
        there = journeys.there
        unknown = [each for each in candidates if each.replica_id.unique_id not in there]
        if unknown and self._random.random() * len(candidates) < len(unknown):
            return unknown
        return []

    def _among(self, candidates: Sequence[RunningReplica], pending: PendingRequest) -> set[str]:
        """The replicas with room; of those, for an adapter, the ones that have it."""
        free = self.select_available_replicas(list(candidates)) or candidates
        names = {replica.replica_id.unique_id for replica in free}
        if not pending.metadata.multiplexed_model_id:
            return names
        able = self.apply_multiplex_routing(pending_request=pending)
        return names & {each.unique_id for each in able} or names

    def _announced(self) -> list[AnnouncedReplica]:
        """Return what the replicas have announced; what is wrong with one is in the log once."""
        found = []
        for replica in self._replicas.values():
            name = replica.replica_id.unique_id
            try:
                found.append(
                    announced(
                        name,
                        replica.replica_metadata,
                        replica.routing_stats or {},
                        replica.backend_http_endpoint,
                        tuple(replica.multiplexed_model_ids),
                    )
                )
            except ConfigError as e:
                if str(e) not in self._told:
                    self._told.add(str(e))
                    log.warning("a replica is chosen by load only: %s", e)
        return sorted(found, key=lambda each: each.replica)

    def _num_requests(self, replica: str) -> int:
        """Return how many requests Ray last knew the replica to have."""
        for replica_id in self._replicas:
            if replica_id.unique_id == replica:
                return self._replica_queue_len_cache.get(replica_id) or 0
        return 0
