"""What the seed measured -> how long a simulated engine must take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from inferway_bench.processes import BenchError

# Seed 000, "Overhead Analysis": seconds.
SEED_TTFT = {"completion": 0.111, "chat": 0.122}
SEED_ITL = {"completion": 0.0028, "chat": 0.0032}
SEED_RATES = (3, 4, 5, 6, 8, 10, 12, 15, 20)  # requests per second
SEED_PROMPT_TOKENS = (600, 800)
SEED_OUTPUT_TOKENS = (1, 100)

GOAL_SHARE = 0.01  # of the completions' TTFT may be added by the chat


class Fit(msgspec.Struct, frozen=True):
    """Simulated engines that answer completions as late as the seed's."""

    overhead_ms: float  # median TTFT of completions when the engine takes no time
    uncached_tokens: float  # mean, of a prompt
    prefill_us_per_token: float
    inter_token_ms: float = SEED_ITL["completion"] * 1e3


def fit(ttft_ms: Sequence[float], uncached_tokens: Sequence[int]) -> Fit:
    """From completions sent to engines without latency: what is missing to the seed's mean is
    spread over the tokens to be computed, which is what an engine's prefill is.

    Raises BenchError when this machine is slower than the seed's with engines that take no time.
    """
    overhead, tokens = median(ttft_ms), fmean(uncached_tokens)
    missing = SEED_TTFT["completion"] * 1e3 - overhead
    if missing <= 0:
        raise BenchError(
            f"completions take {overhead:.0f} ms to their first token with engines that take no "
            "time: more than the seed's engines did; the cure: a machine that is less busy"
        )
    return Fit(round(overhead, 3), round(tokens, 1), round(missing * 1e3 / tokens, 3))
