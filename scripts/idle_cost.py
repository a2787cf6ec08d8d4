"""What an idle gateway costs beside another version of it: milliseconds of CPU time a second.

python scripts/idle_cost.py OTHER_CHECKOUT [SECONDS [NUMBER_OF_ENGINES ...]]

Both versions stand before the same simulated engines at the same time, beside a gateway of this
version that never scrapes them. In turn, none gets a request for a while (*idle*), each gets a
short chat once a second, and each gets some at once, which is what a chat takes by itself (*own*);
so for SECONDS each, and the medians are told. What scraping takes is the difference to *never*. CPU
time is that of all the process's threads, as Linux's scheduler counts it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import median

HERE = Path(__file__).parents[1]
SAID = re.compile(r"listening on (http://\S+)")
START = "import sys; from inferway.cli import main; sys.argv[0] = 'inferway'; main()"
SETTLE_SECONDS = 15.0  # tokenizers, probes, and pauses that grow
SLICE_SECONDS = 10.0
CHATS = 20
NUMBERS = count(1)
ENGINES = (2, 8, 64)


def cpu_ms(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e6


def environment(checkout: Path) -> dict[str, str]:
    parts = [checkout / part / "src" for part in (".", "structured", "bench")]
    return {**os.environ, "PYTHONPATH": ":".join(map(str, parts))}


@contextmanager
def running(command: Sequence[str], checkout: Path) -> Iterator[tuple[int, str]]:
    """Yield the process's number, and the file with what it says."""
    with tempfile.NamedTemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, env=environment(checkout), stdout=said, stderr=subprocess.STDOUT
        )
        try:
            yield process.pid, said.name
        finally:
            process.terminate()
            process.wait(60)


def line_of(said: str, found: re.Pattern[str]) -> str:
    for _ in range(600):
        match = found.search(Path(said).read_text())
        if match is not None:
            return match[1]
        time.sleep(0.1)
    raise SystemExit(f"not there after a minute: {found.pattern}\n{Path(said).read_text()}")


@contextmanager
def gateway(checkout: Path, engines: Sequence[str], *flags: str) -> Iterator[tuple[int, str]]:
    words = ["serve", *engines, "--port", "0", "--access-log", "none", *flags]
    with running([sys.executable, "-c", START, *words], checkout) as (pid, said):
        yield pid, line_of(said, SAID)


def ask(url: str, number: int) -> None:
    messages = [{"role": "user", "content": f"Say the number {number}, and no more."}]
    body = json.dumps({"model": "smollm2", "messages": messages, "max_tokens": 4}).encode()
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def measure(number: int, others: Path, seconds: float) -> None:
    with ExitStack() as stack:
        words = [sys.executable, __file__, "--serve", str(number)]
        _, said = stack.enter_context(running(words, HERE))
        engines = line_of(said, re.compile(r"^engines (.*)$", re.M)).split()
        all_three = {
            name: stack.enter_context(gateway(checkout, engines))
            for name, checkout in (("before", others), ("after", HERE))
        }
        all_three["never"] = stack.enter_context(gateway(HERE, engines, "--scrape-seconds", "3600"))
        time.sleep(SETTLE_SECONDS)
        found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in all_three}

        for _ in range(max(1, round(seconds / SLICE_SECONDS))):
            began = {name: cpu_ms(pid) for name, (pid, _) in all_three.items()}
            time.sleep(SLICE_SECONDS)
            for name, (pid, _) in all_three.items():
                found[name]["idle"].append((cpu_ms(pid) - began[name]) / SLICE_SECONDS)
            for name, (pid, url) in all_three.items():
                took = chats(pid, url, int(SLICE_SECONDS), 1.0)
                found[name]["at one chat a second"].append(took)
            for name, (pid, url) in all_three.items():
                found[name]["own"].append(chats(pid, url, CHATS, 0.0))
        for name, phases in found.items():
            medians = [f"{phase} {median(taken):6.2f}" for phase, taken in phases.items()]
            print(f"{number:3} engines, {name:6}  {'  '.join(medians)}", flush=True)


def chats(pid: int, url: str, number: int, pause: float) -> float:
    """Return the milliseconds of CPU time for each of so many chats, `pause` seconds apart."""
    before, due = cpu_ms(pid), time.monotonic()
    for _ in range(number):
        ask(url, next(NUMBERS))
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
    return (cpu_ms(pid) - before) / number


def serve(number: int) -> None:
    """Be so many simulated engines, in one process, until the end."""
    import asyncio

    from inferway.prompts.chat.conversation import NO_FLAGS
    from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
    from inferway.prompts.renderer import Renderer
    from inferway_sim.config import SimulatorConfig
    from inferway_sim.engine import SimulatedEngine
    from inferway_sim.prepare import prepare_smollm2
    from inferway_sim.rendered import RenderedModel

    async def run() -> None:
        root, renderer = str(prepare_smollm2()), Renderer()
        key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(root))
        config = SimulatorConfig(root, served_model_names=("smollm2",))
        engines = [
            SimulatedEngine(config, RenderedModel(renderer, key, config.max_model_len, NO_FLAGS))
            for _ in range(number)
        ]
        for engine in engines:
            await engine.__aenter__()
        print("engines", *[engine.url for engine in engines], flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]))
    else:
        seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
        for each in map(int, sys.argv[3:] or ENGINES):
            measure(each, Path(sys.argv[1]).resolve(), seconds)
