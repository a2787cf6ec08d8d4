"""`inferway bench compare`: two endpoints before one fleet, in turns.

A run is pairs of short blocks. Both blocks of a pair have the same times and lengths, one goes
through A and one through B, which of them first is drawn; so whatever the machines do in a run
meets both. Each block has words of its own from the first on, so that no cache knows them from
another block; engines that can are told to forget their caches before it. `paired` judges.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Annotated

import numpy as np
import uvloop

from inferway.cli.command import Section
from inferway.signals import listen
from inferway_bench.flags import flag
from inferway_bench.harness import Benchmark
from inferway_bench.loading.answers import Sample
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive, without_collections
from inferway_bench.loading.generated import (
    Session,
    Turn,
    first_times,
    interleaved,
    poisson,
)
from inferway_bench.loading.measured import MeasuredLoad, Stage, keep
from inferway_bench.loading.paired import LEAST_PAIRS, LEVEL, Change, changes, verdict
from inferway_bench.loading.plan import SERVER, Sent
from inferway_bench.loading.run import Source, ask_models, source_of, target_of
from inferway_bench.plotting import Chart, Plot
from inferway_bench.processes import BenchError, OnStep, get, request, wait_until
from inferway_bench.routers import Counters, read_metrics, total, under_way
from inferway_bench.rows import Column, Findings, Key, Row, Table, Value
from inferway_bench.spread import three_digits

_MOST_PAIRS, _USUAL_SECONDS = 40, 36.0  # of a pair, where that allows
_BEGINNING = 0.2  # of a block: it fills its caches, and is left out
_SHARE = 0.8  # of what so many users had answered: a load that lasts
_BUSY = 0.8  # of a core
_FEWEST = 8  # requests of a block, on average
_COUNTERS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
_WHEN = Section("How much, and how long", "{command} --rate 8 --minutes 10")
_FLEET = Section("The engines behind both", "{command} --engine http://10.0.0.5:8000")


_CURES = {
    "status 401": "--api-key-env NAME", "status 403": "--api-key-env NAME",
    "status 404": "--model NAME, or the URL", "status 400": "--no-ignore-eos, if that is refused",
    "status 429": "a lower --rate or --users, or no limit for this key",
    "tls": "SSL_CERT_FILE, which names the authorities to trust",
    "timeout": "a lower --rate, or more --timeout", "connect": "the URL of a server that runs",
}  # fmt: skip


class Address:
    """A URL, which no stored run says."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return "…"


class ComparePlan(Sent, frozen=True, kw_only=True):
    """The endpoints to compare, and how long. Raises ValueError for more than two names or keys."""

    # fmt: off
    url_a: Annotated[Address, flag("", is_argument=True, parse=Address, metavar="URL_A")]
    url_b: Annotated[Address, flag("", is_argument=True, parse=Address, metavar="URL_B")]
    minutes: Annotated[float, flag("Take about this time.", gt=0, section=_WHEN)] = 10.0
    rate: Annotated[float | None, flag(
        "Send this number of requests a second.  [default: found in the warm-up by --users]",
        gt=0, section=_WHEN,
    )] = None
    users: Annotated[int, flag(
        "Find a rate that keeps up to this number of requests under way.", ge=1, section=_WHEN,
    )] = 16
    engines: Annotated[tuple[Address, ...], flag(
        "Read the counters of this vLLM engine, and reset its caches before each block if it is in"
        " development mode. Repeat the flag for all engines.",
        name="--engine", parse=Address, metavar="URL", is_repeated=True, section=_FLEET,
    )] = ()
    names: Annotated[tuple[str, ...], flag(
        "Call the endpoint so, with its version. Repeat the flag for the second.  [default: A, B]",
        name="--name", section=SERVER,
    )] = ()
    api_key_env: Annotated[tuple[str, ...], flag(
        "Send the API key that this environment variable holds. Repeat the flag if the second"
        " endpoint has another key.", metavar="NAME", section=SERVER,
    )] = ()
    # fmt: on

    def __post_init__(self) -> None:
        for name, given, allowed in (
            ("--name", self.names, (0, 2)), ("--api-key-env", self.api_key_env, (0, 1, 2)),
        ):  # fmt: skip
            if len(given) not in allowed:
                raise ValueError(
                    f"{name} is given {len(given)} times; allowed: {' or '.join(map(str, allowed))}"
                )
        if len(set(self.names)) == 1:
            raise ValueError(f"--name {self.names[0]!r}: both endpoints; fix: two different names")

    @property
    def num_pairs(self) -> int:
        """The number of pairs of blocks."""
        usual = int(self.minutes * 60 / _USUAL_SECONDS)
        return min(_MOST_PAIRS, max(LEAST_PAIRS, usual))

    @property
    def block_seconds(self) -> float:
        """The seconds of a block; the warm-up takes as long as a pair."""
        return self.minutes * 60 / (2 * (self.num_pairs + 1))


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two endpoints."""

    name: str
    target: Target


@dataclass(slots=True)
class _Comparison:
    """The blocks of a run, one after the other. Its event loop writes the rest."""

    plan: ComparePlan
    sides: Sequence[Side]
    source: Source
    on_step: OnStep
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    rate: float = 0.0
    blocks: list[list[dict[str, float]]] = field(default_factory=lambda: [[], []])
    outcomes: list[Counter[str]] = field(default_factory=lambda: [Counter(), Counter()])
    cpu_share: float = 0.0  # the most of a block
    refused: bool = False  # an engine does not reset its caches

    async def measure(self) -> tuple[str, int]:
        """Return the model's name and the number of whole pairs. Raises BenchError."""
        model = await self._model()
        for one in self.sides:
            await _probe(one, model)
        stop = asyncio.Event()
        listen(asyncio.get_running_loop(), stop.set, signal.SIGINT)
        found = [await self._warm_up(one, model, stop) for one in self.sides]
        self.rate = self.plan.rate or _SHARE * min(found)
        if self.rate * self.plan.block_seconds < _FEWEST:
            raise BenchError(
                f"{self.rate:.3g} requests a second are fewer than {_FEWEST} in a block of "
                f"{self.plan.block_seconds:.3g} s; fix: more --minutes, or more --users or --rate"
            )
        orders = [(0, 1), (1, 0)] * (-(-self.plan.num_pairs // 2))
        Random(self.plan.seed).shuffle(orders)
        for pair, order in enumerate(orders[: self.plan.num_pairs]):
            figures = {}
            for side in order:
                self.on_step(
                    f"{self.sides[side].name}, {self.rate:.3g} requests a second: pair {pair + 1} "
                    f"of {self.plan.num_pairs}"
                )
                figures[side] = await self._block(side, pair, model, stop)
                if stop.is_set():
                    return model, pair
            for side in order:
                self.blocks[side].append(figures[side])
        return model, self.plan.num_pairs

    async def _model(self) -> str:
        """The model that both serve."""
        if self.plan.model is not None:
            return self.plan.model
        first, second = [await ask_models(side.target) for side in self.sides]
        both = [name for name in first if name in second]
        if not both:
            a, b = (side.name for side in self.sides)
            raise BenchError(
                f"no model is served by both: {a} has {', '.join(first)}, {b} has "
                f"{', '.join(second)}; fix: serve one name by both, or --model NAME"
            )
        return both[0]

    async def _warm_up(self, side: Side, model: str, stop: asyncio.Event) -> float:
        """Let users wait for each answer, for the time of a block; return the answers a second."""
        self.on_step(f"warming up {side.name}")
        _forget(self._engines)
        sessions = self.source.sessions(self.plan.num_pairs, None, f"{self.run} {side.name}")
        pacing = Pacing(self.plan.users, self.plan.block_seconds)
        driven = await drive(side.target, sessions, pacing, model=model, stop=stop)
        if stop.is_set():
            raise BenchError("stopped in its warm-up: nothing was measured")
        return len(_answered(side, driven.samples)) / driven.seconds

    @property
    def _engines(self) -> list[str]:
        return [one.url.rstrip("/") for one in self.plan.engines]

    async def _block(
        self, side: int, pair: int, model: str, stop: asyncio.Event
    ) -> dict[str, float]:
        one, seconds = self.sides[side], self.plan.block_seconds
        self.refused |= not _forget(self._engines)
        before = _counted(self._engines)
        sessions = self._sessions(pair, f"{self.run} {pair} {one.name}")
        pacing = Pacing(seconds=seconds)
        driven = await drive(one.target, sessions, pacing, model=model, stop=stop)
        if stop.is_set():
            return {}
        counted = [now - then for now, then in zip(_counted(self._engines), before, strict=True)]
        kept = keep(driven, Stage(self.rate), _BEGINNING * seconds, seconds=seconds)
        _answered(one, kept.samples)
        self.outcomes[side].update(s.error or "answered" for s in driven.samples)
        self.cpu_share = max(self.cpu_share, driven.cpu_share)
        return _figures(kept, counted)

    def _sessions(self, pair: int, words: str) -> list[Session]:
        seconds, seed = self.plan.block_seconds, self.plan.seed * 1_000 + pair
        if self.source.own_rate is not None:
            return part_of_trace(self.source.sessions(pair, self.rate, words), pair, seconds)
        times = first_times(poisson(self.rate, seed), seconds=seconds, count=None)
        sessions = self.source.sessions(pair, None, words)
        return interleaved(sessions, times, self.plan.sessions, seed)


def part_of_trace(sessions: Iterator[Session], number: int, seconds: float) -> list[Session]:
    """Return what begins in one part of a trace, which begins again after its last whole part."""
    found = list(sessions)
    num_parts = max(1, int(found[-1].at[0] / seconds))
    since = number % num_parts * seconds
    return [
        replace(one, at=(one.at[0] - since,))
        for one in found
        if since <= one.at[0] < since + seconds
    ]


async def _probe(side: Side, model: str) -> None:
    """Raise BenchError for an endpoint that does not stream an answer."""
    fields = {"messages": [{"role": "user", "content": "Count to twenty."}], "max_tokens": 16}
    driven = await drive(
        side.target, [Session(0, [Turn(fields=fields)], (0.0,))], Pacing(), model=model
    )
    [sample] = _answered(side, driven.samples)
    if sample.num_deltas == 1 and sample.num_tokens > 1:
        raise BenchError(
            f"{side.name}: an answer of {sample.num_tokens} tokens came in one piece, so that its "
            "first token has no time; fix: an endpoint that passes streams on as they come"
        )


def _answered(side: Side, samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples that succeeded. Raises BenchError if there are samples, and none did."""
    good = [sample for sample in samples if sample.ok]
    if good or not samples:
        return good
    kind = str(samples[0].error)
    cure = _CURES.get(kind, "an endpoint that answers such requests")
    raise BenchError(
        f"{side.name} ({side.target.url}): none of {len(samples)} requests was answered: {kind}: "
        f"{samples[0].detail or 'nothing more was said'}; fix: {cure}"
    )


def _figures(kept: MeasuredLoad, counted: Sequence[float]) -> dict[str, float]:
    """The figures of a block, by the names that `paired` knows; one that nobody tells is left out.
    `counted`: the prompt tokens that the engines had cached meanwhile, and of how many."""
    good = kept.good
    ttft = [s.ttft * 1e3 for s in good if s.ttft is not None]
    itl = [s.itl * 1e3 for s in good if s.itl is not None]
    seconds = max(s.ended for s in good) - kept.since
    hits, asked = counted
    said = kept.cached_share() if not asked else None
    found: dict[str, float | None] = {
        "TTFT, ms": fmean(ttft),
        "TTFT p90, ms": float(np.percentile(ttft, 90)),
        "ITL, ms": fmean(itl) if itl else None,
        "tokens/s": sum(s.num_tokens for s in good) / seconds,
        "cached, %": 100 * hits / asked if asked else said.value * 100 if said else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _forget(engines: Sequence[str]) -> bool:
    """Reset the caches of idle engines; return False if one has no such path. Raises BenchError for
    one that does not become idle."""
    for url in engines:
        what = f"--engine {url}: waiting until only this run uses it (fix: no other traffic)"
        wait_until(lambda url=url: not under_way(_metrics(url)), what)  # type: ignore[misc]
    try:
        for url in engines:
            request(f"{url}/reset_prefix_cache", b"")
    except BenchError:  # not in development mode
        return False
    return True


def _counted(engines: Sequence[str]) -> list[float]:
    """Prompt tokens that all engines found cached, and all that they looked for."""
    pages = [_metrics(url) for url in engines]
    return [sum(total(page, name) for page in pages) for name in _COUNTERS]


def _metrics(url: str) -> Counters:
    try:
        return read_metrics(get(f"{url}/metrics").decode())
    except (OSError, ValueError, BenchError) as e:
        raise BenchError(
            f"--engine {url}: no counters: {e}; fix: the URL of a vLLM engine itself"
        ) from e


def measure(plan: ComparePlan, on_step: OnStep) -> Findings:
    """Send all blocks and compare. SIGINT ends the run with the pairs so far. Raises BenchError
    when an endpoint or an engine fails, and UsageError for a flag that cannot be followed."""
    keys = (*plan.api_key_env, *plan.api_key_env, None, None)
    urls = (plan.url_a.url, plan.url_b.url)
    sides = [
        Side(name, target_of(plan, url, key))
        for name, url, key in zip(plan.names or ("A", "B"), urls, keys, strict=False)
    ]
    run = _Comparison(plan, sides, source_of(plan), on_step)
    with without_collections():
        model, num_pairs = uvloop.run(run.measure())
    if num_pairs < LEAST_PAIRS:
        raise BenchError(f"stopped after {num_pairs} pairs of blocks; {LEAST_PAIRS} are needed")
    found, (a, b) = changes(*run.blocks), (side.name for side in sides)
    rows = [Row("figures", {"figure": one.figure.name}, _values(one, a, b)) for one in found]
    rows += [
        Row("blocks", {"endpoint": side.name, "pair": pair + 1}, figures)
        for side, blocks in zip(sides, run.blocks, strict=True)
        for pair, figures in enumerate(blocks)
    ]
    facts: dict[str, Key] = {
        "a": a,
        "b": b,
        "model": model,
        "workload": run.source.about,
        "rate": run.rate,
    }
    about = [verdict(found, a, b), "", *(f"- {line}" for line in _notes(run, num_pairs))]
    return Findings(rows=rows, about=about, facts=facts, is_whole=num_pairs == plan.num_pairs)


def _values(one: Change, a: str, b: str) -> dict[str, Value]:
    better = (b if one.is_better else a) + " is better"
    said = better if one.is_difference else "no difference"
    return {"a": one.a, "b": one.b, "difference": one.difference, "verdict": said}


def _notes(run: _Comparison, num_pairs: int) -> Iterator[str]:
    plan = run.plan
    yield (
        f"{num_pairs} pairs of blocks of {plan.block_seconds:.3g} s, {run.rate:.3g} requests a "
        f"second; {run.source.about}"
    )
    how = "were reset before each block" if plan.engines else "were not reset (no --engine)"
    if run.refused:
        how = "were not reset: an engine has no /reset_prefix_cache (VLLM_SERVER_DEV_MODE=1)"
    yield f"Caches {how}; no block begins with words of another"
    for side, outcomes in zip(run.sides, run.outcomes, strict=True):
        failed = {kind: count for kind, count in outcomes.items() if kind != "answered"}
        if failed:
            kinds = ", ".join(f"{kind}: {count}" for kind, count in failed.items())
            yield (
                f"**{side.name}: {sum(failed.values())} of {outcomes.total()} requests failed** "
                f"({kinds}); its figures are those of the others"
            )
    if run.cpu_share > _BUSY:
        yield (
            f"**The load generator was the bottleneck**: it used {run.cpu_share:.0%} of its core; "
            "fix: a lower --rate"
        )


_PLOT = Plot("blocks", [], "pair", by="endpoint", x_label="pair of blocks")
COMPARE = Benchmark(
    "compare",
    "Compare two OpenAI endpoints before one fleet: URL_A and URL_B, as in http://127.0.0.1:8000.\n\n"
    "The same load goes through both, in short blocks that take turns in random order. What is "
    "said to differ differs by more than chance. --save FILE writes a file to share: it has no "
    "prompts, answers, URLs or keys.",
    ComparePlan,
    measure,
    tables=[
        Table(
            "figures", "{b} against {a}", ["figure"],
            [
                Column("a", "{a}", three_digits), Column("b", "{b}", three_digits),
                Column("difference", "difference, % (cached: points)", "{:+.1f}"),
                Column("verdict"),
            ],
            notes=[
                f"intervals hold for all figures together with {1 - LEVEL:.1%}; a difference below "
                "3 % (cached: 2 points) is none"
            ],
        ),
    ],
    chart=Chart(
        "{b} against {a}: {model}, {rate:.3g} requests a second; {workload}",
        [
            Plot(
                "figures", ["difference"], "figure", x_label=" ",
                y_label="difference, % (cached: points)", levels={"no difference": 0.0},
            ),
            *(
                replace(_PLOT, y=[name], y_label=label)
                for name, label in (
                    ("TTFT, ms", "time to first token, ms"), ("ITL, ms", "time between tokens, ms"),
                    ("cached, %", "prompt tokens from a cache, %"),
                )
            ),
        ],
    ),
    question="which of two endpoints before your own engines is better, and whether it is chance",
    takes="10 minutes, or as --minutes says",
    arguments="http://127.0.0.1:8080 http://127.0.0.1:8081",
    audience="user",
    times="another machine",
)  # fmt: skip
compare = COMPARE.command()
