"""Conversations -> pairs of requests with their times, for `inferway bench chat-overhead`.

Each conversation goes out twice, as a chat and as a completion with the very same prompt tokens,
next to each other in time and in an order drawn for each pair. There are two kinds of pairs: in one
the completion brings the rendered text, as in the seed, in the other the token ids, so that nothing
is left to do for it. Arrivals are a Poisson process of the rate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderChatRequest
from inferway.prompts.renderer import Renderer
from inferway_bench.chats import Turns, chat_of, sizes
from inferway_bench.conversations import SHOP_RULES
from inferway_bench.processes import BenchError

Range = tuple[int, int]  # least and most
Kind = Literal["its text", "its token ids"]  # what the completion brings
Arm = Literal["chat", "completion"]
KINDS: tuple[Kind, ...] = ("its text", "its token ids")
ARMS: tuple[Arm, ...] = ("chat", "completion")

_LEAST_CHAT_TOKENS = 20


class Prompt(NamedTuple):
    """One conversation in its three forms, and how many tokens are to be answered."""

    messages: Sequence[dict[str, str]]
    text: str
    token_ids: Sequence[int]
    max_tokens: int


BodyOf = Callable[[Prompt, Kind, Arm], dict[str, Any]]


class Request(NamedTuple):
    """One arm of a pair, and the second of the stage at which it is sent."""

    pair: int
    kind: Kind
    arm: Arm
    at: float
    body: dict[str, Any]


@contextmanager
def prompts_of(
    model: str, turns: Turns, prompt_tokens: Range, output_tokens: Range, seed: int
) -> Iterator[Iterator[Prompt]]:
    """Yield an endless stream of prompts: one system prompt for all, then a conversation of its
    own. Raises BenchError when the prompts are too short for the system prompt."""
    size = sizes(model)
    system_tokens = size.count(SHOP_RULES) + size.around_turn
    low, high = prompt_tokens
    if low < system_tokens + _LEAST_CHAT_TOKENS:
        raise BenchError(
            f"--prompt-tokens: at least {system_tokens + _LEAST_CHAT_TOKENS}, of which "
            f"{system_tokens} are the system prompt that all share; got {low}"
        )
    renderer = Renderer(num_threads=1)
    key = renderer.get_or_create_tokenizer_key(GetOrCreateTokenizerKeyRequest(model))
    rng = random.Random(seed)

    def stream() -> Iterator[Prompt]:
        number = 0
        while True:
            left = rng.randint(low, high) - system_tokens
            chat = chat_of(turns, left, size.count, size.around_turn)
            number += 1
            # No two prompts share a block behind the system prompt, even where text comes again.
            first = {**chat[0], "content": f"({number}) {chat[0]['content']}"}
            messages = [{"role": "system", "content": SHOP_RULES}, first, *chat[1:]]
            rendered = renderer.render_chat(RenderChatRequest(key, messages))
            max_tokens = rng.randint(*output_tokens)
            if low <= len(rendered.input_ids) <= high:
                yield Prompt(messages, rendered.text, rendered.input_ids.tolist(), max_tokens)

    try:
        yield stream()
    finally:
        renderer.close()


def planned(
    rate: float, seconds: float, prompts: Iterator[Prompt], body_of: BodyOf, seed: int
) -> list[Request]:
    """Return requests at `rate` a second for about `seconds`; at least one pair of each kind."""
    rng, found, at = random.Random(seed), [], 0.0
    for pair in range(max(1, round(rate * seconds / 4)) * 2):
        kind, prompt = KINDS[pair % 2], next(prompts)
        for arm in rng.sample(ARMS, 2):
            at += rng.expovariate(rate)
            found.append(Request(pair, kind, arm, round(at, 6), body_of(prompt, kind, arm)))
    return found


def make_body(model: str, salt: str, prompt: Prompt, kind: Kind, arm: Arm) -> dict[str, Any]:
    """Return the body of one arm. The salt keeps the arms apart in every prefix cache, so that
    neither profits from the other."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": f"{salt}-{arm}",
    }
    if arm == "chat":
        return {**body, "messages": prompt.messages}
    given = prompt.text if kind == "its text" else prompt.token_ids
    return {**body, "prompt": given, "add_special_tokens": False}
