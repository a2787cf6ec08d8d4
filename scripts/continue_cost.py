"""What it costs that another engine could go on with a stream: CPU time of a gateway that keeps
streams beside one that does not (`--no-continue-streams`), in one run.

python scripts/continue_cost.py [ROUNDS]

Both stand before the same simulated engine, which tells the ids of its tokens if it is asked to.
They take turns with streams of 200 tokens, for a short prompt and one of about 2,000 tokens. The
median of the rounds is printed, in microseconds a stream, and the ratio of each round's two.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import urllib.request
from contextlib import ExitStack

from idle_cost import HERE, START, cpu_ms, gateway, line_of, running

ENGINE_SAID = re.compile(r"simulated engine (http://\S+)")
STREAMS, TOKENS = 20, 200
PROMPTS = {"short": "Say something.", "long": "A word or two of a longer story. " * 250}


def stream(url: str, prompt: str) -> None:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": TOKENS, "stream": True}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")


def round_of(pid: int, url: str, prompt: str) -> float:
    """Return the milliseconds of CPU time a stream."""
    before = cpu_ms(pid)
    for _ in range(STREAMS):
        stream(url, prompt)
    return (cpu_ms(pid) - before) / STREAMS


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    with ExitStack() as stack:
        words = ["simulate", "--mode", "recite", "--port", "0", "--served-model-name", "smollm2"]
        words += ["--inter-token-latency", "2ms"]
        _, said = stack.enter_context(running([sys.executable, "-c", START, *words], HERE))
        engines = [line_of(said, ENGINE_SAID)]
        keeps = stack.enter_context(gateway(HERE, engines))
        ends = stack.enter_context(gateway(HERE, engines, "--no-continue-streams"))
        for name, prompt in PROMPTS.items():
            found: list[tuple[float, float]] = []
            for number in range(rounds + 1):
                pair = keeps, ends
                turns = pair if number % 2 else pair[::-1]
                took = {pid: round_of(pid, url, prompt) for pid, url in turns}
                if number:  # the first fills the cache
                    found.append((took[keeps[0]], took[ends[0]]))
            with_it, without = (statistics.median(each) for each in zip(*found, strict=True))
            ratios = sorted(a / b for a, b in found)
            print(
                f"{name}: {1000 * with_it:.0f} us a stream of {TOKENS} tokens, {1000 * without:.0f}"
                f" without; {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
