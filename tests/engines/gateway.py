"""What tests ask the gateway and the engines behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.engines import client
from tests.engines.chats import CHAT, Request
from tests.engines.client import Answer
from tests.engines.engine import BLOCK_SIZE, RealEngine
from tests.engines.waiting import wait_until


@dataclass(frozen=True)
class Cached:
    """What an engine says of one prompt: its tokens, and those it had in its cache."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def blocks(self) -> int:
        return self.cached_tokens // BLOCK_SIZE

    @property
    def prompt_blocks(self) -> int:
        """Full blocks: what the engine holds of the prompt now that it has answered."""
        return self.prompt_tokens // BLOCK_SIZE

    @property
    def reusable_blocks(self) -> int:
        """vLLM computes at least the last token, hence its whole block, again."""
        return (self.prompt_tokens - 1) // BLOCK_SIZE


def scores(gateway: str, request: Request) -> dict[str, int]:
    """Blocks of the request's prompt that the gateway believes each engine to hold."""
    path = "/score_chat_completions" if request.path == CHAT else "/score_completions"
    answer = client.post(gateway + path, request.body)
    if answer.status != 200:
        raise RuntimeError(f"{request.name}: {answer.status} {answer.raw.decode()}")
    found: dict[str, int] = answer.json["pod_scores"]
    return found


def send(url: str, request: Request, **more: object) -> Answer:
    """The answer of one token, unless told otherwise, to a request that must succeed."""
    answer = client.post(url + request.path, {**request.body, "max_tokens": 1, **more})
    if answer.status != 200:
        raise RuntimeError(f"{request.name}: {answer.status} {answer.raw.decode()}")
    return answer


def cached(answer: Answer) -> Cached:
    usage = answer.json["usage"]
    return Cached(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def engine_of(answer: Answer) -> str:
    """The engine that a routed answer came from."""
    return str(answer.headers["x-inferway-engine"])


def wait_until_probed(gateway: str) -> None:
    """Until the gateway has asked each engine how it renders, which takes requests, too."""

    def probed() -> bool:
        found = [engine["probes"] for engine in client.get(f"{gateway}/ready").json["engines"]]
        return all(found) and all(
            each["state"] == "agrees" for probes in found for each in probes.values()
        )

    wait_until(probed, "the gateway has probed its engines")


def wait_until_believed(gateway: str, request: Request, engine: str, blocks: int) -> None:
    """The index knows exactly so many blocks of the prompt at the engine."""
    wait_until(
        lambda: scores(gateway, request).get(engine) == blocks,
        f"{blocks} blocks of {request.name!r} at {engine}",
        lambda: scores(gateway, request),
        seconds=10,
    )


def ask_directly(gateway: str, engine: RealEngine, request: Request) -> Cached:
    """What the engine has of a prompt; and as asking makes it hold all of it: until the
    gateway knows that too."""
    told = cached(send(engine.url, request))
    wait_until_believed(gateway, request, engine.name, told.prompt_blocks)
    return told


def requests_seen(engines: Sequence[RealEngine]) -> float:
    """Inference requests that the engines' servers answered, well or badly. Counting tokens is
    none: the gateway's probes do it later than `wait_until_probed` tells."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for engine in engines
        for line in client.get(f"{engine.url}/metrics").raw.decode().splitlines()
        if line.startswith("http_requests_total{")
        and "/v1/" in line
        and "count_tokens" not in line
        and 'method="POST"' in line
    )
