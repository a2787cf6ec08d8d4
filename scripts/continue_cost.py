"""What it costs that another engine could go on with a stream: CPU time of a gateway that keeps
streams beside two that do not (`--no-continue-streams`), in one run.

python scripts/continue_cost.py [ROUNDS]

All stand before the same simulated engine, which tells the ids of its tokens if it is asked to. In
each round they take turns, in a drawn order, with four streams at a time of 200 tokens each, for a
short prompt and one of about 2,000 tokens. Printed are the medians of the rounds, in microseconds a
stream, the median of the rounds' ratios to the first that does not keep them, and in brackets its
quartiles. The ratio of the two that do not is how much the machine errs.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from idle_cost import HERE, START, cpu_ms, gateway, line_of, running

ENGINE_SAID = re.compile(r"simulated engine (http://\S+)")
STREAMS, TOKENS, WARM_UP = 4, 200, 5
PROMPTS = {"short": "Say something.", "long": "A word or two of a longer story. " * 250}


def stream(url: str, prompt: str) -> None:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "smollm2", "messages": messages, "max_tokens": TOKENS, "stream": True}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")


def milliseconds(pid: int, url: str, prompt: str, pool: ThreadPoolExecutor) -> float:
    """Return the milliseconds of CPU time a stream."""
    before = cpu_ms(pid)
    list(pool.map(lambda _: stream(url, prompt), range(STREAMS)))
    return (cpu_ms(pid) - before) / STREAMS


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with ExitStack() as stack:
        words = ["simulate", "--mode", "recite", "--port", "0", "--served-model-name", "smollm2"]
        words += ["--inter-token-latency", "2ms"]
        _, said = stack.enter_context(running([sys.executable, "-c", START, *words], HERE))
        engines = [line_of(said, ENGINE_SAID)]
        ends = ["--no-continue-streams"]
        flags: dict[str, list[str]] = {"without": ends, "with": [], "again without": ends}
        gateways = {
            name: stack.enter_context(gateway(HERE, engines, *given))
            for name, given in flags.items()
        }
        pool = stack.enter_context(ThreadPoolExecutor(STREAMS))
        for kind, prompt in PROMPTS.items():
            took: dict[str, list[float]] = {name: [] for name in gateways}
            for number in range(WARM_UP + rounds):
                for name in random.sample(list(gateways), len(gateways)):
                    pid, url = gateways[name]
                    each = milliseconds(pid, url, prompt, pool)
                    if number >= WARM_UP:
                        took[name].append(each)
            for name, values in took.items():
                ratios = [a / b for a, b in zip(values, took["without"], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(
                    f"{kind}, {name}: {1000 * statistics.median(values):.0f} us a stream of "
                    f"{TOKENS} tokens; {middle:.3f} ({low:.3f} to {high:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
