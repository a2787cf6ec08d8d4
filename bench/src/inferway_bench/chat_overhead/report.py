"""A run of `inferway bench chat-overhead` as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from inferway_bench.chat_overhead.fitting import SEED_ITL, SEED_TTFT
from inferway_bench.chat_overhead.plot import pictures
from inferway_bench.chat_overhead.results import (
    GOAL_MS,
    KIND_NAMES,
    ChatOverheadRun,
    Pairs,
    Stage,
)
from inferway_bench.chat_overhead.workload import KINDS, Arm
from inferway_bench.sheets import Sheet, told_by
from inferway_bench.spread import mean_interval, median_interval

_TOTAL_HEAD = (
    "chat beside a completion with",
    "pairs",
    "TTFT: completion",
    "chat",
    "added, mean (95 %)",
    "added, median (95 %)",
    "ITL: completion",
    "chat",
    "added, mean (95 %)",
)
_STAGE_HEAD = (
    "requests/s",
    "answered",
    "TTFT: completions, mean / median",
    "chats, mean / median",
    "added to text (95 %)",
    "added to token ids (95 %)",
    "sent late by, ms: median / 99 %",
)

_ADDED = "{:+.2f}"  # ms


def about(run: ChatOverheadRun) -> list[str]:
    sent = sum(stage.num_sent for stage in run.stages)
    succeeded = sum(stage.num_succeeded for stage in run.stages)
    return [
        f"{run.engines}; {run.seconds:g} s at each rate, {sent:,} requests, "
        f"{succeeded / sent:.2%} of them answered. Text: {run.text}.",
        *_fit_lines(run),
        *_what_was_the_same(run),
    ]


def sheets(run: ChatOverheadRun) -> Iterator[Sheet]:
    yield Sheet("All rates together, ms", _TOTAL_HEAD, list(_total_rows(run)))
    yield Sheet(
        "By rate, ms", _STAGE_HEAD, [_stage_row(stage) for stage in run.stages],
        in_details=True,
    )  # fmt: skip


def summary(run: ChatOverheadRun) -> list[str]:
    """A line for each kind of pair."""
    lines = []
    for kind in run.kinds:
        met = "met" if run.is_met(kind) else "not met"
        goal = f"; asked: upper end ≤ {GOAL_MS:.2f}: {met}" if run.fit is not None else ""
        added = run.added_ttft(kind).shown(_ADDED)
        lines.append(f"a chat beside a completion with {KIND_NAMES[kind]}: {added} ms{goal}")
    return lines


def _fit_lines(run: ChatOverheadRun) -> list[str]:
    if run.fit is None:
        return []
    completions = [us / 1e3 for kind in KINDS for us in run.pooled(kind).ttft_us["completion"]]
    reached = mean_interval(completions)
    return [
        f"Fit: completions took {run.fit.overhead_ms:.1f} ms with engines that compute in no time. "
        f"The simulated engines therefore take {run.fit.prefill_us_per_token:.1f} µs for each of "
        f"{run.fit.uncached_tokens:.0f} uncached prompt tokens, and {run.fit.inter_token_ms:g} ms "
        "for each token of an answer after the first. The mean time to first token of the "
        f"completions is {reached.shown('{:.1f}')} ms; the seed measured "
        f"{SEED_TTFT['completion'] * 1e3:.0f} ms.",
    ]


def _what_was_the_same(run: ChatOverheadRun) -> list[str]:
    prompts = [n for stage in run.stages for n in stage.prompt_tokens]
    matched = [n for stage in run.stages for n in stage.matched_blocks]
    cached = [n for stage in run.stages for n in stage.cached_tokens or ()]
    unlike = sum(stage.num_unlike for stage in run.stages)
    busiest = max(stage.generator_cpu for stage in run.stages)
    engines = f"{_span(cached)} tokens" if cached else "unknown"
    return [
        "In every pair, the chat and the completion had the same number of prompt tokens, as the "
        f"engines count them ({_span(prompts)}). Cached by the engines: {engines}. Matched by the "
        f"gateway: {_span(matched)} blocks. Pairs left out because these differed: {unlike}. "
        f"The load generator took at most {busiest:.1%} of a core.",
    ]


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _total_rows(run: ChatOverheadRun) -> Iterator[list[str]]:
    for kind in run.kinds:
        pairs = run.pooled(kind)
        added = run.added_ttft(kind)
        yield [
            KIND_NAMES[kind],
            f"{len(pairs.ttft_us['chat']):,}",
            _mean(pairs.ttft_us["completion"]),
            _mean(pairs.ttft_us["chat"]),
            f"{added.shown(_ADDED)}, {_percent(added.value, pairs.ttft_us['completion'])}",
            median_interval(pairs.added_ttft_ms()).shown(_ADDED),
            *_itl_cells(pairs),
        ]
    yield [
        "seed 000",
        "",
        *(f"{SEED_TTFT[arm] * 1e3:.0f}" for arm in ("completion", "chat")),
        "+11, +10 %",
        "",
        *(f"{SEED_ITL[arm] * 1e3:.1f}" for arm in ("completion", "chat")),
        "+0.4, +14 %",
    ]


def _itl_cells(pairs: Pairs) -> list[str]:
    if not pairs.itl_us["chat"]:
        return ["", "", ""]
    added = mean_interval(pairs.added_itl_ms())
    return [
        _mean(pairs.itl_us["completion"]),
        _mean(pairs.itl_us["chat"]),
        f"{added.shown(_ADDED)}, {_percent(added.value, pairs.itl_us['completion'])}",
    ]


def _stage_row(stage: Stage) -> list[str]:
    completions, chats = _ttft_us(stage, "completion"), _ttft_us(stage, "chat")
    median_lag, late_lag = (us / 1e3 for us in stage.lag_us)
    return [
        f"{stage.rate:g}",
        f"{stage.num_succeeded:,} of {stage.num_sent:,}",
        f"{_mean(completions)} / {np.median(completions) / 1e3:.1f}",
        f"{_mean(chats)} / {np.median(chats) / 1e3:.1f}",
        *(_added(stage.pairs[kind]) for kind in KINDS),
        f"{median_lag:.2f} / {late_lag:.2f}",
    ]


def _ttft_us(stage: Stage, arm: Arm) -> list[int]:
    return [us for kind in KINDS for us in stage.pairs[kind].ttft_us[arm]]


def _added(pairs: Pairs) -> str:
    differences = pairs.added_ttft_ms()
    return mean_interval(differences).shown(_ADDED) if differences else ""


def _mean(us: Sequence[float]) -> str:
    mean = float(np.mean(us)) / 1e3 if us else 0.0
    return f"{mean:.1f}" if mean >= 10 else f"{mean:.2f}"


def _percent(ms: float, of_us: Sequence[float]) -> str:
    return f"{ms * 1e3 / float(np.mean(of_us)):+.1%}".replace("%", " %")


CHAT_OVERHEAD = told_by(
    "chat-overhead", ChatOverheadRun, about, sheets, notes=summary, pictures=pictures,
    question="how much a chat adds to the time to first token of a completion with the same prompt",
    takes="14 minutes",
)  # fmt: skip
CHAT_OVERHEAD_ENGINE = replace(
    CHAT_OVERHEAD,
    name="chat-overhead --engine",
    question="how much a chat adds to the time to first token on engines that are already running",
    takes="3 minutes and more",
    arguments="URL",
)
