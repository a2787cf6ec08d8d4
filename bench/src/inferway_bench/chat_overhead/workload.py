"""Conversations -> requests with their times: the experiment of seed 000, paired. Pure.

Each conversation goes out twice, as a chat and as a completion with the very same prompt tokens,
next to each other in time and in an order drawn for each pair. There are two kinds of pairs, with
conversations of their own: in one the completion brings the rendered text, as in the seed, in the
other the token ids, so that nothing is left to do for it. Arrivals are a Poisson process of the
stage's rate, and nobody waits for an answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Kind = Literal["text", "ids"]
Arm = Literal["chat", "completion"]

KINDS: tuple[Kind, ...] = ("text", "ids")
ARMS: tuple[Arm, ...] = ("chat", "completion")

PATHS: dict[Arm, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation in its three forms, and how many tokens are to be answered."""

    messages: Sequence[dict[str, str]]
    text: str
    token_ids: Sequence[int]
    max_tokens: int


class Planned(msgspec.Struct, frozen=True):
    """One request: which pair's which arm, when (seconds after the stage's start), what."""

    pair: int
    kind: Kind
    arm: Arm
    at: float
    body: str

    @property
    def path(self) -> str:
        return PATHS[self.arm]


def stage(
    rate: float, seconds: float, prompts: Iterator[Prompt], model: str, salt: str, seed: int
) -> list[Planned]:
    """Requests at `rate` a second for about `seconds`; at least one pair of each kind."""
    rng = random.Random(seed)
    num_pairs = max(1, round(rate * seconds / 4)) * 2
    planned, at = [], 0.0
    for pair in range(num_pairs):
        kind, prompt = KINDS[pair % 2], next(prompts)
        for arm in rng.sample(ARMS, 2):
            at += rng.expovariate(rate)
            body = msgspec.json.encode(make_body(prompt, kind, arm, model, salt)).decode()
            planned.append(Planned(pair, kind, arm, round(at, 6), body))
    return planned


def make_body(prompt: Prompt, kind: Kind, arm: Arm, model: str, salt: str) -> dict[str, Any]:
    """The salt keeps the arms apart in every prefix cache: neither profits from the other."""
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
    given = prompt.text if kind == "text" else prompt.token_ids
    return {**body, "prompt": given, "add_special_tokens": False}
