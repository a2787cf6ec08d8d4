"""`inferway bench director`: what a decision costs while chats grow turn by turn: the production
code from a request's bytes to the ranked engines, without engines and sockets.

Times are CPU time of the process, all its threads: what else the machine does is not in them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import numpy as np
import uvloop

from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import MatchResult, Store
from inferway.model import BlockKey, Candidates, Places, RequestHead, SchedulingResult, Tokenized
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import PromptBody, parse_chat
from inferway.prompts.chat.chat_template import ChatInput
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.scheduling.scheduling import Scheduling
from inferway_bench.chats import Message, Turns, default_data_dir, load_conversations
from inferway_bench.flags import data_flag
from inferway_bench.harness import Benchmark
from inferway_bench.idle_engines import idle_director
from inferway_bench.plotting import Chart, Plot
from inferway_bench.progress import OnStep
from inferway_bench.report import Column, Table
from inferway_bench.rows import Findings, Goal, Row, Run, Value, goal
from inferway_bench.spread import Interval, median_interval, quartiles
from inferway_sim.prepare import prepare_smollm2

STEPS = ("parse", "render", "encode", "match", "schedule", "rest", "whole")
_HEAD = RequestHead("POST", "/v1/chat/completions", "", ())
_BORDERS = (0, 1, 1_000, 2_000, 4_000, 8_000, 16_000, 1_000_000)  # tokens of history
_DRAWS = 2000  # of the bootstrap


class DirectorPlan(msgspec.Struct, frozen=True):
    """How much is measured. Lengths are in tokens."""

    chats: int = 12  # that grow turn by turn
    longest: int = 32_000
    turn_chars: int = 1_500  # of a turn, at most
    engines: int = 8
    block_size: int = 16
    seed: int = 3
    data: Annotated[Path | None, data_flag("chat")] = None


class Decision(msgspec.Struct, frozen=True):
    """The CPU time of one decision, by step, and its wall time, in microseconds. `history` is the
    number of tokens that the turn before had, `new` the number of those that came since. `rest` is
    block keys, the table of candidates and the journey itself."""

    history: int
    new: int
    wall: float
    whole: float
    parse: float
    render: float
    encode: float
    match: float
    schedule: float

    @property
    def rest(self) -> float:
        return self.whole - self.parse - self.render - self.encode - self.match - self.schedule


# a director with stopwatches


class _TimedPrompts(ModelPrompts):
    ns = 0

    def within(self, contexts: object, rules: object) -> _TimedPrompts:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:
        started = time.process_time_ns()
        tokenized = await super().tokenize(body)
        self.ns = time.process_time_ns() - started
        return tokenized


class _TimedIndex(MemoryIndex):
    ns = 0

    async def match_all(
        self,
        prompts: Sequence[Sequence[BlockKey]],
        places: Sequence[Places | None] | None = None,
    ) -> list[MatchResult]:
        started = time.process_time_ns()
        found = await super().match_all(prompts, places)
        self.ns = time.process_time_ns() - started
        return found


class _TimedScheduling:
    """All producers, one after the other, and then the chooser, with a stopwatch around both."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._produced = 0
        self.ns = 0

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        started = time.process_time_ns()
        for producer in self._scheduling.producers:
            producer.produce(request, candidates)
        self._produced = time.process_time_ns() - started

    def choose(self, request: LLMRequest, candidates: Candidates) -> SchedulingResult:
        started = time.process_time_ns()
        choice = self._scheduling.chooser.choose(request, candidates)
        self.ns = self._produced + time.process_time_ns() - started
        return choice


class MeasuredDirector:
    """A director with the memory of one gateway: what it has tokenized, and what its engines hold.
    Must be closed."""

    def __init__(self, root: Path, plan: DirectorPlan) -> None:
        self._renderer = Renderer()
        key = self._renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(root)))
        self._template = self._renderer.loaded(key).template()
        self._variables = self._renderer.loaded(key).tokenizer.special_tokens
        self._prompts = _TimedPrompts(self._renderer, key)
        self._index = _TimedIndex()
        director = idle_director(self._index, self._prompts, plan.engines, plan.block_size)
        timed = self._scheduling = _TimedScheduling(director.scheduling)
        scheduling = replace(director.scheduling, chooser=timed, producers=[timed])
        self._director = replace(director, scheduling=scheduling)
        # The gateway does this when it has started: what is there by now is no garbage.
        gc.collect()
        gc.freeze()

    async def decide(self, messages: Sequence[Message], history: int) -> Decision:
        """Decide where a chat goes; the engine that is chosen then holds it."""
        body = msgspec.json.encode({"model": "smollm2", "messages": messages})
        parse = _cpu_us(lambda: parse_chat(body))
        wanted = ChatInput(messages=messages, variables=self._variables)
        render = _cpu_us(lambda: self._template.render(wanted))
        wall, started = time.perf_counter_ns(), time.process_time_ns()
        journey = self._director.open(_HEAD, body)
        decision = await journey.decide()
        whole = (time.process_time_ns() - started) / 1e3
        wall = time.perf_counter_ns() - wall
        journey.close("ok")
        assert journey.routed is not None
        (prompt,) = next(iter(journey.routed.request.prompts.values()))
        holder = decision.targets[0].endpoint.holder
        self._index.apply([Store(holder=holder, keys=prompt.block_keys)])
        return Decision(
            history=history,
            new=len(prompt.token_ids) - history,
            wall=wall / 1e3,
            whole=whole,
            parse=parse,
            render=render,
            encode=self._prompts.ns / 1e3 - render,
            match=self._index.ns / 1e3,
            schedule=self._scheduling.ns / 1e3,
        )

    def close(self) -> None:
        """End the renderer's threads."""
        self._renderer.close()
        gc.unfreeze()


def _cpu_us(step: Callable[[], object]) -> float:
    started = time.process_time_ns()
    step()
    return (time.process_time_ns() - started) / 1e3


# chats that are decided


def measure(plan: DirectorPlan, on_step: OnStep) -> Findings:
    """Measure with the chats of the plan. Raises BenchError, with the cure, without them."""
    data = plan.data or default_data_dir()
    conversations = load_conversations(data / "chat")
    root = prepare_smollm2()
    turns = Turns(conversations, plan.seed)
    on_step("growing chats")
    grown = uvloop.run(grown_chats(root, plan, turns))
    a_message = sum(d.new for d in grown) / sum(2 if d.history else 1 for d in grown)
    return Findings(
        rows=[*length_rows(grown), *growth_rows(grown)],
        about=[
            f"{len(grown):,} decisions, {a_message:.0f} tokens a message, {plan.engines} engines, "
            f"blocks of {plan.block_size}, SmolLM2's tokenizer and template; "
            f"{len(conversations):,} real conversations of {data.name}/chat, in an order drawn "
            f"once, joined; turns of {plan.turn_chars:,} characters at most."
        ],
        notes={"growth": [_wall_note(grown)]},
    )


async def grown_chats(root: Path, plan: DirectorPlan, turns: Turns) -> list[Decision]:
    """Return the decisions for chats from their first turn to the longest, all in the memory of one
    gateway."""
    with closing(MeasuredDirector(root, plan)) as director:
        grown = [await _grown(director, plan, turns) for _ in range(plan.chats)]
    return [decision for chat in grown for decision in chat]


async def _grown(director: MeasuredDirector, plan: DirectorPlan, turns: Turns) -> list[Decision]:
    history, decisions = 0, []
    for messages in _growing(turns, plan):
        decisions.append(await director.decide(messages, history))
        history += decisions[-1].new
        if history >= plan.longest:
            break
    return decisions


def _growing(turns: Turns, plan: DirectorPlan) -> Iterator[list[Message]]:
    """A chat, turn by turn: each time a user asks, whoever has written the text."""
    messages: list[Message] = []
    while True:
        for role in ("user", "assistant"):
            content = next(turns)["content"][: plan.turn_chars]
            messages = [*messages, {"role": role, "content": content}]
            if role == "user":
                yield messages


# what is found


def length_rows(grown: Sequence[Decision]) -> Iterator[Row]:
    """Yield the decisions by tokens of history: medians with their 95 % intervals."""
    for low, high in pairwise(_BORDERS):
        some = [d for d in grown if low <= d.history < high]
        if some:
            history = f"{low:,} and more" if high == _BORDERS[-1] else f"{low:,} to {high - 1:,}"
            whole = quartiles(_times(some, "whole"))
            values: dict[str, Value] = {
                "turns": len(some),
                "prompt": median(d.history + d.new for d in some),
                **{step: median_interval(_times(some, step)) for step in STEPS},
                "quartiles": f"{whole.low:,.0f} to {whole.high:,.0f}",
            }
            yield Row("lengths", {"tokens of history": history if high > 1 else "none"}, values)


def growth_rows(grown: Sequence[Decision]) -> Iterator[Row]:
    """Yield how each step grows with the history."""
    after = [decision for decision in grown if decision.history]
    for step in STEPS:
        yield Row("growth", {"step": step}, {"growth": slope(after, step)})


def _wall_note(grown: Sequence[Decision]) -> str:
    long = [d.wall / 1e3 for d in grown if d.history >= 4_000]
    found = quartiles(long or [d.wall / 1e3 for d in grown])
    return (
        "a decision for a chat with 4,000 tokens of history or more takes "
        f"{found.value:.2f} ms of wall time (quartiles {found.low:.2f} to {found.high:.2f}); seed "
        "001 measured about 10 ms more end to end for a chat than for a completion"
    )


def slope(decisions: Sequence[Decision], step: str) -> Interval:
    """Return the nanoseconds for each token of history, by least squares with the new tokens beside
    it; the interval is a bootstrap over the decisions."""
    rows = np.array([[1.0, d.history, d.new] for d in decisions])
    times = 1e3 * np.array(_times(decisions, step))
    every = np.arange(len(decisions))
    drawn = np.random.default_rng(0).integers(len(every), size=(_DRAWS, len(every)))
    value, *slopes = (
        float(np.linalg.lstsq(rows[some], times[some], rcond=None)[0][1])
        for some in (every, *drawn)
    )
    low, high = np.percentile(slopes, (2.5, 97.5))
    return Interval(value, float(low), float(high))


def _times(decisions: Sequence[Decision], step: str) -> list[float]:
    return [getattr(decision, step) for decision in decisions]


def goals(run: Run) -> list[Goal]:
    """Return what is required of a decision, judged."""
    what = "a decision, ns for each token of history"
    rows = run.select("growth", step="whole")
    return [goal(what, row.interval("growth"), most=25) for row in rows]


TABLES = [
    Table(
        "lengths",
        "CPU time of a decision in µs: median over the turns, with quartiles for the whole",
        ["tokens of history"],
        [
            Column("turns", form="{:,.0f}"),
            *(Column(step, shown="value", better="lower", unit="µs") for step in STEPS),
            Column("quartiles", "quartiles of the whole"),
        ],
    ),
    Table(
        "growth", "CPU time by the chat's own history", ["step"],
        [Column("growth", "ns for each token of history (95 %)", "{:.2f}")],
    ),
]  # fmt: skip
DIRECTOR = Benchmark(
    "director",
    "Measure what a decision costs while chats grow turn by turn: the CPU time of each step.",
    DirectorPlan, measure, TABLES,
    Chart(
        "A decision for a chat that grows turn by turn",
        [Plot(
            "lengths", STEPS, "prompt",
            x_label="tokens of the prompt", y_label="CPU of a decision, µs, median",
            styles={"whole": {"color": "black", "linewidth": 2.0}},
        )],
    ),
    quick={"chats": 2, "longest": 8_000}, goals=goals,
    question="how much CPU time a routing decision takes, by length of the chat",
    takes="half a minute",
)  # fmt: skip
director = DIRECTOR.command()
