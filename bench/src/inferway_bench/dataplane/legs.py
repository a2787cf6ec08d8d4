"""`inferway bench legs`: what it costs to send each request in two legs, beside vllm-router.

As in `bench dataplane` each router gets two trivial engines; here the first of them prefills, and
the second decodes. All routers send all requests in two legs, which the engines count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from inferway_bench import conversations
from inferway_bench.dataplane.benchmark import LONG, SHORT, RoutersPlan
from inferway_bench.dataplane.testbed import Repeat, in_turns, publish_events, started_routers
from inferway_bench.dataplane.wrk import Load
from inferway_bench.harness import Benchmark
from inferway_bench.processes import BenchError, get
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.routers import (
    Counters,
    Inferway,
    Place,
    Router,
    RunningRouter,
    VllmRouter,
    all_routers,
    chosen,
    versions,
)
from inferway_bench.rows import Findings, Goal, Row, Run
from inferway_bench.spread import ratio_of_medians
from inferway_bench.templates import FOLDER
from inferway_sim.prepare import prepare_smollm2

PLAIN, CACHE_AWARE = "inferway serve --no-scoring", "inferway serve, cache-aware"
VLLM, VLLM_CACHE = "vllm-router round_robin", "vllm-router cache_aware"
VLLM_KV = "vllm-router kv_aware"


@dataclass(frozen=True, slots=True)
class TwoLegInferway(Inferway):
    """Ours, told by an EndpointPickerConfig to send everything in two legs."""

    @property
    def label(self) -> str:
        return CACHE_AWARE if self.scoring else PLAIN

    def command(self, place: Place) -> list[str]:
        name = "legs_by_cache.yaml" if self.scoring else "legs.yaml"
        # a trivial engine answers no probe, which otherwise is what token ids are sent after
        more = ["--tokens-once", "on"] if self.scoring else []
        words = Inferway(scoring=self.scoring).command(place)
        roles = zip(place.engines, ("prefill", "decode"), strict=True)
        told = {each.url: f"{each.url},role={role},kv_connector=nixl" for each, role in roles}
        return [
            *(told.get(word, word) for word in words),
            "--scheduling",
            str(FOLDER / name),
            *more,
        ]

    def is_ready(self, place: Place) -> bool:
        return Inferway(scoring=self.scoring).is_ready(place)


@dataclass(frozen=True, slots=True)
class TwoLegVllmRouter(VllmRouter):
    """vllm-router with --vllm-pd-disaggregation. Its kv_aware takes blocks of 16 tokens alone."""

    def command(self, place: Place) -> list[str]:
        words = [str(self.peers.executable(self.package)), "--vllm-pd-disaggregation"]
        words += ["--kv-connector", "nixl", "--policy", self.policy]
        prefill, decode = place.engines
        words += ["--prefill", prefill.url, "--decode", decode.url]
        if self.matches_events:  # those of the prefill engines alone
            words += ["--pd-kv-events", f"{prefill.url}={prefill.events}"]
        words += ["--host", "127.0.0.1", "--port", str(place.port)]
        return [*words, "--prometheus-port", str(place.metrics_port)]


def measure(plan: RoutersPlan, on_step: OnStep) -> Findings:
    """Measure the routers that the plan wants. Raises BenchError when something cannot be started,
    fails a request, or sends one in one leg."""
    known = all_routers(("round_robin", "cache_aware", "kv_aware"), (), plan.peers, on_step)
    routers: list[Router] = [TwoLegInferway(scoring=False), TwoLegInferway(scoring=True)]
    routers += [TwoLegVllmRouter(r.peers, r.policy) for r in known if isinstance(r, VllmRouter)]
    routers = chosen(routers, plan.only)
    model = str(prepare_smollm2())
    short, long = conversations.short_chat(model), conversations.chat_of_8k_tokens(model)
    rows: list[Row] = []
    with started_routers(routers, model, on_step) as ready:
        # both have the blocks: the one has computed them, the other one got them
        publish_events(ready, model, on_step, on_each=True)
        for name, templates in ((SHORT, short), (LONG, long)):
            rows += _cpu_rows(name, Load(templates, plan.connections), ready, plan, on_step)
    about = (
        f"{plan.repeats} repeats of {plan.seconds} s, {plan.connections} connections, all routers "
        f"in one run, taking turns: {versions(routers)}. Each has two trivial engines, which answer"
        " at once; the CPU time is that of both legs of a request. Load average after the run: "
        f"{os.getloadavg()[0]:.2f}."
    )
    return Findings(rows=rows, about=[about], seeds=list(range(plan.repeats)))


def _cpu_rows(
    name: str, load: Load, ready: Sequence[RunningRouter], plan: RoutersPlan, on_step: OnStep
) -> Iterator[Row]:
    numbers = iter(range(1, 10**9, 10**6))
    measured = in_turns(ready, load, name, plan.seconds, plan.repeats, numbers, _legs, on_step)
    for one, repeats in zip(ready, measured, strict=True):
        for each in repeats:
            _have_both_legs(f"{one.label}, {name}", each)
        yield Row(
            "cpu",
            {"load": name, "router": one.label},
            {
                "cpu_us": [round(r.cpu_seconds / r.result.requests * 1e6, 2) for r in repeats],
                "per_second": [
                    float(round(r.result.requests * 1e6 / r.result.microseconds)) for r in repeats
                ],
            },
            one.router.is_ours,
        )


def _have_both_legs(label: str, measured: Repeat) -> None:
    """Raises BenchError if requests were answered in one leg. Those that were on their way when the
    load ended have legs, and no answer."""
    for leg in ("prefill", "decode"):
        if measured.counted[leg] < measured.result.requests:
            raise BenchError(
                f"{label}: {measured.result.requests} answers, "
                f"{measured.counted[leg]:.0f} {leg} legs; expected one for each"
            )


def _legs(one: RunningRouter) -> Counters:
    """How many legs the engines have got: the first one prefills, the second one decodes."""
    prefill, decode = (
        msgspec.json.decode(get(f"{each.url}/bench/legs"), type=Counters)
        for each in one.place.engines
    )
    return {"prefill": prefill["prefill"], "decode": decode["decode"]}


def goals(run: Run) -> list[Goal]:
    """Judge the requirements whose routers were measured."""
    pairs = ((SHORT, PLAIN, VLLM, 1.2), (LONG, CACHE_AWARE, VLLM_KV, 0.6))
    found = []
    for load, ours, theirs, most in (*pairs, (LONG, CACHE_AWARE, VLLM_CACHE, 0.6)):
        mine, other = (run.find("cpu", load=load, router=name) for name in (ours, theirs))
        if mine is not None and other is not None:
            ratio = ratio_of_medians(mine.repeats("cpu_us"), other.repeats("cpu_us"))
            what = f"{load}, CPU of both legs, {ours}"
            met = ratio.value <= most
            found.append(Goal(what, f"≤ {most:g} × {theirs}", ratio.shown(), met))
    return found


LEGS = Benchmark(
    "legs",
    "Measure the CPU time of requests that are sent in two legs, prefill and decode, beside "
    "vllm-router. It needs the program wrk.",
    RoutersPlan,
    measure,
    [
        Table(
            "cpu",
            "CPU time of both legs of a request, median (lowest to highest of the repeats)",
            ["load", "router"],
            [
                Column("cpu_us", "CPU, µs", "{:,.1f}", "range", "lower", "µs"),
                Column("per_second", "carried a second", "{:,.0f}", better="higher"),
            ],
        )
    ],
    quick={"repeats": 2, "seconds": 2},
    goals=goals,
    question="how much CPU time a request takes whose prompt is computed apart",
    takes="8 minutes",
)
legs = LEGS.command()
