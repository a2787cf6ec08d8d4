"""Requests in two legs while the prefill engine is killed again and again: how many fail, and how
many are answered wrongly, by the gateway and by vllm-router.

INFERWAY_VLLM_VENV=/path .venv/bin/python -m tests.engines.killed_prefill [REQUESTS]

Each prompt is its own, half of the answers are streamed. Right is what one engine alone answers, by
its log-probabilities: those of another prompt's blocks differ by hundreds of times the tolerance.
The engine that was killed is started again at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.engines import client
from tests.engines.chats import COMPLETION
from tests.engines.conftest import ROOT, serve_in_two_legs
from tests.engines.engine import MODEL, free_ports, wait_until_ready
from tests.engines.nixl import NixlEngine, fetched
from tests.engines.small_model import first_layers
from tests.engines.waiting import wait_until

from inferway_bench.processes import running
from inferway_bench.routers import EngineAddress, Place, VllmRouter, all_routers
from inferway_sim.prepare import prepare_smollm2

RESULTS = ROOT / "docs" / "results" / "killed_prefill.json"
REQUESTS = 500
GAP_SECONDS = 0.6  # between two requests
KILL_SECONDS = 60  # between two kills
PROMPT_TOKENS = 200
ANSWER_TOKENS = 6
TOLERANCE = 1e-3


class TwoLegVllmRouter(VllmRouter):
    """vllm-router with --vllm-pd-disaggregation: the first engine prefills, the second decodes."""

    def command(self, place: Place) -> list[str]:
        words = [str(self.peers.executable(self.package)), "--vllm-pd-disaggregation"]
        words += ["--kv-connector", "nixl", "--policy", self.policy]
        prefill, decode = place.engines
        words += ["--prefill", prefill.url, "--decode", decode.url]
        words += ["--host", "127.0.0.1", "--port", str(place.port)]
        return [*words, "--prometheus-port", str(place.metrics_port)]


@dataclass
class Tally:
    """What came of the requests to one router."""

    requests: int = 0
    kills: int = 0
    legs: float = 0  # prompts' tokens that the decode engine got from the other one
    wrong: int = 0
    failed: Counter[str] = field(default_factory=Counter)


def body_of(number: int, salt: str) -> dict[str, Any]:
    """A salt for each router keeps its blocks apart from the others' in the engines' caches."""
    prompt = Random(number).choices(range(1000, 40_000), k=PROMPT_TOKENS)
    asked = {"max_tokens": ANSWER_TOKENS, "temperature": 0, "logprobs": 1, "cache_salt": salt}
    return {"model": MODEL, "prompt": prompt, **asked, "stream": bool(number % 2)}


def log_probabilities(url: str, body: dict[str, Any]) -> list[float]:
    """Of the answer's tokens. Raises OSError, HTTPException or ValueError if it is no whole
    answer."""
    answer = client.post(url + COMPLETION, body)
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    if not body["stream"]:
        found: list[float] = answer.json["choices"][0]["logprobs"]["token_logprobs"]
        return found
    events = [line[6:] for line in answer.raw.decode().splitlines() if line.startswith("data: ")]
    if events[-1:] != ["[DONE]"] or '"error"' in events[-2]:
        raise ValueError("a stream that ends with an error, or without [DONE]")
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    return [one for choice in choices for one in choice["logprobs"]["token_logprobs"]]


def ask(url: str, body: dict[str, Any], right: Sequence[float], tally: Tally) -> None:
    tally.requests += 1
    try:
        told = log_probabilities(url, body)
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as e:
        tally.failed[f"{type(e).__name__}: {e}"[:80]] += 1
        return
    pairs = list(zip(told, right, strict=False))
    if len(told) != len(right) or any(abs(a - b) > TOLERANCE for a, b in pairs):
        tally.wrong += 1


@contextmanager
def killing(engine: NixlEngine, tally: Tally) -> Iterator[None]:
    """Kill `engine` each minute, and start it again."""
    over = threading.Event()

    def kill_and_start() -> None:
        while not over.wait(KILL_SECONDS):
            engine.kill()
            tally.kills += 1
            engine.start()
            wait_until_ready([engine], lambda _: None)
            engine.use_all_cores()

    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill_and_start)
        try:
            yield
        finally:
            over.set()
            killer.result()


def measure(
    url: str, salt: str, pair: tuple[NixlEngine, NixlEngine], right: Sequence[list[float]]
) -> Tally:
    prefill, decode = pair
    tally = Tally()
    before = fetched(decode)
    started = time.monotonic()
    with killing(prefill, tally), ThreadPoolExecutor(32) as pool:
        for number, expected in enumerate(right):
            time.sleep(max(0.0, started + number * GAP_SECONDS - time.monotonic()))
            pool.submit(ask, url, body_of(number, salt), expected, tally)
    tally.legs = fetched(decode) - before
    return tally


@contextmanager
def vllm_router(pair: tuple[NixlEngine, NixlEngine], directory: Path) -> Iterator[str]:
    known = all_routers(("vllm-router round_robin",), True, print)
    [theirs] = [router for router in known if isinstance(router, VllmRouter)]
    addresses = [EngineAddress(engine.url, "") for engine in pair]
    port, metrics_port = free_ports(2)
    place = Place(port, metrics_port, addresses, MODEL, directory)
    command = TwoLegVllmRouter(theirs.peers, "round_robin").command(place)
    with running(command, directory / "router.log"):
        wait_until(lambda: client.answers(f"{place.url}/health"), "vllm-router answers")
        yield place.url


@contextmanager
def inferway(pair: tuple[NixlEngine, NixlEngine], directory: Path) -> Iterator[str]:
    with serve_in_two_legs(*pair, directory / "gateway.log") as program:
        yield program.url


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    vllm = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "vllm"
    found = {}
    with TemporaryDirectory() as name:
        directory = Path(name)
        model = first_layers(prepare_smollm2(weights=True), directory / "model")
        pair = (
            NixlEngine(vllm, model, directory / "p.log"),
            NixlEngine(vllm, model, directory / "d.log"),
        )
        try:
            for engine in pair:
                engine.start()
            wait_until_ready(pair, print)
            for engine in pair:
                engine.use_all_cores()
            alone = [body_of(number, "alone") for number in range(requests)]
            right = [log_probabilities(pair[1].url, body) for body in alone]
            for router in (inferway, vllm_router):
                with router(pair, directory) as url:
                    found[router.__name__] = vars(measure(url, router.__name__, pair, right))
                print(router.__name__, found[router.__name__])
        finally:
            for engine in pair:
                engine.kill()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
