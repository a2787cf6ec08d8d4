"""Where sessions come from: generated chats, files of conversations or bodies, traces.

Each stage of a run gets sessions of its own, so that no rate profits from what the rate before has
left in the caches.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import click

from inferway_bench.loading.datasets import read_dataset
from inferway_bench.loading.generated import ChatSpec, generated_chats
from inferway_bench.loading.plan import LoadPlan
from inferway_bench.loading.traced import shortened, traced
from inferway_bench.loading.workload import Session
from inferway_bench.policies.requests import Workload
from inferway_bench.policies.traces import read_trace
from inferway_bench.processes import BenchError

_STAGE_SEED = 1_000_003  # apart from each other's sessions


@dataclass(frozen=True, slots=True)
class Source:
    """`sessions` of a stage, of a trace at a rate of requests a second or (None) at its own; all
    others have no times and no end."""

    about: str
    sessions: Callable[[int, float | None], Iterator[Session]]
    own_rate: float | None = None  # of a trace: requests a second
    num_sessions: int | None = None  # of a file: those beyond are the same again


def source_of(plan: LoadPlan) -> Source:
    """Return what the plan sends: of a file, its first line shows which it is. Raises BenchError,
    and UsageError for flags that are for another kind."""
    # With another tag, texts have other words, so that no cache of an earlier run knows them.
    tag, seed = "" if plan.same_text else secrets.token_hex(8), plan.seed
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
            spec.about, lambda stage, _: generated_chats(spec, seed * _STAGE_SEED + stage, tag)
        )
    try:
        trace = read_trace(plan.dataset, seed)
    except (BenchError, OSError):  # what it is then is said by who reads it next
        return _of_conversations(plan)
    return _of_trace(trace, plan, tag)


def _of_conversations(plan: LoadPlan) -> Source:
    assert plan.dataset is not None
    read = read_dataset(plan.dataset)
    for name, value in (
        ("--max-prompt-tokens", plan.max_prompt_tokens), ("--trace-times", plan.trace_times),
    ):  # fmt: skip
        if value:
            raise click.UsageError(
                f"{name}: {plan.dataset} is not a trace; fix: leave it out, or --rates or --users"
            )
    dataset = read.shaped(plan.seed, plan.output_tokens, plan.answers != "server", plan.ignore_eos)
    num = len(dataset.sessions)
    return Source(
        dataset.about, lambda stage, _: dataset.endless(plan.seed, stage), num_sessions=num
    )


def _of_trace(trace: Workload, plan: LoadPlan, tag: str) -> Source:
    if plan.max_prompt_tokens is not None:
        trace = shortened(trace, plan.max_prompt_tokens)

    def sessions(stage: int, rate: float | None) -> Iterator[Session]:
        at = trace.starts(rate or trace.own_rate, plan.seed)
        words = f"{plan.seed * _STAGE_SEED + stage} {tag}"
        return traced(trace, at, words, plan.ignore_eos)

    about = f"{trace.about}; generated text of the same lengths and shared prefixes"
    return Source(about, sessions, trace.own_rate)
