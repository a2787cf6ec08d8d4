"""Which engine has which session, behind a router that hashes the session's name and the engines'
addresses: their ports are others in each run, and who happens to have more chats answers later."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from inferway_bench.loading.workload import Session
from inferway_bench.peers.fleets import MODEL, Fleet
from inferway_bench.processes import get, request, wait_until
from inferway_bench.routers import read_metrics, total

_COUNTED = "vllm:prompt_tokens_total"


def division(url: str, fleet: Fleet, sessions: Sequence[Session]) -> dict[int, int]:
    """Session's number -> its engine's place in the fleet: one short request of each to the router
    at `url`, with nobody else there. Raises BenchError when no engine counts one of them."""
    found = {}
    for session in sessions:
        before = _counted(fleet)
        body = {**session.turns[0].fields, "model": MODEL, "max_tokens": 1}
        body["messages"] = [{"role": "user", "content": "Who are you?"}]
        request(f"{url}/v1/chat/completions", msgspec.json.encode(body), seconds=60)
        found[session.number] = _who_counted(fleet, before)
    return found


def _who_counted(fleet: Fleet, before: Sequence[float]) -> int:
    """Whose count has grown; it does a moment after the answer."""

    def grown() -> list[int]:
        counts = zip(before, _counted(fleet), strict=True)
        return [row for row, (then, now) in enumerate(counts) if now > then]

    wait_until(lambda: bool(grown()), f"an engine to count the prompt ({_COUNTED})")
    return grown()[0]


def _counted(fleet: Fleet) -> list[float]:
    """Tokens of all prompts, by engine."""
    return [
        total(read_metrics(get(f"{engine.url}/metrics").decode()), _COUNTED)
        for engine in fleet.engines
    ]
