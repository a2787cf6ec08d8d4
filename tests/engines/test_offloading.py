"""An engine that offloads to the CPU tells of copies without the salt that is in their hashes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.engines import client
from tests.engines.chats import Request, completion
from tests.engines.conftest import Say, serve
from tests.engines.engine import BLOCK_SIZE, RealEngine, wait_until_ready
from tests.engines.gateway import cached, scores, send
from tests.engines.waiting import wait_until

from inferway.config import EngineSettings
from inferway.doctor.engines import ask_engines

NUM_BLOCKS = 40  # of the GPU, as it is called; one is vLLM's null block
PROMPT_BLOCKS = 9
CPU_WEIGHT = 0.8

OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "CopyingSpec",
        "spec_module_path": "copying_offload",
        "cpu_bytes_to_use": 500_000_000,
        "self_describing_kv_events": True,
    },
}


@pytest.fixture(scope="module")
def engine(
    vllm: Path, model_dir: Path, new_log: Callable[[str], Path], say: Say
) -> Iterator[RealEngine]:
    flags = ["--num-gpu-blocks-override", str(NUM_BLOCKS), "--max-model-len", "1024"]
    flags += ["--kv-transfer-config", json.dumps(OFFLOADING)]
    one = RealEngine(vllm, model_dir, new_log("engine-offloading"), flags)
    try:
        one.start()
        wait_until_ready([one], say)
        yield one
    finally:
        one.kill()


def prompt(name: str, blocks: int, **more: object) -> Request:
    """So many blocks and a token, of ids that no other name has."""
    ids = [Random(name).randrange(1000, 40_000) for _ in range(blocks * BLOCK_SIZE + 1)]
    return completion(name, ids, **more)


def test_a_salted_prompt_that_left_the_gpu_is_believed_where_it_is_reused_and_no_other(
    engine: RealEngine, new_log: Callable[[str], Path], say: Say
) -> None:
    salted, plain = prompt("p", PROMPT_BLOCKS, cache_salt="tenant"), prompt("p", PROMPT_BLOCKS)

    with serve([engine], new_log("gateway-offloading")) as gateway:

        def report() -> str:
            return client.get(f"{gateway.url}/admin/engines").raw.decode()

        def stream() -> dict[str, Any]:
            [told] = json.loads(report())["engines"]
            found: dict[str, Any] = told["endpoints"][0]["stream"]
            return found

        def believed(request: Request) -> float:
            return scores(gateway.url, request).get(engine.name, 0)

        send(engine.url, salted)
        wait_until(lambda: believed(salted) == PROMPT_BLOCKS, "the salted prompt is known", report)
        wait_until(lambda: stream()["dialect"]["state"] == "found", "its hashes are known", report)
        assert believed(plain) == 0
        for i in range(5):
            send(engine.url, prompt(f"other {i}", 18))
        in_cpu = pytest.approx(CPU_WEIGHT * PROMPT_BLOCKS)
        wait_until(lambda: believed(salted) == in_cpu, "the prompt is in CPU memory alone", report)
        assert believed(plain) == 0
        assert (stream()["state"], stream()["dialect"]["state"]) == ("exact", "found")
        reused = cached(send(engine.url, salted)).blocks
        reused_plain = cached(send(engine.url, plain)).blocks

    say(f"reused of the salted prompt {reused} blocks, of the plain one {reused_plain}")
    assert (reused, reused_plain) == (PROMPT_BLOCKS, 0)


def test_the_doctor_sees_that_it_offloads(engine: RealEngine) -> None:
    (found,) = asyncio.run(ask_engines([EngineSettings(url=engine.url)]))

    assert found.offloads
