"""Pods come and go in a small Kubernetes; the gateway's engines are simulated ones behind their
addresses."""

from __future__ import annotations

import pytest
from tests.fleet.discovery.kubernetes.api_server import ApiServerDouble, pod, pool
from tests.integration.conftest import LONG, Fleet, StartFleet, simulated, until

from inferway.config import DiscoverySettings, KubernetesSettings, ModelRewrite


def followed(cluster: ApiServerDouble) -> DiscoverySettings:
    return DiscoverySettings(
        kubernetes=KubernetesSettings(pool="pool", namespace="ns", api=cluster.url)
    )


async def until_up(fleet: Fleet, *engines: str) -> None:
    """Until these, and no others, answer."""

    async def are_up() -> bool:
        known = [engine.name for engine in fleet.gateway.fleet.engines if engine.healthy]
        return sorted(known) == sorted(engines)

    await until(are_up)


async def test_engines_come_and_go_with_their_pods(start_fleet: StartFleet) -> None:
    async with ApiServerDouble() as cluster:
        fleet = await start_fleet(0, discovery=followed(cluster))
        first = await fleet.start_engine(simulated(host="127.0.0.2"))
        port = int(first.url.rpartition(":")[2])
        await fleet.start_engine(simulated(host="127.0.0.3", port=port))
        cluster.put("inferencepools", pool("pool", port))
        cluster.put("pods", pod("a", "127.0.0.2"))
        await until_up(fleet, "a-rank-0")

        assert (await fleet.chat(LONG)).engine == "a-rank-0"
        await until(lambda: knows(fleet, "a-rank-0"))
        assert (await fleet.chat(LONG)).matched > 0

        cluster.put("pods", pod("b", "127.0.0.3"))
        await until_up(fleet, "a-rank-0", "b-rank-0")
        assert (await fleet.chat(LONG)).engine == "a-rank-0"  # still the one that holds it

        cluster.put("pods", pod("a", "127.0.0.2", ready=False))
        await until_up(fleet, "b-rank-0")
        answer = await fleet.chat(LONG)
        assert (answer.engine, answer.matched) == ("b-rank-0", 0)
        assert await fleet.metric("inferway_index_blocks", engine="a-rank-0") == 0

        cluster.delete("pods", "b")
        await until_up(fleet)
        assert (await fleet.chat(LONG)).status == 503


async def knows(fleet: Fleet, engine: str) -> bool:
    """Whether its events have come."""
    return await fleet.metric("inferway_index_blocks", engine=engine) > 0


@pytest.mark.parametrize("group", ["", "llm-d.ai/"])
async def test_what_kubernetes_says_of_models_is_in_force(
    start_fleet: StartFleet, group: str
) -> None:
    """Of the Gateway API's extension, and of llm-d."""
    async with ApiServerDouble() as cluster:
        cluster.kinds |= {f"{group}inferencemodelrewrites": {}, f"{group}inferenceobjectives": {}}
        fleet = await start_fleet(1, discovery=followed(cluster), model_rewrites=[])
        rule = {
            "metadata": {"name": "rule", "namespace": "ns"},
            "spec": {
                "poolRef": {"name": "pool"},
                "rules": [
                    {
                        "matches": [{"model": {"value": "other"}}],
                        "targets": [{"modelRewrite": "smollm2", "weight": 1}],
                    }
                ],
            },
        }
        objective = {
            "metadata": {"name": "batch", "namespace": "ns"},
            "spec": {"priority": -1, "poolRef": {"name": "pool"}},
        }
        cluster.put("inferencepools", pool("pool", 1))
        cluster.put(f"{group}inferencemodelrewrites", rule)
        cluster.put(f"{group}inferenceobjectives", objective)
        director = fleet.gateway.director

        async def told() -> bool:
            return bool(director.rewrites.rules) and "batch" in director.priorities

        await until(told)
        answer = await fleet.chat("Hi", model="other")

        assert answer.status == 200
        assert answer.body["model"] == "other"
        assert director.priorities == {"batch": -1}
        assert all(isinstance(rule, ModelRewrite) for rule in director.rewrites.rules)
