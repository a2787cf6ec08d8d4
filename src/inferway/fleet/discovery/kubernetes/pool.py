"""The engines of an InferencePool, or of a selector given by hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inferway.config import ModelRewrite
from inferway.fleet.discovery.kubernetes.api import ApiServer
from inferway.fleet.discovery.kubernetes.list_watch import ListWatch
from inferway.fleet.discovery.kubernetes.objects import (
    Object,
    PodSelection,
    engines_of,
    pool_of,
    priorities_of,
    rewrites_of,
)
from inferway.fleet.discovery.sources import Tell

log = logging.getLogger("inferway.kubernetes")

POOL_GROUP = "inference.networking.k8s.io"
_VERSIONS = {POOL_GROUP: "v1", "inference.networking.x-k8s.io": "v1alpha2"}
# Where objectives and rewrites are defined: by the Gateway API, and by llm-d since it has them.
_RULE_GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")
_OBJECTIVES, _REWRITES = "inferenceobjectives", "inferencemodelrewrites"


@dataclass(slots=True)
class SelectedPods:
    """Pods of a selector that stays as it is (`--endpoint-selector`, `--endpoint-target-ports`)."""

    server: ApiServer
    namespace: str
    pool: PodSelection
    _pods: ListWatch | None = None

    async def run(self, tell: Tell) -> None:
        """Tell the engines of the selected pods, whenever they change."""
        self._pods = _watch_pods(self.server, self.namespace, self.pool, tell)
        await self._pods.run()

    @property
    def synced(self) -> bool:
        return self._pods is not None and self._pods.synced


@dataclass(slots=True)
class PoolPods:
    """A pool and its pods. A pool whose selector or ports change has other pods; one that is
    deleted has none. `rules` is told objectives and rewrites of this pool."""

    server: ApiServer
    namespace: str
    name: str
    group: str = POOL_GROUP
    rules: Callable[[dict[str, int], list[ModelRewrite]], None] | None = None
    _pool: PodSelection | None = None
    _pods: ListWatch | None = None
    _following: asyncio.Task[None] | None = None
    _known: bool = False  # whether the pool has been looked for
    _said: dict[tuple[str, str], list[Object]] = field(default_factory=dict)  # kind, group

    async def run(self, tell: Tell) -> None:
        """Tell the engines of the pool's pods, whenever they change, and its rules."""
        version = _VERSIONS.get(self.group, "v1")
        pools = ListWatch(
            self.server,
            f"/apis/{self.group}/{version}/namespaces/{self.namespace}/inferencepools",
            lambda found: self._pools_changed(found, tell),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for watch in (pools, *self._rule_watches()):
                    tasks.create_task(watch.run())
        finally:
            await self._stop()

    @property
    def synced(self) -> bool:
        """A pool that does not exist is known not to."""
        if self._pool is None:
            return self._known
        return self._pods is not None and self._pods.synced

    def _pools_changed(self, found: list[Object], tell: Tell) -> None:
        ours = [pool for pool in found if pool["metadata"]["name"] == self.name]
        pool = pool_of(ours[0]) if ours else None
        first, self._known = not self._known, True
        if pool == self._pool and not first:
            return
        self._pool = pool
        if self._following is not None:
            self._following.cancel()
            self._following, self._pods = None, None
        if pool is None:
            log.warning(
                "the InferencePool %s/%s does not exist yet; the gateway waits for it",
                self.namespace,
                self.name,
            )
            tell([])
            return
        log.info(
            "the InferencePool %s/%s selects pods with %s, on the ports %s",
            *(self.namespace, self.name, pool.selector),
            ", ".join(map(str, pool.ports)),
        )
        self._pods = _watch_pods(self.server, self.namespace, pool, tell)
        self._following = asyncio.get_running_loop().create_task(self._pods.run())

    def _rule_watches(self) -> list[ListWatch]:
        if self.rules is None:
            return []

        def watch(kind: str, group: str) -> ListWatch:
            def changed(found: list[Object]) -> None:
                self._said[kind, group] = found
                self._tell_rules()

            path = f"/apis/{group}/v1alpha2/namespaces/{self.namespace}/{kind}"
            return ListWatch(self.server, path, changed, optional=True)

        return [watch(kind, group) for kind in (_OBJECTIVES, _REWRITES) for group in _RULE_GROUPS]

    def _tell_rules(self) -> None:
        assert self.rules is not None
        self.rules(
            priorities_of(self._all_said(_OBJECTIVES), self.name),
            rewrites_of(self._all_said(_REWRITES), self.name),
        )

    def _all_said(self, kind: str) -> list[Object]:
        return [each for group in _RULE_GROUPS for each in self._said.get((kind, group), ())]

    async def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)


def _watch_pods(server: ApiServer, namespace: str, pool: PodSelection, tell: Tell) -> ListWatch:
    def changed(pods: Sequence[Object]) -> None:
        tell([engine for pod in pods for engine in engines_of(pod, pool.ports)])

    return ListWatch(server, f"/api/v1/namespaces/{namespace}/pods", changed, pool.selector)
