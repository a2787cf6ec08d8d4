"""A run as a picture: time to first token by rate, and what the chat adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from inferway_bench.chat_overhead.fitting import SEED_ITL, SEED_TTFT
from inferway_bench.chat_overhead.results import GOAL_MS, KIND_NAMES, ChatOverheadRun, Pairs
from inferway_bench.chat_overhead.workload import ARMS, KINDS, Arm
from inferway_bench.plotting import Level, Line, Panel, Picture
from inferway_bench.spread import mean_interval

_COLOURS = {"completion": "#4477aa", "chat": "#cc6677"}
_RATE = "requests per second"
_SHIFT = 0.12  # so that neither series hides the other


def pictures(run: ChatOverheadRun) -> list[Picture]:
    """Means over the pairs of each rate, with 95 % intervals: seed 000's panels, but for its
    throughput, which an open loop sets."""
    name = "chat_overhead" if run.fit is not None else "chat_overhead_engine"
    title = f"Chat beside completion, the same tokens: {run.engines}"
    ttft = _both(run, "mean time to first token, ms", lambda pairs: pairs.ttft_us, SEED_TTFT)
    between = _both(run, "mean time between tokens, ms", lambda pairs: pairs.itl_us, SEED_ITL)
    return [Picture(name, title, [[ttft, between, _added(run)]])]


def _both(
    run: ChatOverheadRun,
    what: str,
    of: Callable[[Pairs], Mapping[Arm, Sequence[float]]],
    seed: Mapping[str, float],
) -> Panel:
    """Both arms, beside the seed's seconds where the engines were fitted to them."""
    lines, levels = [], []
    for i, arm in enumerate(ARMS):
        colour = {"color": _COLOURS[arm]}
        measured = [
            (rate, ms)
            for rate, stage in zip(_rates(run, i), run.stages, strict=True)
            if (ms := [us / 1e3 for kind in KINDS for us in of(stage.pairs[kind])[arm]])
        ]
        means = [mean_interval(ms) for _, ms in measured]
        lines.append(Line(f"{arm}s", [rate for rate, _ in measured], means, colour))
        if run.fit is not None:
            style = {**colour, "linestyle": ":"}
            levels.append(Level(seed[arm] * 1e3, f"seed 000, {arm}s", style))
    return Panel(_RATE, what, lines, levels=levels)


def _added(run: ChatOverheadRun) -> Panel:
    lines = [
        Line(
            f"to a completion with {KIND_NAMES[kind]}",
            _rates(run, i),
            [mean_interval(stage.pairs[kind].added_ttft_ms()) for stage in run.stages],
        )
        for i, kind in enumerate(run.kinds)
    ]
    levels = []
    if run.fit is not None:
        goal = f"goal: {GOAL_MS:.2f} ms (the seed added 11)"
        levels.append(Level(GOAL_MS, goal, {"color": "black", "linestyle": "--"}))
    return Panel(_RATE, "added by the chat, pair by pair: mean, ms", lines, levels=levels)


def _rates(run: ChatOverheadRun, number: int) -> list[float]:
    return [stage.rate + _SHIFT * (2 * number - 1) for stage in run.stages]
