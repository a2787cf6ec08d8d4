"""Measures one real engine, idle otherwise, for `fitting`; and beside another that is busy."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from statistics import median

import uvloop

from inferway.bench.conversations import texts
from inferway.bench.loading.client import Target
from inferway.bench.loading.drive import Driven, Pacing, drive
from inferway.bench.loading.samples import Sample
from inferway.bench.loading.workload import Session, Turn
from inferway.bench.processes import BenchError
from inferway.bench.simulate.fitting import First, Tokens

_CHARS = (300, 900, 1_800, 3_600, 5_400)  # of prompts that nobody has seen
_EACH = 5
_FEW_TOKENS, _MANY_TOKENS = 2, 48  # of answers
_BATCHES = (1, 2, 4)
_LONG, _REPEATS, _ENOUGH = 3_600, 8, 1_000  # characters; prompts measured; of the busy one


def measure(url: str, model: str, seed: int = 1) -> tuple[list[First], list[Tokens]]:
    """About 40 requests. Raises BenchError if one of them fails."""
    rng = random.Random(seed)
    _send(url, model, [_ask(rng, 600, _FEW_TOKENS)] * 2, users=1)  # the first ones are slow
    lengths = [chars for chars in _CHARS for _ in range(_EACH)]
    rng.shuffle(lengths)
    alone = _send(url, model, [_ask(rng, chars, _FEW_TOKENS) for chars in lengths], users=1)
    firsts = [
        First(s.cached_tokens or 0, s.prompt_tokens or 0, s.first - s.sent)
        for s in alone
        if s.first is not None and s.sent is not None
    ]
    tokens = []
    for batch in _BATCHES:
        asked = [_ask(rng, _CHARS[0], _MANY_TOKENS) for _ in range(2 * batch)]
        tokens += [
            Tokens(batch, s.itl) for s in _send(url, model, asked, users=batch) if s.itl is not None
        ]
    return firsts, tokens


def beside(url: str, other: str, model: str, seed: int = 2) -> float:
    """How many times as long a prompt takes on one engine while the other computes prompts, too.
    Raises BenchError if a request fails."""
    rng = random.Random(seed)

    def asked(count: int) -> list[Turn]:
        return [_ask(rng, _LONG, _FEW_TOKENS) for _ in range(count)]

    alone = _send(url, model, asked(_REPEATS), users=1)
    busy = uvloop.run(_while_busy(url, other, model, asked(_REPEATS), asked(_ENOUGH)))
    alone += _send(url, model, asked(_REPEATS), users=1)
    return _first_seconds(busy) / _first_seconds(alone)


async def _while_busy(
    url: str, other: str, model: str, turns: Sequence[Turn], others: Sequence[Turn]
) -> list[Sample]:
    stop = asyncio.Event()
    busy = asyncio.create_task(_drive(other, model, others, users=1, stop=stop))
    try:
        return _answered(url, await _drive(url, model, turns, users=1))
    finally:
        stop.set()
        await busy


def _first_seconds(samples: Sequence[Sample]) -> float:
    return median([s.ttft_sent for s in samples if s.ttft_sent is not None])


def _ask(rng: random.Random, chars: int, tokens: int) -> Turn:
    text = " ".join(rng.sample(texts(), len(texts())))
    at = rng.randrange(max(1, len(text) - chars))
    message = {"role": "user", "content": f"{rng.random()} {text[at : at + chars]}"}
    return Turn([message], {"max_tokens": tokens, "temperature": 0, "ignore_eos": True})


def _send(url: str, model: str, turns: Sequence[Turn], users: int) -> list[Sample]:
    return _answered(url, uvloop.run(_drive(url, model, turns, users)))


async def _drive(
    url: str, model: str, turns: Sequence[Turn], users: int, stop: asyncio.Event | None = None
) -> Driven:
    sessions = [Session(number, [turn]) for number, turn in enumerate(turns)]
    return await drive(Target(url, timeout=120.0), sessions, Pacing(users), model=model, stop=stop)


def _answered(url: str, driven: Driven) -> list[Sample]:
    for sample in driven.samples:
        if not sample.ok:
            raise BenchError(f"{url}: {sample.error}: {sample.detail}")
    return driven.samples
