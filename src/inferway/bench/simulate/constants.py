"""Measures one real engine, idle otherwise, for `fitting`."""

from __future__ import annotations

import random
from collections.abc import Sequence

import uvloop

from inferway.bench.conversations import texts
from inferway.bench.loading.client import Target
from inferway.bench.loading.drive import Pacing, drive
from inferway.bench.loading.samples import Sample
from inferway.bench.loading.workload import Session, Turn
from inferway.bench.processes import BenchError
from inferway.bench.simulate.fitting import First, Tokens

_CHARS = (300, 900, 1_800, 3_600, 5_400)  # of prompts that nobody has seen
_EACH = 5
_FEW_TOKENS, _MANY_TOKENS = 2, 48  # of answers
_BATCHES = (1, 2, 4)


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


def _ask(rng: random.Random, chars: int, tokens: int) -> Turn:
    text = " ".join(rng.sample(texts(), len(texts())))
    at = rng.randrange(max(1, len(text) - chars))
    message = {"role": "user", "content": f"{rng.random()} {text[at : at + chars]}"}
    return Turn([message], {"max_tokens": tokens, "temperature": 0, "ignore_eos": True})


def _send(url: str, model: str, turns: Sequence[Turn], users: int) -> list[Sample]:
    sessions = [Session(number, [turn]) for number, turn in enumerate(turns)]
    driven = uvloop.run(drive(Target(url, timeout=120.0), sessions, Pacing(users), model=model))
    for sample in driven.samples:
        if not sample.ok:
            raise BenchError(f"{url}: {sample.error}: {sample.detail}")
    return driven.samples
