"""What it spares a vLLM engine to get its prompts as token ids (docs/fidelity.md):
`.venv/bin/python scripts/tokens_once_cost.py ENGINE_URL PID MODEL`, PID being its API server's.

Two gateways stand in front of it: one sends ids, one does not. They take turns with the same
chats, parts of agents' conversations that are in the engine's cache: what takes time is then what
its API server does. CPU time is a mean, that to the first event a median, in milliseconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from statistics import mean, median
from typing import Any

from inferway_bench.cpu import parse_stat
from inferway_bench.flags import default_data_dir, unpacked

SIZES = {64: 100, 250: 60, 1_000: 30, 4_000: 12, 16_000: 3, 32_000: 2}  # tokens: rounds
CHATS = 8  # of each size
SOURCES = ("swe_agent_demos", "tau_bench_airline_gpt4o")
SAID = re.compile(r"listening on (http://\S+)")


def gateway(engine: str, mode: str) -> tuple[int, str]:
    command = [Path(sys.executable).with_name("inferway"), "serve", engine, "--port", "0"]
    command += ["--access-log", "none", "--tokens-once", mode]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    return process.pid, next(found[1] for line in process.stderr if (found := SAID.search(line)))


def ask(url: str, body: dict[str, Any]) -> tuple[float, bytes]:
    """Milliseconds to the first event, and the whole answer."""
    raw, head = json.dumps(body).encode(), {"content-type": "application/json"}
    started = time.perf_counter()
    request = urllib.request.Request(f"{url}/v1/chat/completions", raw, head)
    with urllib.request.urlopen(request, timeout=600) as answer:
        first = answer.readline()
        return (time.perf_counter() - started) * 1000, first + answer.read()


def chats(engine: str, model: str, tokens: int) -> list[dict[str, Any]]:
    """Return the bodies of real chats, of about so many tokens each."""
    files = [default_data_dir() / "chat" / f"{name}.jsonl.xz" for name in SOURCES]
    rows = [json.loads(row) for file in files for row in unpacked(file).splitlines()[1:]]
    said = [m["content"] for row in rows for m in row["messages"] if m.get("content")]
    made = []
    for start in range(0, len(said), len(said) // CHATS):
        body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0, "messages": []}
        left = tokens
        while left > 16 and len(made) < CHATS:
            text = said[(start + len(body["messages"])) % len(said)][: 3 * left]
            role = "assistant" if len(body["messages"]) % 2 else "user"
            body["messages"].append({"role": role, "content": text})
            left = tokens - json.loads(ask(engine, body)[1])["usage"]["prompt_tokens"]
        made.append({**body, "stream": True})
    return made[:CHATS]


def main(engine: str, pid: str, model: str) -> None:
    gateways = {mode: gateway(engine, mode) for mode in ("off", "on")}

    def cpu(pid: str | int) -> float:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text()).cpu_seconds * 1000 / CHATS

    for tokens, rounds in SIZES.items():
        bodies = chats(engine, model, tokens)
        found: dict[str, list[tuple[float, ...]]] = {mode: [] for mode in gateways}
        for mode, (ours, url) in [*gateways.items()] * (rounds + 1):  # the first warms up
            before = cpu(pid), cpu(ours)
            times = [ask(url, body)[0] for body in bodies]
            found[mode].append((cpu(pid) - before[0], cpu(ours) - before[1], median(times)))
        for mode, seen in found.items():
            theirs, ours_too, first = zip(*seen[1:], strict=True)
            print(tokens, mode, f"{mean(theirs):.2f} {median(first):.1f} {mean(ours_too):.2f}")
    for ours, _ in gateways.values():
        subprocess.run(["kill", str(ours)], check=True)


main(*sys.argv[1:])
