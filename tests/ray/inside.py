"""A replica that has its engine inside, as Ray's LLM deployments have: no HTTP is announced, but
where its KV events are."""

from __future__ import annotations

from typing import Any

from inferway_ray.programs import EngineProgram


class EngineInside(EngineProgram):
    async def record_replica_metadata(self) -> dict[str, Any]:
        await self._program.answers()
        return {}

    async def record_routing_stats(self) -> dict[str, Any]:
        async with self._program.session.get(f"{self._program.url}/kv_event_sources") as answer:
            source = (await answer.json())["0"]
        told = {
            name: source[name].replace("*", "127.0.0.1") for name in ("endpoint", "replay_endpoint")
        }
        more = {"block_size": 16, "max_num_batched_tokens": 8192, "dp_rank": 0}
        return {"kv_event_metadata": {**told, **more}}
