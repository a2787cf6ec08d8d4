"""The processes of the experiment: simulated engines, the gateway, the load."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from inferway_bench.chat_overhead.answers import Outcome
from inferway_bench.chat_overhead.workload import (
    ARMS,
    PATHS,
    Arm,
    Kind,
    Planned,
    Prompt,
    make_body,
)
from inferway_bench.processes import (
    BenchError,
    free_port,
    get,
    request,
    running,
    wait_until,
)
from inferway_bench.routers import EngineAddress, Inferway, Place

NUM_ENGINES = 2  # the seed's "2 pods"
KV_BLOCKS = 16_384  # nothing that is measured is driven out


@dataclass(frozen=True, slots=True)
class Gateway:
    """`inferway serve` in front of engines that all have one model."""

    url: str
    engines: Sequence[str]
    model: str  # as clients name it
    directory: Path

    def send(self, plan: Sequence[Planned]) -> tuple[list[Outcome], float]:
        """What became of each request, and the share of a core that the sending took."""
        return send_planned(self.url, plan, self.directory)

    def prompt_token_ids(self, prompt: Prompt, kind: Kind, arm: Arm, salt: str) -> list[int]:
        """What the engine says it computed. Raises BenchError when it does not say."""
        answer = _ask_for_ids(self.url, make_body(prompt, kind, arm, self.model, salt), arm)
        ids = answer.get("prompt_token_ids") or answer["choices"][0].get("prompt_token_ids")
        if not isinstance(ids, list):
            raise BenchError(f"{self.url}: no prompt_token_ids in an answer that should have them")
        return ids

    def fill_caches(self, prompt: Prompt, salt: str) -> None:
        """Every engine computes the prompt once for each arm: what all prompts share is then
        cached everywhere, for both arms alike."""
        for engine in self.engines:
            for arm in ARMS:
                _ask_for_ids(engine, make_body(prompt, "text", arm, self.model, salt), arm)


def send_planned(url: str, plan: Sequence[Planned], directory: Path) -> tuple[list[Outcome], float]:
    """What became of each request, and the share of a core that the sending took, in a process of
    its own. Files go to `directory`."""
    planned, out = directory / "plan.jsonl", directory / "outcomes.jsonl"
    planned.write_bytes(b"".join(msgspec.json.encode(p) + b"\n" for p in plan))
    command = [sys.executable, "-m", "inferway_bench.chat_overhead.load"]
    command += [str(planned), str(out), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"the load generator ended: {done.stderr.strip()[-500:]}")
    share: float = json.loads(done.stdout)["cpu_share"]
    lines = out.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Outcome) for line in lines], share


def _ask_for_ids(url: str, body: dict[str, Any], arm: Arm) -> dict[str, Any]:
    small = {**body, "max_tokens": 1, "stream": False, "return_token_ids": True}
    del small["stream_options"]
    raw, _ = request(url + PATHS[arm], msgspec.json.encode(small), seconds=120)
    answer: dict[str, Any] = msgspec.json.decode(raw)
    return answer


@contextmanager
def simulated_fleet(
    directory: Path, model: Path, prefill_us_per_token: float, inter_token_ms: float, seed: int
) -> Iterator[list[str]]:
    """Engines without weights, each a process; their urls."""
    with ExitStack() as stack:
        started = []
        for i in range(NUM_ENGINES):
            log = directory / f"engine-{i}.log"
            command = [*_inferway(), "simulate", "--port", "0", "--model", str(model)]
            command += ["--kv-cache-size", str(KV_BLOCKS), "--seed", str(seed)]
            command += ["--prefill-time-per-token", f"{prefill_us_per_token:.3f}us"]
            command += ["--inter-token-latency", f"{inter_token_ms:.3f}ms"]
            started.append((stack.enter_context(running(command, log)), log))
        for process, log in started:
            wait_until(partial(_has_url, log), "a simulated engine", process, log)
        yield [_url_in(log) for _, log in started]


def _has_url(log: Path) -> bool:
    return _url_in(log) != ""


def _url_in(log: Path) -> str:
    """Empty until the engine listens."""
    found = re.search(r"simulated engine (http://\S+) serves", log.read_text())
    return found[1] if found else ""


@contextmanager
def gateway(directory: Path, engines: Sequence[str]) -> Iterator[Gateway]:
    """`inferway serve` as it is shipped, ready for the model that the first engine has."""
    card = model_card(engines[0])
    addresses = [EngineAddress(url, "") for url in engines]
    place = Place(free_port(), free_port(), addresses, card["id"], directory)
    log = directory / "gateway.log"
    router = Inferway(scoring=True)
    with running(router.command(place), log) as process:
        wait_until(lambda: router.is_ready(place), "the gateway", process, log)
        yield Gateway(place.url, engines, card["id"], directory)


def model_card(engine: str) -> dict[str, str]:
    """Of the first model it has: `id` is how clients name it, `root` its directory or hub id.

    Raises BenchError when nobody answers there.
    """
    try:
        card: dict[str, str] = msgspec.json.decode(get(f"{engine}/v1/models"))["data"][0]
    except OSError as e:
        raise BenchError(f"--engine {engine}: {e}; the cure: start an engine there") from e
    return card


def _inferway() -> list[str]:
    return [str(Path(sys.executable).with_name("inferway"))]
