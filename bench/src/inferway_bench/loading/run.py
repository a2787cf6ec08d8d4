"""A whole run: the model's name, then one load after another, each with sessions of its own."""

from __future__ import annotations

import asyncio
import gc
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import uvloop

from inferway_bench.loading.client import Client, Target
from inferway_bench.loading.drive import STREAMED, Driven, Pacing, drive
from inferway_bench.loading.results import LoadRun, Measured, Slo, measured
from inferway_bench.loading.samples import Sample
from inferway_bench.loading.schedule import first_times, interleaved, poisson, scaled, uniform
from inferway_bench.loading.sources import Source
from inferway_bench.loading.workload import Session
from inferway_bench.machine import command_line, this_machine
from inferway_bench.processes import BenchError


@dataclass(frozen=True, slots=True)
class Load:
    """One stage: so many requests a second, or so many users, or (neither) a trace's own times."""

    rate: float | None = None
    users: int | None = None

    @property
    def name(self) -> str:
        if self.users is not None:
            return f"{self.users} user{'s' * (self.users > 1)}"
        return "own times" if self.rate is None else f"{self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done. Each load takes `warm_up`, `seconds` and `cool_down`, or `requests` in all."""

    loads: Sequence[Load]
    seconds: float | None = 60.0  # that are measured
    requests: int | None = None
    warm_up: float = 5.0
    cool_down: float = 2.0
    live: int = 40  # sessions open at a time, where each request has its time
    is_uniform: bool = False  # arrivals as far from each other; else a Poisson process
    speed: float = 1.0  # of a trace's own times
    seed: int = 0
    slo: Slo | None = None
    streams: bool = True

    @property
    def total_seconds(self) -> float | None:
        """Of one load. None: as many as its requests take."""
        if self.seconds is None:
            return None
        return self.warm_up + self.seconds + self.cool_down


# A load's number, the load, and each of its samples.
OnProgress = Callable[[int, Load, Sample | None], None]


def run_load(
    target: Target,
    source: Source,
    plan: Plan,
    *,
    model: str | None = None,
    on_progress: OnProgress = lambda number, load, sample: None,  # noqa: ARG005
) -> LoadRun:
    """SIGINT ends it with what was measured so far. Raises BenchError when that is nothing."""
    machine = this_machine()
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would be somebody's latency
    try:
        name, found = uvloop.run(_run(target, source, plan, model, on_progress))
    finally:
        gc.enable()
        gc.unfreeze()
    return LoadRun(
        machine=machine,
        command=shlex.join(hidden(command_line())),
        url=target.url,
        model=name,
        workload=source.about,
        seed=plan.seed,
        measured=found,
    )


def hidden(words: Sequence[str]) -> Iterator[str]:
    """A command's words without the values of headers, which may be secret."""
    is_header = False
    for word in words:
        if is_header or word.startswith("--header="):
            word = word.partition(":")[0] + ": …"
        is_header = word == "--header"
        yield word


async def _run(
    target: Target, source: Source, plan: Plan, model: str | None, on_progress: OnProgress
) -> tuple[str, list[Measured]]:
    name = model or await ask_model(target)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    found: list[Measured] = []
    for number, load in enumerate(plan.loads):
        on_progress(number, load, None)
        driven = await _drive(target, source, plan, number, name, on_progress, stop)
        try:
            found.append(_measured(driven, plan, load, source))
        except BenchError:
            if not (stop.is_set() and found):  # else it was stopped while it warmed up
                raise
        gc.collect()
        if stop.is_set():
            break
    return name, found


async def _drive(
    target: Target,
    source: Source,
    plan: Plan,
    number: int,
    model: str,
    on_progress: OnProgress,
    stop: asyncio.Event,
) -> Driven:
    load = plan.loads[number]
    return await drive(
        target,
        sessions_of(source, plan, number),
        Pacing(load.users, plan.total_seconds, plan.requests),
        model=model,
        fields=STREAMED if plan.streams else {},
        on_sample=lambda sample: on_progress(number, load, sample),
        stop=stop,
    )


def sessions_of(source: Source, plan: Plan, number: int) -> Iterator[Session]:
    """Those of a load, with their times if it has any."""
    load = plan.loads[number]
    if load.users is not None:
        return source.untimed(number)
    if source.timed is not None:
        sessions = source.timed(number, load.rate)
        return sessions if load.rate is not None else scaled(sessions, 1 / plan.speed)
    assert load.rate is not None
    seed = plan.seed * 1_000 + number
    arrivals = uniform(load.rate) if plan.is_uniform else poisson(load.rate, seed)
    times = first_times(arrivals, seconds=plan.total_seconds, count=plan.requests)
    return iter(interleaved(source.untimed(number), times, plan.live, seed))


def _measured(driven: Driven, plan: Plan, load: Load, source: Source) -> Measured:
    found = measured(
        driven,
        load=load.name,
        rate=load.rate,
        users=load.users,
        warm_up=plan.warm_up,
        cool_down=plan.cool_down,
        seconds=plan.total_seconds,
        slo=plan.slo,
    )
    most = max(sample.session for sample in driven.samples) + 1
    if source.num_sessions is None or most <= source.num_sessions:
        return found
    again = (
        f"the file's {source.num_sessions:,} sessions were begun {most:,} times: what was sent "
        "before may be cached"
    )
    return msgspec.structs.replace(found, doubts=[*found.doubts, again])


async def ask_model(target: Target) -> str:
    """The first that /v1/models names. Raises BenchError."""
    client = Client(target)
    try:
        answer = await client.get("/v1/models")
    finally:
        client.close()
    body = b"".join([piece.data for piece in answer.pieces])
    if answer.error is not None:
        raise BenchError(
            f"{target.url}: {answer.error}: {body[:200].decode(errors='replace')}; the cure: the "
            "URL of a server that runs"
        )
    cure = "the cure: --model NAME"
    if answer.status in (401, 403):
        cure = "the cure: --api-key-env NAME, the environment variable that has the key"
    try:
        names = [str(m["id"]) for m in msgspec.json.decode(body)["data"]]
    except (msgspec.MsgspecError, KeyError, TypeError):
        names = []
    if not names:
        raise BenchError(
            f"{target.url}/v1/models: answered {answer.status} and names no model; {cure}"
        )
    return names[0]
