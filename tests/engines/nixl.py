"""Real engines that hand KV blocks to each other by vLLM's NixlConnector, over shared memory."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from tests.engines import client
from tests.engines.engine import RealEngine, free_ports, processes_of

CACHE = ("--num-gpu-blocks-override", "256")  # 8,160 tokens

LEASE_SECONDS = 20  # vLLM's own default is 30, and tests wait for its end

# A metric of the engine that kept blocks for another one, which did not fetch them in time.
ENDED_LEASES = "vllm:nixl_num_kv_expired_reqs_total"

PREFILL, DECODE = "kv_producer", "kv_consumer"

# What asks an engine for a reference: the kv_transfer_params of a prefill leg.
ASKS_FOR_REFERENCE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class NixlEngine(RealEngine):
    """`on_failed_load`: what it does when it cannot get the blocks (kv_load_failure_policy)."""

    def __init__(
        self,
        vllm: Path,
        model_dir: Path,
        log: Path,
        role: str = "kv_both",
        *,
        on_failed_load: Literal["recompute", "fail"] = "recompute",
        lease_seconds: int = LEASE_SECONDS,
        more: tuple[str, ...] = (),
    ) -> None:
        self.side_channel = free_ports(1)[0]
        config = {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_load_failure_policy": on_failed_load,
            "kv_connector_extra_config": {"kv_lease_duration": lease_seconds},
        }
        flags = ("--dtype", "float32", *CACHE, "--kv-transfer-config", json.dumps(config), *more)
        environment = {
            "PYTHONPATH": f"{vllm.parents[1]}-nixl",  # scripts/install_nixl.sh
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel),
            "UCX_LOG_LEVEL": "error",
        }
        super().__init__(vllm, model_dir, log, flags, environment)

    def use_all_cores(self) -> None:
        """Once it is ready. vLLM's NIXL worker binds itself to the last core of the machine, where
        the other engine's is as well."""
        self.use_cores(os.sched_getaffinity(0))

    def use_cores(self, cores: set[int]) -> None:
        for pid in processes_of(session=self.session):
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), cores)


def metric(engine: RealEngine, name: str, source: str = "") -> float:
    """A metric's value now, of the series with that label `source` if it is named."""
    for line in client.get(f"{engine.url}/metrics").raw.decode().splitlines():
        if line.startswith(f"{name}{{") and (not source or f'source="{source}"' in line):
            return float(line.rpartition(" ")[2])
    raise RuntimeError(f"{engine.name} has no metric {name} {source}")


def fetched(engine: RealEngine) -> float:
    """Tokens of prompts that it has got from other engines."""
    return metric(engine, "vllm:prompt_tokens_by_source_total", "external_kv_transfer")
