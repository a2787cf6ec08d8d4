"""A run as a picture: time to first token by rate, and what the chat adds to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferway.bench.chat_overhead.fitting import SEED_TTFT
from inferway.bench.chat_overhead.report import KIND_NAMES
from inferway.bench.chat_overhead.results import GOAL_MS, ChatOverheadRun
from inferway.bench.chat_overhead.workload import ARMS, KINDS, Arm, Kind
from inferway.bench.processes import BenchError
from inferway.bench.spread import Interval, mean_interval

_COLOURS: dict[Arm, str] = {"completion": "#4477aa", "chat": "#cc6677"}
_KIND_COLOURS: dict[Kind, str] = {"text": "#228833", "ids": "#aa3377"}

_SHIFT = 0.12  # so that neither series hides the other


def check_can_draw() -> None:
    """Before minutes are spent. Raises BenchError with the cure."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as e:
        raise BenchError(
            "matplotlib: not installed, and --save draws; the cure: pip install 'inferway[bench]'"
        ) from e


def draw(run: ChatOverheadRun, path: Path) -> None:
    """Writes a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=110)
    left, right = figure.subplots(1, 2)
    _draw_ttft(left, run)
    _draw_added(right, run)
    figure.suptitle(f"Chat beside completion, the same tokens: {run.engines}", fontsize=10)
    figure.savefig(path)


def _draw_ttft(axes: Any, run: ChatOverheadRun) -> None:
    for i, arm in enumerate(ARMS):
        means = [
            mean_interval([us / 1e3 for k in KINDS for us in stage.pairs[k].ttft_us[arm]])
            for stage in run.stages
        ]
        _points(axes, run, means, _COLOURS[arm], f"{arm}s", shift=_SHIFT * (2 * i - 1))
        if run.fit is not None:
            level = SEED_TTFT[arm] * 1e3
            axes.axhline(level, color=_COLOURS[arm], linestyle=":", label=f"seed 000, {arm}s")
    axes.set_ylabel("mean time to first token, ms")
    axes.set_ylim(bottom=0)
    _finish(axes)


def _draw_added(axes: Any, run: ChatOverheadRun) -> None:
    for i, kind in enumerate(run.kinds):
        means = [mean_interval(stage.pairs[kind].added_ttft_ms()) for stage in run.stages]
        name = f"to a completion with {KIND_NAMES[kind]}"
        _points(axes, run, means, _KIND_COLOURS[kind], name, shift=_SHIFT * (2 * i - 1))
    axes.axhline(0, color="#888888", linewidth=0.8)
    if run.fit is not None:
        goal = f"goal: {GOAL_MS:.2f} ms (the seed added 11)"
        axes.axhline(GOAL_MS, color="black", linestyle="--", linewidth=1, label=goal)
    axes.set_ylabel("added by the chat, pair by pair: mean, ms")
    _finish(axes)


def _points(
    axes: Any, run: ChatOverheadRun, means: list[Interval], colour: str, name: str, shift: float
) -> None:
    axes.errorbar(
        [stage.rate + shift for stage in run.stages],
        [m.value for m in means],
        yerr=[[m.value - m.low for m in means], [m.high - m.value for m in means]],
        color=colour,
        marker="o",
        markersize=4,
        capsize=3,
        linewidth=1,
        label=name,
    )


def _finish(axes: Any) -> None:
    axes.set_xlabel("requests per second")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
