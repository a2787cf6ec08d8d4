"""`inferway bench chat-overhead`: the experiment of seed 000, in pairs of a chat and a completion
(`chat_pairs`). They are sent at their times, and nobody waits for an answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from inferway_bench.chat_pairs import (
    ARMS,
    KINDS,
    Arm,
    BodyOf,
    Kind,
    Prompt,
    Request,
    make_body,
    planned,
    prompts_of,
)
from inferway_bench.chats import Turns, default_data_dir, load_conversations
from inferway_bench.flags import data_flag, flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import send_at
from inferway_bench.loading.plan import least_most, request_rates
from inferway_bench.loading.samples import Sample
from inferway_bench.peers.fleets import MODEL, simulated_fleet
from inferway_bench.peers.plan import SimulatedEngines
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError, request
from inferway_bench.progress import OnStep
from inferway_bench.report import Better, Column, Table
from inferway_bench.routers import Inferway, Place, place_for, running_router
from inferway_bench.rows import Findings, Goal, Key, Row, Run, Value
from inferway_bench.spread import Interval, mean_interval, three_digits
from inferway_sim.prepare import prepare_smollm2

SEED: Mapping[str, Value] = {  # 000, "Overhead Analysis", ms
    "TTFT completion": "111", "TTFT chat": "122", "TTFT added": "+11, +10 %",
    "ITL completion": "2.8", "ITL chat": "3.2", "ITL added": "+0.4, +14 %",
}  # fmt: skip
GOAL_MS = 1.11  # 1 % of the completions' TTFT may be added by the chat

# The seed's "2 pods". With these times, completions took the seed's mean time to the first token on
# a machine whose engines and gateway took 3.6 ms themselves (2 cores of AMD EPYC, 2026-11-21), and
# nothing that is measured is driven out of the caches.
_ENGINES = SimulatedEngines(
    engines=2, block_size=16, blocks=16_384, prefill_us_per_token=181.3, inter_token_ms=2.8,
    max_num_seqs=256, time_factor_under_load=1.0, prefills_in_turn=False,
)  # fmt: skip
_NUM_COMPARED = 4  # prompts of each kind whose ids are compared one by one
_PATHS: dict[Arm, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
# What the official Python client sends besides the length.
_HEADERS = {"user-agent": "OpenAI/Python 2.8.1", "authorization": "Bearer dummy"}
_TIMEOUT = 60.0  # seconds for an answer


class ChatOverheadPlan(msgspec.Struct, frozen=True):
    """The seed's rates and lengths, or others."""

    # fmt: off
    rates: Annotated[tuple[float, ...], flag(
        "Send this number of requests a second; of several numbers one after the other.  "
        "[default: 3,4,5,6,8,10,12,15,20]", parse=request_rates, metavar="RATES",
    )] = (3, 4, 5, 6, 8, 10, 12, 15, 20)
    seconds: Annotated[float, flag(
        "Send requests at each rate for this number of seconds.", ge=1,
    )] = 80.0
    prompt_tokens: Annotated[tuple[int, int], flag(
        "Give each prompt this number of tokens.  [default: 600-800]", parse=least_most,
        metavar="LEAST-MOST",
    )] = (600, 800)
    output_tokens: Annotated[tuple[int, int], flag(
        "Ask for this number of tokens in each answer.  [default: 1-100]", parse=least_most,
        metavar="LEAST-MOST",
    )] = (1, 100)
    seed: Annotated[int, flag(
        "Draw conversations, lengths, arrival times and the order in each pair with this seed.",
    )] = 0
    data: Annotated[Path | None, data_flag("chat")] = None
    # fmt: on
    warm_up_rate: float = 10.0
    warm_up_seconds: float = 4.0


class Pair(NamedTuple):
    """The two answers to one conversation."""

    kind: Kind
    chat: Sample
    completion: Sample


class RateSent(NamedTuple):
    """What was sent at a rate, and what came back, in the same order."""

    rate: float
    requests: Sequence[Request]
    samples: Sequence[Sample]
    cpu_share: float  # of a core, that sending took

    def pairs(self) -> tuple[list[Pair], int]:
        """Return the pairs of which both were answered, and the number of those left out because
        the engine had more or less to compute for one of them. Raises BenchError when there are
        none, or when a pair's prompts were not the same tokens."""
        found: dict[int, dict[Arm, Sample]] = {}
        kinds = {r.pair: r.kind for r in self.requests}
        for sent, sample in zip(self.requests, self.samples, strict=True):
            if error_of(sample) is None:
                found.setdefault(sent.pair, {})[sent.arm] = sample
        whole = [Pair(kinds[n], **both) for n, both in sorted(found.items()) if len(both) == 2]
        if not whole:
            errors = sorted({str(error_of(s)) for s in self.samples})
            raise BenchError(f"rate {self.rate:g}: no pair succeeded; errors: {errors[:3]}")
        for number, pair in enumerate(whole):
            counts = [pair.chat.prompt_tokens, pair.completion.prompt_tokens]
            if counts[0] != counts[1]:
                raise BenchError(
                    f"pair {number}: the chat's prompt has {counts[0]} tokens, the completion's "
                    f"{counts[1]}; they must be the same"
                )
        alike = [p for p in whole if _cached(p.chat) == _cached(p.completion)]
        return alike, len(whole) - len(alike)


def error_of(sample: Sample) -> str | None:
    """Return why the sample is not a whole stream with its usage; None if it is."""
    if sample.error is not None:
        return f"{sample.error}: {sample.detail}" if sample.detail else sample.error
    return "a stream without usage" if sample.completion_tokens is None else None


def _cached(sample: Sample) -> tuple[int | None, int | None]:
    """Tokens, as the engine says, and matched blocks, as the gateway does."""
    text = (sample.headers or {}).get("x-inferway-matched-blocks")
    return sample.cached_tokens, None if text is None else int(text)


def measure_chat_overhead(plan: ChatOverheadPlan, on_step: OnStep) -> Findings:
    """Measure every rate. Raises BenchError, with the cure, when something cannot be had, or when
    the two arms did not get the same tokens."""
    data = plan.data or default_data_dir()
    turns = Turns(load_conversations(data / "chat"), plan.seed)
    sent = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="inferway-chat-overhead-")))
        prompts = stack.enter_context(
            prompts_of(
                str(prepare_smollm2()), turns, plan.prompt_tokens, plan.output_tokens, plan.seed
            )
        )
        on_step("starting simulated engines")
        engines = stack.enter_context(simulated_fleet(_ENGINES, directory)).engines
        router, place = Inferway(scoring=True), place_for(engines, MODEL, directory)
        stack.enter_context(running_router(router, place, router.is_ready))
        on_step("warming up")
        body_of = partial(make_body, place.model, secrets.token_hex(4))
        _fill_and_compare(place, prompts, body_of)
        warm_up = planned(plan.warm_up_rate, plan.warm_up_seconds, prompts, body_of, plan.seed)
        _sent(place.url, plan.warm_up_rate, warm_up)
        for number, rate in enumerate(plan.rates):
            step = f"rate {number + 1} of {len(plan.rates)}"
            on_step(f"{rate:g} requests/s for {plan.seconds:g} s, {step}")
            requests = planned(rate, plan.seconds, prompts, body_of, plan.seed + number)
            sent.append(_sent(place.url, rate, requests))
    text = f"real conversations of {data.name}/chat"
    text += f", all of them used {turns.num_rounds + 1} times" if turns.num_rounds else ""
    return findings(plan, sent, text)


def _fill_and_compare(place: Place, prompts: Iterator[Prompt], body_of: BodyOf) -> None:
    """What all prompts share is cached by every engine afterwards, for both arms alike; and it is
    certain that both arms bring the engines the same ids."""
    shared = next(prompts)
    for engine, arm in product(place.engines, ARMS):
        _ids(engine.url, body_of(shared, KINDS[0], arm), arm)
    for kind, _ in product(KINDS, range(_NUM_COMPARED)):
        prompt = next(prompts)
        for arm in ARMS:
            if _ids(place.url, body_of(prompt, kind, arm), arm) != list(prompt.token_ids):
                raise BenchError(f"{arm} ({kind}): the engine sees other tokens than we do")


def _sent(url: str, rate: float, requests: Sequence[Request]) -> RateSent:
    target = Target(url, _HEADERS, timeout=_TIMEOUT, keep_headers=True)
    return RateSent(rate, requests, *send_at(target, [(r.at, r.body) for r in requests]))


def _ids(url: str, body: Mapping[str, Any], arm: Arm) -> list[int]:
    """The prompt's tokens as the engine says that it computed them. Raises BenchError when it does
    not say."""
    small = {**body, "max_tokens": 1, "stream": False, "return_token_ids": True}
    del small["stream_options"]
    answer = msgspec.json.decode(request(url + _PATHS[arm], msgspec.json.encode(small), 120)[0])
    ids = answer.get("prompt_token_ids") or answer["choices"][0].get("prompt_token_ids")
    if not isinstance(ids, list):
        raise BenchError(f"{url}: no prompt_token_ids in an answer that should have them")
    return ids


def findings(plan: ChatOverheadPlan, sent: Sequence[RateSent], text: str) -> Findings:
    """Return what the pairs say. `text` says where the conversations are from."""
    pairs = [one.pairs() for one in sent]
    every = [s for one in sent for s in one.samples]
    good = [s for s in every if error_of(s) is None]
    fleet = f"{_ENGINES.engines} simulated engines, fitted to the seed"
    late = np.percentile([(s.sent or s.intended) - s.intended for s in every], 99) * 1e3
    about = [
        f"{fleet}; {plan.seconds:g} s at each rate, {len(every):,} requests, "
        f"{len(good) / len(every):.2%} of them answered. Text: {text}.",
        "In every pair, the chat and the completion had the same number of prompt tokens, as the "
        f"engines count them ({_span([s.prompt_tokens for s in good])}). Cached by the engines: "
        f"{_span([s.cached_tokens for s in good])} tokens. Matched by the gateway: "
        f"{_span([_cached(s)[1] for s in good])} blocks. Pairs left out because these differed: "
        f"{sum(unlike for _, unlike in pairs)}. The load generator took at most "
        f"{max(one.cpu_share for one in sent):.1%} of a core, and sent 99 % of the requests less "
        f"than {late:.2f} ms late.",
    ]
    by_rate = {one.rate: alike for one, (alike, _) in zip(sent, pairs, strict=True)}
    facts: dict[str, Key] = {"fleet": fleet, "goal": GOAL_MS}
    return Findings(rows=list(_rows_of(by_rate)), about=about, facts=facts)


def _span(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    low, high = min(known), max(known)
    return f"{low}" if low == high else f"{low} to {high}"


def _rows_of(by_rate: Mapping[float, Sequence[Pair]]) -> Iterator[Row]:
    """Yield a row for each kind of pair: of all rates together, beside what the seed measured, then
    of each rate. Times in ms."""
    pooled = [pair for pairs in by_rate.values() for pair in pairs]
    for kind in KINDS:
        times = _times([pair for pair in pooled if pair.kind == kind])
        means = {name: mean_interval(ms) for name, ms in times.items() if ms}
        if means:
            yield Row("all", {_BESIDE: kind}, {"pairs": len(times["TTFT added"]), **means})
    yield Row("all", {_BESIDE: "seed 000"}, SEED)
    for rate, pairs in by_rate.items():
        for kind in KINDS:
            times = _times([pair for pair in pairs if pair.kind == kind])
            yield Row("rates", {"requests/s": rate, _BESIDE: kind}, {**times})


def _times(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """Milliseconds of both, and what the chat adds, pair by pair. A time between tokens needs two
    tokens of both."""
    found: dict[str, list[float]] = {}
    for name, time in (("TTFT", "ttft_sent"), ("ITL", "itl")):
        both = [(getattr(pair.completion, time), getattr(pair.chat, time)) for pair in pairs]
        times = [(a * 1e3, b * 1e3) for a, b in both if a is not None and b is not None]
        found[f"{name} completion"] = [round(a, 4) for a, _ in times]
        found[f"{name} chat"] = [round(b, 4) for _, b in times]
        found[f"{name} added"] = [round(b - a, 4) for a, b in times]
    return found


def goals(run: Run) -> list[Goal]:
    """Return the requirement for each kind of pair."""
    found = []
    for row in run.select("all"):
        added = row.values["TTFT added"]
        if isinstance(added, Interval):
            what = f"time to first token that a chat adds to a completion with {row.keys[_BESIDE]}"
            asked = f"upper end ≤ {GOAL_MS:.2f} ms (1%)"
            found.append(Goal(what, asked, f"{added.shown(_ADDED)} ms", added.high <= GOAL_MS))
    return found


_BESIDE = "chat beside a completion with"
_ADDED = "{:+.2f}"


def _columns(better: Better | None) -> list[Column]:
    """`better`: of what the chat adds to the time to first token."""
    return [
        Column("pairs", form="{:,.0f}"),
        Column("TTFT completion", "TTFT: completion", shown="mean"),
        Column("TTFT chat", "chat", shown="mean"),
        Column("TTFT added", "added", _ADDED, "mean", better, "ms"),
        Column("ITL completion", "ITL: completion", three_digits, "mean"),
        Column("ITL chat", "chat", three_digits, "mean"),
        Column("ITL added", "added", _ADDED, "mean"),
    ]


CHAT_OVERHEAD = Benchmark(
    "chat-overhead",
    "Measure what a chat adds to the time to first token: the experiment of seed 000, in which the "
    "same tokens are sent as a chat and as a completion.",
    ChatOverheadPlan,
    measure_chat_overhead,
    tables=[
        Table("all", "All rates together, ms, means (95 %)", [_BESIDE], _columns("lower")),
        Table(
            "rates", "By rate, ms, means (95 %)", ["requests/s", _BESIDE], _columns(None),
            in_details=True,
        ),
    ],
    chart=Chart(
        "Chat beside completion, the same tokens: {fleet}",
        [
            Plot(
                "rates", [f"{name} {arm}" for arm in ARMS], "requests/s", _BESIDE, mean=True,
                y_label=label,
            )
            for name, label in (("TTFT", "time to first token, ms"), ("ITL", "between tokens, ms"))
        ]
        + [
            Plot(
                "rates", ["TTFT added"], "requests/s", _BESIDE, mean=True,
                y_label="added by the chat, pair by pair: mean, ms",
                levels={f"goal: {GOAL_MS} ms (the seed added 11)": "goal"},
            )
        ],
    ),
    quick={
        "rates": (3, 10, 20), "seconds": 6, "warm_up_rate": 20,
        "warm_up_seconds": 2,
    },
    goals=goals,
    question="how much a chat adds to the time to first token of a completion with the same prompt",
    takes="14 minutes",
)  # fmt: skip
chat_overhead = CHAT_OVERHEAD.command()
