"""A prompt's prefix lies on an engine that is busy: wait there, compute it again, or move it?

INFERWAY_VLLM_VENV=/path .venv/bin/python -m tests.engines.busy_holder \\
    [REPEATS [STREAMS [TOKENS ...]]]

The holder writes long answers all the time; the other engine is idle, and has nothing of the
prompt. Four gateways stand before the two: one knows the holder alone (wait), one the other engine
alone (compute), one sends all prompts to the holder and has the other one answer (move), and one
decides by what it has learned. They take turns. With TOKENS, only prefixes of these lengths are
measured, and what comes of it is not stored.
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
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.engines import client
from tests.engines.chats import COMPLETION
from tests.engines.conftest import (
    ROOT,
    ServingProgram,
    serve_in_two_legs,
    wait_until_known_to_hand_over,
)
from tests.engines.engine import MODEL, wait_until_ready
from tests.engines.nixl import NixlEngine
from tests.engines.waiting import wait_until

from inferway_sim.prepare import prepare_smollm2

RESULTS = ROOT / "docs" / "results" / "busy_holder.json"
REPEATS, STREAMS = 5, 8
LENGTHS = (64, 256, 512, 1024, 2048)
OWN_TOKENS = 16  # of each request, behind the prefix
ANSWER_TOKENS = 48
STREAM_TOKENS = 1500
LEARNED_FROM = 32  # requests
MORE_BLOCKS = ("--num-gpu-blocks-override", "2048")
LEASE_SECONDS = 30
WAIT, COMPUTE, MOVE, LEARNED = "wait", "compute", "move", "learned"

Pair = tuple[NixlEngine, NixlEngine]


@dataclass
class Row:
    """What came of the requests with a prefix of so many tokens that went one way: seconds to the
    first and to the last token, and which way it was."""

    tokens: int
    way: str
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)


def tokens(name: str, num: int) -> list[int]:
    return Random(name).choices(range(1000, 40_000), k=num)


def body_of(prompt: Sequence[int], answer: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": answer,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {
            "include_usage": True
        },  # what an answer's tokens cost is learned from it
    }


def ask(url: str, prompt: Sequence[int]) -> tuple[float, float, str, str | None]:
    """Seconds to the first and to the last token, the engine that answered, and the one that
    computed the prompt for it."""
    started = time.perf_counter()
    first = 0.0
    with client.open_stream(url + COMPLETION, body_of(prompt, ANSWER_TOKENS)) as stream:
        for line in stream:
            if not first and line.startswith(b'data: {"id"'):
                first = time.perf_counter() - started
        headers = stream.headers
    whole = time.perf_counter() - started
    return first, whole, headers["x-inferway-engine"], headers["x-inferway-prefill-engine"]


@contextmanager
def busy(engine: NixlEngine, streams: int) -> Iterator[None]:
    """It writes so many answers at a time."""
    over = threading.Event()

    def write(number: int) -> None:
        while not over.is_set():
            prompt = tokens(f"stream {number} {time.monotonic()}", 32)
            with client.open_stream(engine.url + COMPLETION, body_of(prompt, STREAM_TOKENS)) as one:
                for _ in one:
                    if over.is_set():
                        return

    with ThreadPoolExecutor(streams) as pool:
        writing = [pool.submit(write, number) for number in range(streams)]
        try:
            yield
        finally:
            over.set()
        for each in writing:
            each.result()


def forget(engine: NixlEngine, learned: str, prompt: Sequence[int]) -> None:
    """Let the engine have nothing, and the gateway know so. vLLM tells with its next step."""
    body = {"model": MODEL, "prompt": prompt}

    def is_forgotten() -> bool:
        wait_until(
            lambda: client.post(f"{engine.url}/reset_prefix_cache", {}).json["success"],
            "its cache is empty",
        )
        client.post(engine.url + COMPLETION, {**body, "prompt": [1, 2, 3], "max_tokens": 1})
        told = client.post(f"{learned}/score_completions", body).json["pod_scores"]
        return not told.get(engine.name)

    wait_until(is_forgotten, "the gateway knows that its cache is empty")


def learn(url: str) -> None:
    """Show the learned decision prompts of all lengths, each twice."""
    for number in range(LEARNED_FROM):
        length = Random(number // 2).randrange(64, 1024)
        ask(url, tokens(f"learn {number // 2}", length))


def measure(pair: Pair, urls: dict[str, str], repeats: int, lengths: Sequence[int]) -> list[Row]:
    holder, other = pair
    learn(urls[LEARNED])
    found: list[Row] = []
    for length in lengths:
        prefix = tokens(f"prefix {length}", length)
        rows = [Row(length, way) for way in (WAIT, COMPUTE, MOVE, LEARNED)]
        for repeat in range(repeats):
            ask(holder.url, prefix)
            for row in rows:
                forget(other, urls[LEARNED], prefix)
                prompt = [*prefix, *tokens(f"{length} {repeat} {row.way}", OWN_TOKENS)]
                first, whole, engine, moved = ask(urls[row.way], prompt)
                row.first.append(round(first, 4))
                row.whole.append(round(whole, 4))
                at = WAIT if engine == holder.name else COMPUTE
                row.chosen.append(MOVE if moved else at)
        for row in rows:
            medians = [round(median(seconds) * 1000) for seconds in (row.first, row.whole)]
            print(length, row.way, *medians, dict(Counter(row.chosen)), flush=True)
        found += rows
    return found


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS
    streams = int(sys.argv[2]) if len(sys.argv) > 2 else STREAMS
    lengths = tuple(map(int, sys.argv[3:])) or LENGTHS
    vllm = Path(os.environ["INFERWAY_VLLM_VENV"]) / "bin" / "vllm"
    with TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        model = prepare_smollm2(weights=True)
        more: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "more": MORE_BLOCKS}
        pair = (
            NixlEngine(vllm, model, directory / "holder.log", **more),
            NixlEngine(vllm, model, directory / "other.log", **more),
        )
        for engine in pair:
            engine.start()
            stack.callback(engine.kill)
        wait_until_ready(pair, print)
        for engine, core in zip(pair, sorted(os.sched_getaffinity(0)), strict=False):
            engine.use_cores({core})

        def serving(way: str, *engines: NixlEngine) -> str:
            words = [word for engine in engines for word in ("--engine", engine.url)]
            program = ServingProgram(["serve", *words], directory / f"{way}.log", "kv-aware")
            return stack.enter_context(program).url

        moving = serve_in_two_legs(*pair, directory / "move.log")
        urls = {
            WAIT: serving(WAIT, pair[0]),
            COMPUTE: serving(COMPUTE, pair[1]),
            MOVE: stack.enter_context(moving).url,
            LEARNED: serving(LEARNED, *pair),
        }
        wait_until_known_to_hand_over(urls[LEARNED])
        with busy(pair[0], streams):
            rows = measure(pair, urls, repeats, lengths)
    found = {
        "streams": streams,
        "load_average": os.getloadavg()[0],
        "rows": list(map(asdict, rows)),
    }
    if lengths == LENGTHS:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
