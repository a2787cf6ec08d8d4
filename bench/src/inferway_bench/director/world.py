"""A director with all its real parts but the engines, and a stopwatch at its seams.

Times are CPU time of the process, all its threads: what else the machine does is not in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from inferway.director import Director
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Found, Store
from inferway.index.speculative import SpeculativeOverlay
from inferway.model import (
    BlockKey,
    Candidates,
    Choice,
    RequestHead,
    Tokenized,
)
from inferway.openai_api.llm_request import LLMRequest
from inferway.openai_api.requests import ChatRequest, PromptBody, parse_chat
from inferway.prompts.chat_template import ChatInput
from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest
from inferway.prompts.renderer import Renderer
from inferway.prompts.served import ServedModel
from inferway.scheduling.load import load_scheduling
from inferway.scheduling.scheduling import Scheduling
from inferway.steps.match import Matcher
from inferway_bench.chats import Message
from inferway_bench.director.engines import IdleEngines
from inferway_bench.director.plan import DirectorPlan

MODEL = "smollm2"
_HEAD = RequestHead("POST", "/v1/chat/completions", "", ())


class Point(msgspec.Struct, frozen=True):
    """One decision. Tokens, and microseconds of CPU time; `wall` of wall time."""

    chat: int
    history: int  # of its prompt, what the turn before had
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
        """Block keys, the table of candidates, the journey itself."""
        steps = (self.parse, self.render, self.encode, self.match, self.schedule)
        return self.whole - sum(steps)


class _TimedPrompts:
    """A prompt source: the model's own, with a stopwatch."""

    def __init__(self, local: ModelPrompts) -> None:
        self.local = local
        self.ns = 0

    def within(self, contexts: object) -> _TimedPrompts:  # noqa: ARG002
        return self

    async def tokenize(self, body: PromptBody) -> Tokenized:
        started = time.process_time_ns()
        tokenized = await self.local.tokenize(body)
        self.ns = time.process_time_ns() - started
        return tokenized

    def rendered_text(self, body: ChatRequest) -> str | None:
        return self.local.rendered_text(body)


class _TimedIndex(MemoryIndex):
    ns = 0

    async def match_all(self, prompts: Sequence[Sequence[BlockKey]]) -> list[Found]:
        started = time.process_time_ns()
        found = await super().match_all(prompts)
        self.ns = time.process_time_ns() - started
        return found


class _TimedScheduling:
    """As producer and chooser: all producers, one after the other, then the chooser."""

    def __init__(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._produced = 0
        self.ns = 0

    def produce(self, request: LLMRequest, candidates: Candidates) -> None:
        started = time.process_time_ns()
        for producer in self._scheduling.producers:
            producer.produce(request, candidates)
        self._produced = time.process_time_ns() - started

    def choose(self, request: LLMRequest, candidates: Candidates) -> Choice:
        started = time.process_time_ns()
        choice = self._scheduling.chooser.choose(request, candidates)
        self.ns = self._produced + time.process_time_ns() - started
        return choice


class World:
    """One gateway's memory: what it has tokenized and what its engines hold. Close it."""

    def __init__(self, root: Path, plan: DirectorPlan) -> None:
        self._renderer = Renderer()
        key = self._renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(str(root)))
        self._template = self._renderer.loaded(key).template()
        self._variables = self._renderer.loaded(key).tokenizer.special_tokens
        self._prompts = _TimedPrompts(ModelPrompts(self._renderer, key))
        self._index = _TimedIndex()
        scheduling = load_scheduling(None)
        self._scheduling = _TimedScheduling(scheduling)
        model = ServedModel(MODEL, self._prompts, (plan.block_size,))
        self._director = Director(
            IdleEngines(model, plan.engines, plan.block_size),
            Matcher(self._index, SpeculativeOverlay()),
            replace(scheduling, chooser=self._scheduling, producers=[self._scheduling]),
            time.monotonic,
        )

    async def decide(self, messages: Sequence[Message], chat: int, history: int) -> Point:
        """Decides where a chat goes; that engine then holds it."""
        body = msgspec.json.encode({"model": MODEL, "messages": messages})
        parse = _microseconds(lambda: parse_chat(body))
        wanted = ChatInput(messages=messages, variables=self._variables)
        render = _microseconds(lambda: self._template.render(wanted))
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
        return Point(
            chat=chat,
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
        self._renderer.close()


def _microseconds(step: Callable[[], object]) -> float:
    started = time.process_time_ns()
    step()
    return (time.process_time_ns() - started) / 1e3
