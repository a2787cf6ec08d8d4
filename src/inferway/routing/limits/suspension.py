"""Suspensions: states in which a vLLM engine is well and computes nothing, until it is told to.

state     caused by                           a new request there (vLLM 0.32; 0.33)
ASLEEP    POST /sleep                         waits inside the engine, in silence
PAUSED    POST /pause                         waits inside; 503 in 0.33, but for `mode=keep`
SCALING   elastic expert parallelism changes  503, as any other path (0.33: but for /health)
          the number of ranks

Sources: vllm/v1/engine/core.py, pause_scheduler and _reject_add_while_paused;
entrypoints/serve/elastic_ep/middleware.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class Suspension(StrEnum):
    """The reason for which an engine that is well computes nothing."""

    ASLEEP = "asleep"
    PAUSED = "paused"
    SCALING = "scaling"


WORDS = {
    Suspension.ASLEEP: "sleeps",
    Suspension.PAUSED: "is paused",
    Suspension.SCALING: "changes the number of its ranks",
}
_REFUSALS = {
    Suspension.SCALING: b"The model is currently scaling",
    Suspension.PAUSED: b"Generation is paused",
}
REFUSAL_STATUS = 503


def refusal(status: int, body: bytes) -> Suspension | None:
    """Return why the engine has refused a request with this answer; None if it is not suspended, as
    far as the answer tells."""
    if status != REFUSAL_STATUS:
        return None
    return next((each for each, words in _REFUSALS.items() if words in body), None)


def told(engines: Iterable[str], suspended: Mapping[str, Suspension]) -> str:
    """Return which of the engines are suspended, and how, in words."""
    names = sorted(name for name in engines if name in suspended)
    return ", ".join(f"{name} {WORDS[suspended[name]]}" for name in names)
