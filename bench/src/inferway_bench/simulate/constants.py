"""What is measured with nobody else there: a real engine, for `fitting`, and which engine a router
gives which session."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean, median

import msgspec
import uvloop

from inferway_bench.conversations import texts
from inferway_bench.loading.client import Target
from inferway_bench.loading.drive import Pacing, drive
from inferway_bench.loading.samples import Sample
from inferway_bench.loading.workload import Session, Turn
from inferway_bench.peers.fleets import MODEL, Fleet
from inferway_bench.processes import BenchError, get, request, wait_until
from inferway_bench.routers import read_metrics, total
from inferway_bench.simulate.fitting import First, Measured, Tokens

_CHARS = (300, 900, 1_800, 3_600, 5_400)  # of prompts that nobody has seen
_EACH = 5
_FEW_TOKENS, _MANY_TOKENS = 2, 48  # of answers
_BATCHES = (1, 2, 4)
_COUNTED = "vllm:prompt_tokens_total"
_CONTEXTS = (300, 3_600)  # characters of the prompts whose answers' tokens are measured


def measure_engine(url: str, model: str, seed: int = 1) -> Measured:
    """Send about 50 requests to an engine. Return what they took. Raises BenchError if one of them
    fails."""
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
    """The tokens of answers to prompts of `chars` characters, `batch` answers at once."""
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


def division(url: str, fleet: Fleet, sessions: Sequence[Session]) -> dict[int, int]:
    """Return the place in the fleet of the engine that has each session, by the session's number.
    A router hashes the session's name and the engines' addresses, whose ports differ from run to
    run, so one short request of each session is sent to the router at `url`, with nobody else
    there. Raises BenchError when no engine counts one of them."""
    found = {}
    for session in sessions:
        before = _counted(fleet)
        body = {**session.turns[0].fields, "model": MODEL, "max_tokens": 1}
        body["messages"] = [{"role": "user", "content": "Who are you?"}]
        request(f"{url}/v1/chat/completions", msgspec.json.encode(body), seconds=60)
        found[session.number] = _who_counted(fleet, before)
    return found


def _who_counted(fleet: Fleet, before: Sequence[float]) -> int:
    """The engine whose count has grown, which it does a moment after the answer."""

    def grown() -> list[int]:
        counts = zip(before, _counted(fleet), strict=True)
        return [row for row, (then, now) in enumerate(counts) if now > then]

    wait_until(lambda: bool(grown()), f"an engine to count the prompt ({_COUNTED})")
    return grown()[0]


def _counted(fleet: Fleet) -> list[float]:
    """The tokens of all prompts that each engine has counted."""
    return [
        total(read_metrics(get(f"{engine.url}/metrics").decode()), _COUNTED)
        for engine in fleet.engines
    ]
