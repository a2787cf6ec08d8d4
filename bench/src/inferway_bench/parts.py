"""The steps of our request path, each timed alone in plain Python on the benchmark's own bodies.

Wall time of one thread, median over many different bodies; what connects the steps (event loop,
HTTP, scheduling, logging) is in the gateway's own figure and not in these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from inferway.blocks.keys import BlockHasher
from inferway.index.memory import MemoryIndex
from inferway.index.protocol import Store
from inferway.model import TokenIds
from inferway.openai_api.requests import parse_chat
from inferway.prompts.chat_template import ChatInput, Message
from inferway_bench.conversations import BodyTemplate
from inferway_bench.engine_prompts import EnginePrompts
from inferway_bench.spread import Quartiles, quartiles

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Part(msgspec.Struct, frozen=True):
    """One step."""

    name: str
    median_us: float
    note: str
    quartiles_us: tuple[float, float] | None = None  # not kept before 2026-11-21 22:00

    @property
    def shown(self) -> str:
        if self.quartiles_us is None:
            return f"{self.median_us:.1f}"
        low, high = self.quartiles_us
        return Quartiles(low, self.median_us, high).shown("{:.1f}")


def measure_parts(
    root: Path, templates: Sequence[BodyTemplate], block_size: int, repeats: int
) -> list[Part]:
    """Parse, render, tokenize, keys and match for `repeats` bodies, no two of them equal."""
    bodies = [templates[i % len(templates)].body(10**8 + i) for i in range(repeats)]
    prompts = EnginePrompts(str(root))
    try:
        return _measure(prompts, bodies, block_size)
    finally:
        prompts.close()


def _measure(prompts: EnginePrompts, bodies: list[bytes], block_size: int) -> list[Part]:
    tokenizer = prompts.model.tokenizer
    hasher = BlockHasher(block_size)
    special_tokens = tokenizer.special_tokens

    def render(messages: Sequence[Message]) -> str:
        return prompts.model.template().render(
            ChatInput(messages=messages, variables=special_tokens)
        )

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
        _part("parse", parse, f"{round(median(map(len, bodies))):,} bytes of JSON"),
        _part("render", template, f"{round(median(map(len, conversations)))} messages"),
        _part("tokenize", tokenize, f"{tokens:,} tokens, all turns but the last seen before"),
        _part("tokenize, all turns new", cold, "instead of the line above; the words are not new"),
        _part("keys", keys, f"{blocks} blocks of {block_size}"),
        _part("match", match, f"{blocks - 8} of {blocks} blocks held by one engine of two"),
    ]


def _part(name: str, us: Sequence[float], note: str) -> Part:
    found = quartiles(us)
    return Part(name, found.median, note, (found.low, found.high))


def _timed(step: Callable[[_In], _Out], inputs: Sequence[_In]) -> tuple[list[float], list[_Out]]:
    """Microseconds of `step`, and what it returned."""
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
