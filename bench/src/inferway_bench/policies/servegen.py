"""ServeGen's clients of a reasoning model (Alibaba): a load that is drawn from measurements.

The file has, for each client and every ten minutes of a day, the rate and how requests are spaced
(a renewal process: Gamma or Weibull), and for every six hours the lengths of prompts and answers.
Requests are drawn with a seed, from the busiest ten minutes on. Nothing names blocks, so prompts
are private.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gamma

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway_bench.policies.requests import SimRequest, Workload
from inferway_bench.policies.traces import PRIVATE_BLOCK, private_blocks
from inferway_bench.processes import BenchError

DAY = 86_400.0
_DEFAULT = 20_000  # requests


class _Lengths(msgspec.Struct):
    """Lengths in tokens with their shares: Python's dictionaries as text."""

    input_tokens: str
    output_tokens: str


class _Client(msgspec.Struct):
    client: int
    trace_csv: str
    dataset: dict[str, _Lengths]  # second of the day -> lengths from then on


@dataclass(frozen=True, slots=True)
class Window:
    """A part of one client's day."""

    start: float  # seconds of the day
    rate: float  # requests a second
    kind: str  # Gamma or Weibull
    shape: float

    def gaps(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Draw the seconds between requests, whose mean is that of the rate."""
        if self.kind == "Gamma":
            drawn = rng.gamma(self.shape, size=count) / self.shape
        else:
            drawn = rng.weibull(self.shape, size=count)
            drawn /= _weibull_mean(self.shape)
        gaps: NDArray[np.float64] = drawn / self.rate
        return gaps

    def times(self, rng: np.random.Generator, seconds: float) -> NDArray[np.float64]:
        """Draw the seconds of the day at which requests come; the first is somewhere in a gap."""
        expected = self.rate * seconds
        gaps = self.gaps(rng, int(expected + 8 * expected**0.5 + 16))
        gaps[0] *= rng.random()
        times = gaps.cumsum()
        found: NDArray[np.float64] = self.start + times[times < seconds]
        return found


def servegen(lines: Sequence[bytes], seed: int, most: int | None = None) -> Workload:
    """Return `most` requests, by default 20,000, of the clients, of which each line has one."""
    clients = [msgspec.json.decode(line, type=_Client, strict=False) for line in lines if line]
    windows = [parse_windows(client.trace_csv) for client in clients]
    wanted = most or _DEFAULT
    rng = np.random.default_rng(seed)
    drawn: list[tuple[float, int, int, int]] = []  # when, client, prompt, answer
    starts, length = _busiest_first(windows)
    for start in starts:
        if len(drawn) >= wanted:
            break
        for number, (client, own) in enumerate(zip(clients, windows, strict=True)):
            window = own.get(start)
            if window is not None:
                drawn += _drawn(rng, number, client, window, length)
    drawn.sort()
    del drawn[wanted:]
    requests = [
        SimRequest(
            blocks=private_blocks(i, prompt),
            prompt_tokens=prompt,
            output_tokens=answer,
            session=client,
            start=when - drawn[0][0],
        )
        for i, (when, client, prompt, answer) in enumerate(drawn)
    ]
    about = (
        f"ServeGen's {len(clients)} clients of a reasoning model, drawn with the seed from the "
        "busiest ten minutes of their day on; it names no blocks, so prompts are private and "
        "nothing can be reused"
    )
    return Workload("servegen", about, PRIVATE_BLOCK, requests)


def parse_windows(trace: str) -> dict[float, Window]:
    """Return the windows with requests, by their start. Raises BenchError for a kind of gaps that
    is not known."""
    windows = {}
    for line in trace.split():
        start, rate, _, kind, shape, _ = line.split(",")
        if float(rate) <= 0:
            continue
        if kind not in ("Gamma", "Weibull"):
            raise BenchError(f"ServeGen: gaps of kind {kind!r}; known: Gamma, Weibull")
        windows[float(start)] = Window(float(start), float(rate), kind, float(shape))
    return windows


def parse_lengths(text: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the tokens in a text like `{45: 0.25, 46: 0.75}`, and their shares, which sum to 1."""
    pairs = [part.split(":") for part in text.strip("{} ").split(",") if ":" in part]
    tokens = np.array([int(float(length)) for length, _ in pairs], np.int64)
    shares = np.array([float(share) for _, share in pairs])
    return tokens, shares / shares.sum() if len(shares) else shares


def _busiest_first(windows: Sequence[dict[float, Window]]) -> tuple[list[float], float]:
    """The starts of windows from the busiest on, and the length of a window in seconds."""
    rates: dict[float, float] = {}
    for own in windows:
        for start, window in own.items():
            rates[start] = rates.get(start, 0.0) + window.rate
    starts = sorted(rates)
    length = min(b - a for a, b in zip(starts, [*starts[1:], starts[0] + DAY], strict=True))
    at = starts.index(max(rates, key=rates.__getitem__))
    return starts[at:], length


def _drawn(
    rng: np.random.Generator, number: int, client: _Client, window: Window, seconds: float
) -> Iterator[tuple[float, int, int, int]]:
    since = [float(at) for at in client.dataset if float(at) <= window.start]
    if not since:
        return
    lengths = client.dataset[f"{max(since):.0f}"]
    prompts, answers = parse_lengths(lengths.input_tokens), parse_lengths(lengths.output_tokens)
    if not len(prompts[0]) or not len(answers[0]):
        return
    times = window.times(rng, seconds)
    asked = rng.choice(prompts[0], len(times), p=prompts[1])
    written = rng.choice(answers[0], len(times), p=answers[1])
    for when, prompt, answer in zip(times.tolist(), asked.tolist(), written.tolist(), strict=True):
        yield when, number, max(1, prompt), max(1, answer)


def _weibull_mean(shape: float) -> float:
    return gamma(1 + 1 / shape)
