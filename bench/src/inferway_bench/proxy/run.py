"""Routers are started together and measured in turns, load by load."""

from __future__ import annotations

import math
import os
import resource
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from inferway_bench import conversations
from inferway_bench.load import Load
from inferway_bench.machine import command_line, this_machine
from inferway_bench.placed import Placed, cases, placed, tell_events
from inferway_bench.progress import OnStep
from inferway_bench.proxy.latency import NONE, measure_latencies
from inferway_bench.proxy.memory import measure_memory
from inferway_bench.proxy.pacing import events_written, set_pace
from inferway_bench.proxy.plan import Plan
from inferway_bench.proxy.results import LONG, PLAIN, SGLANG, SHORT, STREAM, VLLM, Cost, ProxyRun
from inferway_bench.routers import Router, since

# Who carries which load: without a look at prompts, or with all there is.
_PLAIN = (PLAIN, VLLM, SGLANG)


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    what: str
    load: Load
    tokens: int = 0  # of each stream; 0: no streams


def run_proxy(routers: Sequence[Router], root: Path, plan: Plan, on_step: OnStep) -> ProxyRun:
    """All of it. Raises BenchError when something cannot be started, or fails a request."""
    machine, model = this_machine(), str(root)
    _raise_descriptor_limit()
    numbers = iter(range(1, 10**9, 10**6))
    with placed(routers, model, on_step) as ready:
        tell_events(ready, model, on_step)
        loads = _loads(model, plan)
        costs = [cost for case in loads for cost in _costs(case, ready, plan, numbers, on_step)]
        plain = [one for one in ready if one.router.label in _PLAIN]
        half = _half_of_the_slowest(costs)
        timed = measure_latencies(plain, model, half, plan, on_step) if plain else NONE
    light = [router for router in routers if router.label in _PLAIN]
    memory = measure_memory(light, model, plan, on_step)
    return ProxyRun(
        machine=machine,
        command=shlex.join(command_line()),
        plan=plan,
        versions={router.label.split()[0]: router.version for router in routers},
        bodies={case.name: case.what for case in loads},
        costs=costs,
        rate=round(timed.rate, 1),
        half_of_the_slowest=round(half, 1),
        latencies=timed.latencies,
        dropped=timed.dropped,
        memory=memory,
        load_after=round(os.getloadavg()[0], 2),
    )


def _loads(model: str, plan: Plan) -> list[_Case]:
    known = [_Case(case.name, case.what, case.load) for case in cases(model, plan.connections)]
    streams = conversations.short_chat(model, stream=True)
    what = (
        f"the same short chats, streamed: {plan.stream_tokens} tokens, one every "
        f"{plan.step_seconds * 1e3:g} ms, {plan.streams} streams side by side"
    )
    load = Load(streams, connections=plan.streams)
    return [*known, _Case(STREAM, what, load, tokens=plan.stream_tokens)]


def _takes(case: _Case, router: Router) -> bool:
    plain = router.label in _PLAIN
    return not plain if case.name == LONG else plain


def _costs(
    case: _Case, ready: Sequence[Placed], plan: Plan, numbers: Iterator[int], on_step: OnStep
) -> list[Cost]:
    taking = [one for one in ready if _takes(case, one.router)]
    least = math.ceil(3 * case.tokens * plan.step_seconds)  # so that streams end within
    for one in taking:
        on_step(f"{case.name}: warming up {one.router.label}")
        if case.tokens:
            set_pace(one, case.tokens, plan.step_seconds)
        case.load.run(one.place.url, max(plan.warm_up_seconds, least), next(numbers))
    before = [one.router.counters(one.place) for one in taking]
    cpu: list[list[float]] = [[] for _ in taking]
    per_second: list[list[float]] = [[] for _ in taking]
    for repeat in range(plan.repeats):
        for i, one in enumerate(taking):
            on_step(f"{case.name}: {one.router.label}, {repeat + 1} of {plan.repeats}")
            written = events_written(one)
            result, used = one.measure(case.load, max(plan.seconds, least), next(numbers))
            number = events_written(one) - written if case.tokens else result.requests
            cpu[i].append(round(used / number * 1e6, 2))
            per_second[i].append(round(number * 1e6 / result.microseconds))
    return [
        Cost(
            router=one.router.label,
            case=case.name,
            cpu_us=cpu[i],
            per_second=per_second[i],
            note=one.router.evidence(since(before[i], one.router.counters(one.place))),
        )
        for i, one in enumerate(taking)
    ]


def _half_of_the_slowest(costs: Sequence[Cost]) -> float:
    """Of what routers can carry without a look at prompts, requests a second."""
    carried = [median(cost.per_second) for cost in costs if cost.case == SHORT]
    return min(carried, default=0.0) / 2


def _raise_descriptor_limit() -> None:
    """For all that are started from here: a thousand streams are two thousand sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
