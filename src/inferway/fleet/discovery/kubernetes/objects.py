"""Kubernetes' objects -> settings. Pure.

Pod                   v1
InferencePool         inference.networking.k8s.io/v1 (and x-k8s.io/v1alpha2: one targetPortNumber)
InferenceObjective    inference.networking.x-k8s.io/v1alpha2
InferenceModelRewrite inference.networking.x-k8s.io/v1alpha2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.config import EngineSettings, ModelRewrite, RewriteTarget

Object = Mapping[str, Any]  # as the API server writes it


@dataclass(frozen=True, slots=True)
class PodSelection:
    """What selects a pool's pods, and where they listen."""

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
