"""What `inferway bench chat-overhead` keeps: each pair's times, so that all else follows. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from inferway_bench.chat_overhead.answers import Outcome
from inferway_bench.chat_overhead.fitting import GOAL_SHARE, SEED_TTFT, Fit
from inferway_bench.chat_overhead.workload import ARMS, KINDS, Arm, Kind
from inferway_bench.processes import BenchError
from inferway_bench.results import Figure, Goal, Run
from inferway_bench.spread import Interval, mean_interval

KIND_NAMES: dict[Kind, str] = {"text": "its text", "ids": "its token ids"}
GOAL_MS = SEED_TTFT["completion"] * 1e3 * GOAL_SHARE


class Pairs(msgspec.Struct, frozen=True):
    """Microseconds of each pair of one kind, chat and completion in the same place."""

    ttft_us: dict[Arm, list[int]]
    itl_us: dict[Arm, list[float]]  # of the pairs whose answers have two tokens or more

    def added_ttft_ms(self) -> list[float]:
        """Chat less completion, pair by pair."""
        return _differences(self.ttft_us)

    def added_itl_ms(self) -> list[float]:
        return _differences(self.itl_us)


class Stage(msgspec.Struct, frozen=True):
    """One rate."""

    rate: float  # requests per second, both arms together
    num_sent: int
    num_succeeded: int
    num_unlike: int  # pairs left out: the engines had more of one arm's prompt in their caches
    prompt_tokens: tuple[int, int]  # least and most
    cached_tokens: tuple[int, int] | None  # as the engines say
    matched_blocks: tuple[int, int]  # as the gateway says
    lag_us: tuple[int, int]  # of sending: median, 99 %
    generator_cpu: float  # share of a core
    pairs: dict[Kind, Pairs]


class ChatOverheadRun(Run, frozen=True):
    """A whole run."""

    seed: int
    seconds: float  # per rate
    engines: str  # what answered
    fit: Fit | None  # None: engines that were running already
    text: str
    stages: list[Stage]

    def pooled(self, kind: Kind) -> Pairs:
        """All rates together."""
        parts = [stage.pairs[kind] for stage in self.stages]
        return Pairs(
            {arm: [us for part in parts for us in part.ttft_us[arm]] for arm in ARMS},
            {arm: [us for part in parts for us in part.itl_us[arm]] for arm in ARMS},
        )

    @property
    def kinds(self) -> list[Kind]:
        """Those of which any pair is whole."""
        return [kind for kind in KINDS if self.pooled(kind).ttft_us["chat"]]

    def added_ttft(self, kind: Kind) -> Interval:
        """Milliseconds that chat adds to the time to first token, over all rates."""
        return mean_interval(self.pooled(kind).added_ttft_ms())

    def is_met(self, kind: Kind) -> bool:
        return self.added_ttft(kind).high <= GOAL_MS

    @property
    def seeds(self) -> list[int]:
        return [self.seed]

    def goals(self) -> list[Goal]:
        """None of engines that were running: what they take is theirs."""
        if self.fit is None:
            return []
        found = []
        for kind in self.kinds:
            added = self.added_ttft(kind)
            shown = f"{added.shown('{:+.2f}')} ms"
            what = f"time to first token that a chat adds to a completion with {KIND_NAMES[kind]}"
            asked = f"upper end ≤ {GOAL_MS:.2f} ms ({GOAL_SHARE:.0%})"
            found.append(Goal(what, asked, shown, self.is_met(kind)))
        return found

    def figures(self) -> list[Figure]:
        found = []
        for kind in self.kinds:
            added = self.pooled(kind).added_ttft_ms()
            found.append(Figure(f"added to {KIND_NAMES[kind]}, TTFT", "ms", added))
        for stage in self.stages:
            for arm in ARMS:
                ms = [us / 1e3 for kind in KINDS for us in stage.pairs[kind].ttft_us[arm]]
                found.append(Figure(f"{arm} at {stage.rate:g}/s: TTFT", "ms", ms))
        return found


def summarise(rate: float, outcomes: Sequence[Outcome], generator_cpu: float) -> Stage:
    """Raises BenchError when too little succeeded to say anything, or when a pair's prompts were
    not the same tokens: then the comparison is none."""
    succeeded = [o for o in outcomes if o.error is None]
    pairs = _whole_pairs(succeeded)
    if not pairs:
        errors = sorted({o.error for o in outcomes if o.error is not None})
        raise BenchError(f"rate {rate:g}: no pair succeeded; errors: {errors[:3]}")
    alike = [pair for pair in pairs if _same_cached(pair)]
    lags = [o.lag_us for o in outcomes]
    return Stage(
        rate=rate,
        num_sent=len(outcomes),
        num_succeeded=len(succeeded),
        num_unlike=len(pairs) - len(alike),
        prompt_tokens=_range([o.prompt_tokens for o in succeeded]) or (0, 0),
        cached_tokens=_range([o.cached_tokens for o in succeeded]),
        matched_blocks=_range([o.matched_blocks for o in succeeded]) or (0, 0),
        lag_us=(round(float(np.median(lags))), round(float(np.percentile(lags, 99)))),
        generator_cpu=round(generator_cpu, 3),
        pairs={kind: _times([p for p in alike if p["chat"].kind == kind]) for kind in KINDS},
    )


_Pair = dict[Arm, Outcome]


def _whole_pairs(outcomes: Sequence[Outcome]) -> list[_Pair]:
    by_number: dict[int, _Pair] = {}
    for outcome in outcomes:
        by_number.setdefault(outcome.pair, {})[outcome.arm] = outcome
    whole = [pair for _, pair in sorted(by_number.items()) if len(pair) == len(ARMS)]
    for pair in whole:
        chat, completion = pair["chat"], pair["completion"]
        if chat.prompt_tokens != completion.prompt_tokens:
            raise BenchError(
                f"pair {chat.pair}: the chat's prompt has {chat.prompt_tokens} tokens, the "
                f"completion's {completion.prompt_tokens}; they must be the same"
            )
    return whole


def _same_cached(pair: _Pair) -> bool:
    """Else the engine had more or less to compute for one arm."""
    chat, completion = pair["chat"], pair["completion"]
    return (chat.cached_tokens, chat.matched_blocks) == (
        completion.cached_tokens,
        completion.matched_blocks,
    )


def _times(pairs: Sequence[_Pair]) -> Pairs:
    between = [pair for pair in pairs if all(o.itl_us is not None for o in pair.values())]
    return Pairs(
        {arm: [pair[arm].ttft_us or 0 for pair in pairs] for arm in ARMS},
        {arm: [pair[arm].itl_us or 0.0 for pair in between] for arm in ARMS},
    )


def _range(values: Sequence[int | None]) -> tuple[int, int] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _differences(us: dict[Arm, list[int]] | dict[Arm, list[float]]) -> list[float]:
    chat, completion = us["chat"], us["completion"]
    return [(c - o) / 1e3 for c, o in zip(chat, completion, strict=True)]
