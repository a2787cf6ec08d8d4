"""Samples and sessions of a test's own."""

from __future__ import annotations

from typing import Any

from inferway_bench.loading.answers import Sample
from inferway_bench.loading.generated import Session, Turn


def sample(intended: float, wait: float = 0.1, **changes: Any) -> Sample:
    """One that is sent at its time, has its first token after `wait` and three in all."""
    fields: dict[str, Any] = {
        "session": 0,
        "turn": 0,
        "intended": intended,
        "sent": intended,
        "first": intended + wait,
        "last": intended + wait + 0.02,
        "ended": intended + wait + 0.02,
        "status": 200,
        "prompt_tokens": 40,
        "completion_tokens": 3,
        "cached_tokens": 30,
        "num_deltas": 3,
        "gaps": (0.01, 0.01),
    }
    return Sample(**{**fields, **changes})


def failed(intended: float, kind: str = "status 503") -> Sample:
    return Sample(
        session=0, turn=0, intended=intended, sent=intended, ended=intended, error=kind,
        detail="busy", status=503,
    )  # fmt: skip


def asks(*contents: str, **fields: Any) -> list[Turn]:
    return [Turn(({"role": "user", "content": content},), fields) for content in contents]


def session(*contents: str, at: tuple[float, ...] = (), number: int = 0) -> Session:
    return Session(number, asks(*contents), at)
