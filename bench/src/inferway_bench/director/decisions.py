"""What a decision costs while chats grow turn by turn: the production code from a request's bytes
to the ranked engines, without engines and sockets.

Times are CPU time of the process, all its threads: what else the machine does is not in them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec

from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import MatchResult, Store
from inferway.model import BlockKey, Candidates, RequestHead, SchedulingResult, Tokenized
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import PromptBody, parse_chat
from inferway.prompts.chat.chat_template import ChatInput
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.scheduling.scheduling import Scheduling
from inferway_bench.chats import Message, Turns
from inferway_bench.flags import data_flag
from inferway_bench.idle_engines import idle_director

STEPS = ("parse", "render", "encode", "match", "schedule", "rest", "whole")
_HEAD = RequestHead("POST", "/v1/chat/completions", "", ())


class DirectorPlan(msgspec.Struct, frozen=True):
    """How much is measured. Lengths are in tokens."""

    chats: int = 12  # that grow turn by turn
    longest: int = 32_000
    turn_chars: int = 1_500  # of a turn, at most
    probes: int = 40  # chats whose next turn is measured beside much and little that was seen
    probe_tokens: int = 4_000
    others: int = 2_000  # chats that were seen before; beside it, a tenth of them
    other_tokens: int = 2_000
    engines: int = 8
    block_size: int = 16
    many_endpoints: int = 1_000  # among which a choice is measured alone
    repeats: int = 400  # of each such choice
    seed: int = 3
    data: Annotated[Path | None, data_flag("chat")] = None

    @property
    def few_others(self) -> int:
        return self.others // 10


class Decision(msgspec.Struct, frozen=True):
    """The CPU time of one decision, by step, and its wall time, in microseconds. `history` is the
    number of tokens that the turn before had, `new` the number of those that came since."""

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
        """Block keys, the table of candidates and the journey itself."""
        return self.whole - self.parse - self.render - self.encode - self.match - self.schedule


class _TimedPrompts(ModelPrompts):
    ns = 0

    def within(self, contexts: object) -> _TimedPrompts:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:
        started = time.process_time_ns()
        tokenized = await super().tokenize(body)
        self.ns = time.process_time_ns() - started
        return tokenized


class _TimedIndex(MemoryIndex):
    ns = 0

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[MatchResult]:
        started = time.process_time_ns()
        found = await super().match_all(prompts)
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


async def probed_chats(
    root: Path, plan: DirectorPlan, probes: Sequence[list[Message]], others: Sequence[list[Message]]
) -> tuple[list[Decision], list[Decision]]:
    """Return the decisions for the next turn of chats, in a gateway that has seen a tenth of
    `others`, and in one that has seen them all. They take turns: what else the machine does meets
    both."""
    with (
        closing(MeasuredDirector(root, plan)) as few,
        closing(MeasuredDirector(root, plan)) as many,
    ):
        decisions: dict[MeasuredDirector, list[Decision]] = {few: [], many: []}
        for number, other in enumerate(others):
            for director in (few, many) if number < plan.few_others else (many,):
                await director.decide(other, 0)
        for number, messages in enumerate(probes):
            for director in (few, many) if number % 2 else (many, few):
                before = await director.decide(messages[:-2], 0)
                decisions[director].append(await director.decide(messages, before.new))
    return decisions[few], decisions[many]


def _growing(turns: Turns, plan: DirectorPlan) -> Iterator[list[Message]]:
    """A chat, turn by turn: each time a user asks, whoever has written the text."""
    messages: list[Message] = []
    while True:
        for role in ("user", "assistant"):
            content = next(turns)["content"][: plan.turn_chars]
            messages = [*messages, {"role": role, "content": content}]
            if role == "user":
                yield messages


def chat_of_length(turns: Turns, num_tokens: int, plan: DirectorPlan) -> list[Message]:
    """Return a chat of about so many tokens: four characters are one."""
    return next(
        messages
        for messages in _growing(turns, plan)
        if len(messages) >= 3 and sum(len(m["content"]) for m in messages) >= 4 * num_tokens
    )
