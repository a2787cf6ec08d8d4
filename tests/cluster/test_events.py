"""What engines' events tell the hub all workers know, whatever engines come and go."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

from tests.cluster.serving import CHAT, LONG, MODEL, Serving, simulated
from tests.engines import client
from tests.engines.program import Program
from tests.engines.waiting import wait_until

from inferway_sim.engine import SimulatedEngine


def exact(gateway: Serving) -> float:
    """How many engines' caches are known as they are."""
    return gateway.metric("inferway_stream_state", 'state="exact"')


def is_known(gateway: Serving, *contents: str) -> bool:
    """Whether a worker finds the prompt in an engine's cache."""
    return int(gateway.insist(*contents).headers["x-inferway-matched-blocks"]) > 3


def test_engines_come_and_go(tmp_path: Path) -> None:
    settings = tmp_path / "gateway.yaml"
    settings.write_text("policy: kv-aware\n")
    with simulated() as late, simulated() as other:

        def list_engines(*engines: SimulatedEngine) -> None:
            urls = "".join(f"\n- url: {engine.url}" for engine in engines)
            settings.write_text(f"policy: kv-aware\nengines:{urls}\n")

        list_engines(other)
        words = ["serve", "--config", str(settings), "--workers", "2"]
        with Program(words, tmp_path / "gateway.log") as gateway:
            found = Serving(gateway, [])
            wait_until(lambda: exact(found) == 1, "it is known", gateway.log_text)
            found.chat(LONG)
            wait_until(lambda: is_known(found, LONG), "what it holds is known")

            list_engines(other, late)
            os.kill(gateway.pid, signal.SIGHUP)
            wait_until(lambda: exact(found) == 2, "the new one, too", gateway.log_text)

            list_engines(late)
            os.kill(gateway.pid, signal.SIGHUP)
            wait_until(lambda: exact(found) == 1, "one has left", gateway.log_text)
            found.chat(LONG)
            wait_until(lambda: is_known(found, LONG), "what the new one holds is known")
            assert gateway.stop() == 0


def test_blocks_without_a_known_parent_are_adopted_by_prompts_of_workers(tmp_path: Path) -> None:
    # The hub gets to know the last story, whether it asks before the probe or behind it, and
    # never the first. How the engine hashes, a prompt shows that begins as no other one does.
    stories = [LONG * number for number in range(1, 12)]
    last_batches = ["--kv-events-replay-queue-size", "9"]
    with simulated(*last_batches) as engine:
        for story in stories:
            message = {"role": "user", "content": story}
            body = {"model": MODEL, "messages": [message], "max_tokens": 1}
            assert client.post(f"{engine.url}{CHAT}", body).status == 200
        words = ["serve", engine.url, "--workers", "2", "--policy", "kv-aware"]
        with Program(words, tmp_path / "gateway.log") as gateway:
            found = Serving(gateway, [engine])
            wait_until(lambda: found.metric("inferway_orphans") > 0, "one is known")

            numbers = count()

            def adopted() -> bool:
                new = {"model": MODEL, "prompt": f"{next(numbers)} {LONG}", "max_tokens": 1}
                client.post(f"{found.url}/v1/completions", new)
                found.chat(stories[-1], max_tokens=1)
                return found.metric("inferway_blocks_adopted_total") > 0

            wait_until(adopted, "prompts give them their keys", gateway.log_text)
