"""The steps of our request path, each timed alone in plain Python on the benchmark's own bodies.

Wall time of one thread over many different bodies; what connects the steps (event loop, HTTP,
scheduling, logging) is in the gateway's own figure and not in these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from inferway.kv.blocks.keys import BlockHasher
from inferway.kv.index.memory import MemoryIndex
from inferway.kv.index.protocol import Store
from inferway.model import TokenIds
from inferway.openai_api.requests import parse_chat
from inferway.prompts.chat.chat_template import ChatInput, Message
from inferway_bench.conversations import BodyTemplate
from inferway_bench.engine_prompts import EnginePrompts

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Step(NamedTuple):
    """A step, what it was given, and its microseconds with each body."""

    name: str
    note: str
    us: list[float]


def time_steps(
    model: str, templates: Sequence[BodyTemplate], block_size: int, repeats: int
) -> list[Step]:
    """Parse, render, tokenize, keys and match for `repeats` bodies, no two of them equal."""
    bodies = [templates[i % len(templates)].body(10**8 + i) for i in range(repeats)]
    prompts = EnginePrompts(model)
    try:
        return _time(prompts, bodies, block_size)
    finally:
        prompts.close()


def _time(prompts: EnginePrompts, bodies: list[bytes], block_size: int) -> list[Step]:
    tokenizer = prompts.model.tokenizer
    hasher = BlockHasher(block_size)

    def render(messages: Sequence[Message]) -> str:
        variables = tokenizer.special_tokens
        return prompts.model.template().render(ChatInput(messages=messages, variables=variables))

    def encode(text: str) -> TokenIds:
        return tokenizer.encode(text, add_special_tokens=False)

    parse, parsed = _timed(parse_chat, bodies)
    conversations = [request.messages for request in parsed]
    template, texts = _timed(render, conversations)
    unseen = [render(_never_seen(messages, i)) for i, messages in enumerate(conversations)]
    cold, _ = _timed(encode, unseen)
    for text in texts:
        encode(text)
    tails = [render(_new_last_turn(messages, i)) for i, messages in enumerate(conversations)]
    tokenize, token_ids = _timed(encode, tails)
    keys, all_keys = _timed(hasher.keys, token_ids)
    index = MemoryIndex()
    index.apply([Store(holder=i % 2, keys=k[:-8]) for i, k in enumerate(all_keys)])
    match, _ = _timed(index.match_now, all_keys)
    tokens, blocks = round(median(map(len, token_ids))), round(median(map(len, all_keys)))
    return [
        Step("parse", f"{round(median(map(len, bodies))):,} bytes of JSON", parse),
        Step("render", f"{round(median(map(len, conversations)))} messages", template),
        Step("tokenize", f"{tokens:,} tokens, all turns but the last seen before", tokenize),
        Step("tokenize, all turns new", "instead of the line above; the words are not new", cold),
        Step("keys", f"{blocks} blocks of {block_size}", keys),
        Step("match", f"{blocks - 8} of {blocks} blocks held by one engine of two", match),
    ]


def _timed(step: Callable[[_In], _Out], inputs: Sequence[_In]) -> tuple[list[float], list[_Out]]:
    """The microseconds of `step` with each input, and what it returned."""
    results, nanoseconds = [], []
    for value in inputs:
        start = time.perf_counter_ns()
        result = step(value)
        nanoseconds.append(time.perf_counter_ns() - start)
        results.append(result)
    return [ns / 1000 for ns in nanoseconds], results


def _never_seen(messages: Sequence[Message], number: int) -> list[Message]:
    return [{**m, "content": f"{number} {m['content']}"} for m in messages]


def _new_last_turn(messages: Sequence[Message], number: int) -> list[Message]:
    return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']} {number}"}]
