"""`inferway bench load`: the model's name, then one load after another, each with its sessions.

Sessions are generated chats, files of conversations or bodies, or traces. Each stage of a run gets
sessions of its own, so that no rate profits from what the rate before has left in the caches.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import click
import msgspec
import uvloop

from inferway.signals import listen
from inferway_bench.harness import Benchmark
from inferway_bench.loading.answers import Sample
from inferway_bench.loading.client import Client, Target
from inferway_bench.loading.datasets import read_dataset
from inferway_bench.loading.drive import STREAMED, Driven, Pacing, drive, without_collections
from inferway_bench.loading.generated import (
    ChatSpec,
    Session,
    first_times,
    generated_chats,
    interleaved,
    poisson,
    shortened,
    tagged,
    traced,
)
from inferway_bench.loading.measured import (
    TABLE,
    MeasuredLoad,
    Slo,
    Stage,
    doubts,
    keep,
    row_of,
)
from inferway_bench.loading.plan import LoadPlan, Sent
from inferway_bench.plotting import Chart, Plot
from inferway_bench.policies.requests import Workload, read_trace
from inferway_bench.processes import BenchError, OnStep
from inferway_bench.rows import Column, Findings, Table
from inferway_bench.spread import three_digits

_REFRESH_SECONDS = 1.0  # of what is shown, whose drawing takes a millisecond
_STAGE_SEED = 1_000_003  # apart from each other's sessions


@dataclass(frozen=True, slots=True)
class Source:
    """`sessions` of a stage, of a trace at a rate of requests a second or (None) at its own; all
    others have no times and no end. With another tag they begin with other words, so that no cache
    knows them, and all else is the same."""

    about: str
    sessions: Callable[[int, float | None, str], Iterator[Session]]
    own_rate: float | None = None  # of a trace: requests a second
    num_sessions: int | None = None  # of a file: those beyond are the same again


def source_of(plan: Sent) -> Source:
    """Return what the plan sends: of a file, its first line shows which it is. Raises BenchError,
    and UsageError for flags that are for another kind."""
    seed = plan.seed
    if plan.dataset is None:
        spec = ChatSpec(
            plan.systems,
            plan.system_tokens,
            plan.turns,
            plan.message_tokens,
            plan.output_tokens or ChatSpec().answer_tokens,
            plan.think,
            force_length=plan.ignore_eos,
            given_answers=plan.answers == "given",
        )
        return Source(
            spec.about, lambda stage, _, tag: generated_chats(spec, seed * _STAGE_SEED + stage, tag)
        )
    try:
        trace = read_trace(plan.dataset, seed)
    except (BenchError, OSError):  # what it is then is said by who reads it next
        return _of_conversations(plan)
    return _of_trace(trace, plan)


def _of_conversations(plan: Sent) -> Source:
    assert plan.dataset is not None
    read = read_dataset(plan.dataset)
    for name in ("max_prompt_tokens", "trace_times"):
        if getattr(plan, name, None):
            raise click.UsageError(
                f"--{name.replace('_', '-')}: {plan.dataset} is not a trace; fix: leave it out"
            )
    dataset = read.shaped(plan.seed, plan.output_tokens, plan.answers != "server", plan.ignore_eos)
    num = len(dataset.sessions)
    return Source(
        dataset.about,
        lambda stage, _, tag: (tagged(one, tag) for one in dataset.endless(plan.seed, stage)),
        num_sessions=num,
    )


def _of_trace(trace: Workload, plan: Sent) -> Source:
    if plan.max_prompt_tokens is not None:
        trace = shortened(trace, plan.max_prompt_tokens)

    def sessions(stage: int, rate: float | None, tag: str) -> Iterator[Session]:
        at = trace.starts(rate or trace.own_rate, plan.seed)
        words = f"{plan.seed * _STAGE_SEED + stage} {tag}"
        return traced(trace, at, words, plan.ignore_eos)

    about = f"{trace.about}; generated text of the same lengths and shared prefixes"
    return Source(about, sessions, trace.own_rate)


def measure_load(plan: LoadPlan, on_step: OnStep) -> Findings:
    """Measure every load. SIGINT ends it with what was measured so far. Raises BenchError when that
    is nothing, and UsageError for a flag that cannot be followed."""
    target = target_of(plan, plan.url, plan.api_key_env)
    source = source_of(plan)
    stages = [Stage(rate=rate) for rate in plan.rates]
    stages += [Stage(users=users) for users in plan.users]
    # A file's text is the same in each run, and is not begun with a word of this one.
    tag = "" if plan.same_text or source.num_sessions is not None else secrets.token_hex(8)
    run = _LoadRun(target, source, plan, stages or [Stage()], on_step, tag)
    with without_collections():
        model, found = uvloop.run(run.measure())
    slo = Slo(plan.slo_ttft, plan.slo_itl, plan.slo_e2e)
    rows = [row_of(kept, slo, number) for number, kept in enumerate(found)]
    doubted = [f"{kept.stage.name}: {doubt}" for kept in found for doubt in run.doubts(kept)]
    facts: dict[str, str | int | float] = {
        "model": model,
        "workload": source.about,
        "axis": "users" if plan.users else "requests per second",
        "slo": slo.words,
    }
    if slo.ttft is not None:
        facts["slo_ms"] = slo.ttft * 1e3
    is_whole = len(found) == len(run.stages) and all(kept.driven.is_whole for kept in found)
    about = [f"{target.url}, model {model}; {source.about}."]
    about += ["", *(f"- {line}" for line in doubted)] if doubted else []
    return Findings(rows=rows, about=about, facts=facts, is_whole=is_whole)


def target_of(plan: Sent, url: str, api_key_env: str | None) -> Target:
    """Return whom to ask. Raises UsageError for a key that cannot be read."""
    headers = {header.name: header.value for header in plan.headers}
    if api_key_env is not None:
        key = os.environ.get(api_key_env, "").strip()
        if not key.isascii() or not key.isprintable() or not key:
            raise click.UsageError(
                f"--api-key-env {api_key_env}: the variable is unset, empty or not "
                "printable ASCII; fix: export it"
            )
        headers["authorization"] = f"Bearer {key}"
    return Target(url, headers, plan.timeout)


def sessions_of(
    source: Source, plan: LoadPlan, stage: Stage, number: int, tag: str
) -> Iterator[Session]:
    """Return the sessions of a load, with their times if it has any; `number` is its place."""
    if stage.users is not None:
        return source.sessions(number, None, tag)
    if source.own_rate is not None:
        return source.sessions(number, stage.rate or source.own_rate * plan.speed, tag)
    assert stage.rate is not None
    seed = plan.seed * 1_000 + number
    times = first_times(poisson(stage.rate, seed), seconds=plan.seconds, count=plan.requests)
    return iter(interleaved(source.sessions(number, None, tag), times, plan.sessions, seed))


@dataclass(slots=True)
class _LoadRun:
    """One load after another. Its event loop writes the rest."""

    target: Target
    source: Source
    plan: LoadPlan
    stages: list[Stage]
    on_step: OnStep
    tag: str
    num_answers: int = 0  # of the load that is under way
    shown: float = 0.0  # when they were shown last, in seconds of the load

    async def measure(self) -> tuple[str, list[MeasuredLoad]]:
        """Return the model's name, and what was measured of each load."""
        plan = self.plan
        model = plan.model or await ask_model(self.target)
        stop = asyncio.Event()
        listen(asyncio.get_running_loop(), stop.set, signal.SIGINT)
        found: list[MeasuredLoad] = []
        for number, stage in enumerate(self.stages):
            driven = await self._drive(number, model, stop)
            try:
                found.append(keep(driven, stage, plan.before, plan.after, plan.seconds))
            except BenchError:
                if not (stop.is_set() and found):  # else it was stopped while it warmed up
                    raise
            if stop.is_set():
                break
        return model, found

    async def _drive(self, number: int, model: str, stop: asyncio.Event) -> Driven:
        plan, stage = self.plan, self.stages[number]
        self.num_answers, self.shown = 0, -_REFRESH_SECONDS

        def on_sample(sample: Sample) -> None:
            self.num_answers += 1
            if sample.ended - self.shown >= _REFRESH_SECONDS:
                self.shown = sample.ended
                about = f"{stage.name} (load {number + 1} of {len(self.stages)})"
                done = self.num_answers if plan.requests else int(self.shown)
                total = plan.requests or int(plan.seconds or 0)
                self.on_step(f"{about}: {self.num_answers:,} answers", done, total)

        return await drive(
            self.target,
            sessions_of(self.source, plan, stage, number, self.tag),
            Pacing(stage.users, plan.seconds, plan.requests),
            model=model,
            fields=STREAMED if plan.stream else {},
            on_sample=on_sample,
            stop=stop,
        )

    def doubts(self, kept: MeasuredLoad) -> Iterator[str]:
        """Yield why figures of a load cannot be trusted, or do not say what they seem to."""
        yield from doubts(kept)
        begun, there = max(s.session for s in kept.driven.samples) + 1, self.source.num_sessions
        if there is not None and begun > there:
            yield (
                f"the file's {there:,} sessions were begun {begun:,} times: what was sent before "
                "may be cached"
            )


async def ask_model(target: Target) -> str:
    """Return the first model that /v1/models names. Raises BenchError."""
    return (await ask_models(target))[0]


async def ask_models(target: Target) -> list[str]:
    """Return the models that /v1/models names, one at least. Raises BenchError."""
    client = Client(target)
    try:
        answer = await client.get("/v1/models")
    finally:
        client.close()
    body = answer.body
    if answer.error is not None:
        raise BenchError(
            f"{target.url}: {answer.error}: {body[:200].decode(errors='replace')}; fix: the "
            "URL of a server that runs"
        )
    cure = "fix: --model NAME"
    if answer.status in (401, 403):
        cure = "fix: --api-key-env NAME, the environment variable that has the key"
    try:
        names = [str(m["id"]) for m in msgspec.json.decode(body)["data"]]
    except (msgspec.MsgspecError, KeyError, TypeError):
        names = []
    if not names:
        raise BenchError(
            f"{target.url}/v1/models: answered {answer.status} and names no model; {cure}"
        )
    return names


def _ms(name: str, head: str = "") -> Column:
    return Column(name, head, three_digits)


def _count(name: str) -> Column:
    return Column(name, form="{:,.0f}")


_PLOT = Plot(TABLE, [], "at", x_label="{axis}")
LOAD = Benchmark(
    "load",
    "Load an OpenAI endpoint and measure it: URL, as in http://127.0.0.1:8000.\n\n"
    "Sessions grow turn by turn. Latency counts from the time at which a request was meant to be "
    "sent, so that a server that stalls is charged with all that it delays.",
    LoadPlan,
    measure_load,
    tables=[
        Table(
            TABLE, "Time to first token, ms, with 95 % intervals; p99 from sending hides waiting",
            ["load"],
            [
                _count("requests"), _ms("TTFT"), _ms("TTFT p50", "p50"),
                _ms("TTFT p90", "p90"), _ms("TTFT p99", "p99"),
                _ms("TTFT sent p99", "from sending"),
            ],
        ),
        Table(
            TABLE, "Time between tokens, and the whole answer, ms", ["load"],
            [
                _ms("ITL"), _ms("ITL p90", "p90"),
                _ms("E2E"), _ms("E2E p90", "p90"),
                _ms("E2E p99", "p99"), _ms("E2E sent p99", "from sending"),
            ],
        ),
        Table(
            TABLE, "Throughput, and prompt tokens from a cache as the engines say", ["load"],
            [
                Column("answers/s", form=three_digits),
                Column("tokens/s", form=three_digits),
                Column("cached", form="{:.1%}"),
            ],
        ),
        Table(
            TABLE, "Goals: {slo}", ["load"],
            [Column("kept", form="{:.1%}"), Column("good answers/s", form=three_digits)],
            where=lambda row: "kept" in row.values,
        ),
        Table(
            TABLE, "What was sent, mean tokens, and the load generator itself", ["load"],
            [
                _count("failed"), _count("prompt"), _count("answer"), _count("held"),
                _ms("late p99"), Column("its CPU", form="{:.0%}"),
            ],
            notes=[
                "held: turns whose session's answer before was not there at their time; late: how "
                "long the generator itself held requests up, ms; CPU: of one core"
            ],
        ),
    ],
    chart=Chart(
        "{model}: {workload}",
        [
            replace(
                _PLOT, y=["TTFT", "TTFT p90"], y_label="time to first token, ms",
                levels={"goal": "slo_ms"},
            ),
            replace(_PLOT, y=["ITL", "ITL p90"], y_label="time between tokens, ms"),
            replace(_PLOT, y=["tokens/s"], y_label="tokens per second"),
            replace(
                _PLOT, y=["cached"], y_label="prompt tokens from a cache, %", factor=100, most=100
            ),
        ],
    ),
    question="how an endpoint performs under a load that you describe",
    takes="as long as its flags say",
    arguments="http://127.0.0.1:8080 --users 8",
    audience="user",
    times="another machine",
)  # fmt: skip
load = LOAD.command()
