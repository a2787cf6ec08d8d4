"""Engines as pods of a Kubernetes cluster: of an InferencePool, or of a selector given by hand.

Pod                   v1
InferencePool         inference.networking.k8s.io/v1 (and x-k8s.io/v1alpha2: one targetPortNumber)
InferenceObjective    inference.networking.x-k8s.io/v1alpha2
InferenceModelRewrite inference.networking.x-k8s.io/v1alpha2
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inferway.config import EngineSettings, KubernetesSettings, ModelRewrite, RewriteTarget
from inferway.fleet.discovery.list_watch import (
    Access,
    ApiServer,
    ListWatch,
    Object,
    own_namespace,
)
from inferway.fleet.discovery.sources import EngineSource, Rules, Tell

log = logging.getLogger("inferway.kubernetes")

POOL_GROUP = "inference.networking.k8s.io"
_VERSIONS = {POOL_GROUP: "v1", "inference.networking.x-k8s.io": "v1alpha2"}
# Where objectives and rewrites are defined: by the Gateway API, and by llm-d since it has them.
_RULE_GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")
_OBJECTIVES, _REWRITES = "inferenceobjectives", "inferencemodelrewrites"


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The selector of a pool's pods, and the ports on which they listen."""

    selector: str  # as a list's query has it
    ports: Sequence[int]


def selector_of(labels: Mapping[str, str]) -> str:
    """Return the selector of what has all these labels."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def pool_of(pool: Object) -> PodSelection | None:
    """Return what a pool selects; None for a pool that is on its way out, or that says nothing of
    it."""
    if pool["metadata"].get("deletionTimestamp"):
        return None
    spec = pool.get("spec") or {}
    selector = spec.get("selector") or {}
    labels = selector.get("matchLabels", selector)  # v1alpha2 has the labels themselves
    ports = [port["number"] for port in spec.get("targetPorts") or ()]
    if not ports and spec.get("targetPortNumber"):
        ports = [spec["targetPortNumber"]]
    return PodSelection(selector_of(labels), ports) if labels and ports else None


def engines_of(pod: Object, ports: Sequence[int]) -> list[EngineSettings]:
    """Return a pod's engines. Every port of a ready pod is one, named as llm-d does; a pod that is
    not ready, or going, has none."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    address = status.get("podIP")
    if metadata.get("deletionTimestamp") or not address or not _is_ready(status):
        return []
    host = f"[{address}]" if ":" in address else address
    return [
        EngineSettings(
            url=f"http://{host}:{port}",
            name=f"{metadata['name']}-rank-{rank}",
            labels=dict(metadata.get("labels") or {}),
        )
        for rank, port in enumerate(ports)
    ]


def _is_ready(status: Object) -> bool:
    conditions = status.get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def priorities_of(objectives: Iterable[Object], pool: str) -> dict[str, int]:
    """Return the priorities of the objectives that are for this pool, by name."""
    return {
        objective["metadata"]["name"]: int(objective["spec"].get("priority") or 0)
        for objective in objectives
        if _is_for(objective, pool)
    }


def rewrites_of(rewrites: Iterable[Object], pool: str) -> list[ModelRewrite]:
    """Return the rules for this pool: those for models by name before those for all; of equals the
    older object's first, as llm-d has it. A rule without targets says nothing."""
    oldest_first = sorted(
        (each for each in rewrites if _is_for(each, pool)),
        key=lambda each: (each["metadata"].get("creationTimestamp", ""), each["metadata"]["name"]),
    )
    rules = [
        ModelRewrite(models=_models(rule), targets=targets)
        for each in oldest_first
        for rule in each["spec"].get("rules") or ()
        if (targets := _targets(rule))
    ]
    return [rule for rule in rules if rule.models] + [rule for rule in rules if not rule.models]


def _models(rule: Object) -> list[str]:
    return [match["model"]["value"] for match in rule.get("matches") or () if match.get("model")]


def _targets(rule: Object) -> list[RewriteTarget]:
    return [
        RewriteTarget(model=target["modelRewrite"], weight=weight)
        for target in rule.get("targets") or ()
        if (weight := int(target.get("weight", 1))) > 0
    ]


def _is_for(custom: Object, pool: str) -> bool:
    spec = custom.get("spec") or {}
    return (spec.get("poolRef") or {}).get("name") == pool


@dataclass(slots=True)
class SelectedPods:
    """Pods of a selector that stays as it is (`--endpoint-selector`, `--endpoint-target-ports`)."""

    server: ApiServer
    namespace: str
    pool: PodSelection
    _pods: ListWatch | None = None

    async def run(self, tell: Tell) -> None:
        """Tell the engines of the selected pods, whenever they change."""

        def changed(pods: Sequence[Object]) -> None:
            tell([engine for pod in pods for engine in engines_of(pod, self.pool.ports)])

        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self._pods = ListWatch(self.server, path, changed, self.pool.selector)
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
    rules: Rules | None = None
    _pool: PodSelection | None = None
    _pods: SelectedPods | None = None
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
            if self._following is not None:
                self._following.cancel()
                await asyncio.gather(self._following, return_exceptions=True)

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
        self._pods = SelectedPods(self.server, self.namespace, pool)
        self._following = asyncio.get_running_loop().create_task(self._pods.run(tell))

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
        objectives, rewrites = (
            [each for group in _RULE_GROUPS for each in self._said.get((kind, group), ())]
            for kind in (_OBJECTIVES, _REWRITES)
        )
        assert self.rules is not None
        self.rules(priorities_of(objectives, self.name), rewrites_of(rewrites, self.name))


def pods(settings: KubernetesSettings, rules: Rules | None) -> tuple[EngineSource, ApiServer]:
    """Return the source that the settings name, and the server to close with it. Raises
    ConfigError."""
    api, namespace = settings.api, settings.namespace or own_namespace()
    server = ApiServer(Access.in_cluster() if api is None else Access(api.rstrip("/")))
    if settings.pool is not None:
        return PoolPods(server, namespace, settings.pool, settings.group, rules), server
    given = settings.selector
    selector = given if isinstance(given, str) else selector_of(given)
    return SelectedPods(server, namespace, PodSelection(selector, settings.ports)), server
