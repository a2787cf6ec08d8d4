"""Measures a real engine for `fitting`, with nobody else there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, median

import uvloop

from inferway_bench.conversations import texts
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive
from inferway_bench.loading.samples import Sample
from inferway_bench.loading.workload import Session, Turn
from inferway_bench.processes import BenchError
from inferway_bench.simulate.fitting import First, Measured, Tokens

_CHARS = (300, 900, 1_800, 3_600, 5_400)  # of prompts that nobody has seen
_EACH = 5
_FEW_TOKENS, _MANY_TOKENS = 2, 48  # of answers
_BATCHES = (1, 2, 4)
_CONTEXTS = (300, 3_600)  # characters of the prompts whose answers' tokens are measured


def measure(url: str, model: str, seed: int = 1) -> Measured:
    """About 50 requests. Raises BenchError if one of them fails."""
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
    tokens = [_tokens(url, model, rng, chars, batch) for chars in _CONTEXTS for batch in _BATCHES]
    return Measured(firsts, tokens)


def _tokens(url: str, model: str, rng: random.Random, chars: int, batch: int) -> Tokens:
    """Of answers to prompts of so many characters, `batch` of them at once."""
    asked = [_ask(rng, chars, _MANY_TOKENS) for _ in range(2 * batch)]
    samples = _send(url, model, asked, users=batch)
    context = fmean((s.prompt_tokens or 0) + _MANY_TOKENS / 2 for s in samples)
    # while all of the batch are written, as most of the time: not while one's prompt is computed
    seconds = median([gap for sample in samples for gap in sample.gaps])
    return Tokens(batch, round(context), seconds)


def _ask(rng: random.Random, chars: int, tokens: int) -> Turn:
    text = " ".join(rng.sample(texts(), len(texts())))
    at = rng.randrange(max(1, len(text) - chars))
    message = {"role": "user", "content": f"{rng.random()} {text[at : at + chars]}"}
    return Turn([message], {"max_tokens": tokens, "temperature": 0, "ignore_eos": True})


def _send(url: str, model: str, turns: Sequence[Turn], users: int) -> list[Sample]:
    sessions = [Session(number, [turn]) for number, turn in enumerate(turns)]
    samples = uvloop.run(
        drive(Target(url, timeout=120.0), sessions, Pacing(users), model=model)
    ).samples
    for sample in samples:
        if not sample.ok:
            raise BenchError(f"{url}: {sample.error}: {sample.detail}")
    return samples
