"""Prompts that share beginnings, in whole and in part, one at a time; what the gateway believed
that the engine reuses of each, and what it did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tests.engines import client
from tests.engines.chats import Request, completion
from tests.engines.engine import RealEngine
from tests.engines.gateway import cached, scores, send
from tests.engines.waiting import wait_until

_WORDS = ["the", "of", "and", "to", "in", "cache", "block", "engine", "model"]  # one token each
_MOST_WORDS = 2900
ANSWER_TOKENS = 4
_MATCHED = "inferway_matched_tokens_total{"


@dataclass(frozen=True)
class Reused:
    """Of one prompt, in tokens."""

    prompt: int
    believed: int
    actual: int


def drawn_prompts(seed: int) -> Iterator[str]:
    """Yield prompts of 5 to 2,900 words without an end."""
    rng = Random(seed)
    stems = [rng.choices(_WORDS, k=length) for length in (900, 1500, 2200, _MOST_WORDS)]
    while True:
        stem = rng.choice(stems)
        shared = int(len(stem) * rng.choice((0, 0.5, 0.8, 1, 1)))
        words = [*stem[:shared], *rng.choices(_WORDS, k=rng.randrange(5, 700))][:_MOST_WORDS]
        if rng.random() < 0.4:
            stems[rng.randrange(len(stems))] = words
        yield " ".join(words)


def reused(gateway: str, engine: RealEngine, number: int, seed: int = 3) -> list[Reused]:
    """Send so many drawn prompts, each as soon as all is known that came of the one before."""
    found = []
    for i, prompt in zip(range(number), drawn_prompts(seed), strict=False):
        request = completion(f"prompt {i}", prompt)
        before = _matched_tokens(gateway)
        told = cached(send(gateway, request, max_tokens=ANSWER_TOKENS, ignore_eos=True))
        believed = _matched_tokens(gateway) - before
        found.append(Reused(told.prompt_tokens, believed, told.cached_tokens))
        _wait_until_heard(gateway, engine, request, i)
    return found


def wrong(found: list[Reused]) -> list[Reused]:
    """Return those of which something else was believed."""
    return [each for each in found if each.believed != each.actual]


def _matched_tokens(gateway: str) -> int:
    lines = client.get(f"{gateway}/metrics").raw.decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(_MATCHED))


def _wait_until_heard(gateway: str, engine: RealEngine, request: Request, number: int) -> None:
    """Until the events of a request have come, all that they name is found, and the request no
    longer counts as held because it is on its way. Another prompt, which goes to the engine alone,
    has its events behind them; it has two blocks, of which a draft model may drop one."""
    size = client.get(f"{gateway}/ready").json["engines"][0]["block_size"]
    words = Random(f"behind {number}").choices(_WORDS, k=2 * size + 5)
    behind = completion(f"the prompt behind {request.name}", " ".join(words))
    send(engine.url, behind)
    wait_until(
        lambda: scores(gateway, behind).get(engine.name), f"the events of {request.name} have come"
    )
    wait_until(lambda: _is_known(gateway, request), f"what is held of {request.name} is known")


def _is_known(gateway: str, request: Request) -> bool:
    candidates = client.post(f"{gateway}/v1/explain", dict(request.body)).json["candidates"]
    places = [where for candidate in candidates for where, _ in candidate["runs"]]
    pictures = {candidate["picture"] for candidate in candidates}
    return "on-its-way" not in places and pictures == {"exact"}
