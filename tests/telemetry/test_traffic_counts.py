"""Which clients' requests go by load, and where: in words of our own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferway.model import Reason
from inferway.routing.record import Record
from inferway.telemetry.clients import family, user_agent
from inferway.telemetry.traffic_counts import TrafficCounts


def answer(reason: str, path: str = "/v1/responses", agent: bytes = b"codex_cli_rs/1") -> Any:
    return SimpleNamespace(record=Record(0.0, reason=reason), path=path, user_agent=agent)


NO_REQUEST: Any = SimpleNamespace(record=None)


def test_requests_by_load_are_counted_by_path_client_and_reason() -> None:
    counts = TrafficCounts()
    for reason in ("response-items", "response-items", "kv-aware", "remote-prefix", ""):
        counts.on_answers([answer(reason)])
    counts.on_answers([answer("unread", "/secret/path", b"a client of its own")])
    counts.on_answers([NO_REQUEST])

    told = counts.told()
    assert told["by_prompt"] == 2
    assert told["by_load"] == [
        {
            "path": "/v1/responses",
            "client": "codex",
            "reason": "response-items",
            "requests": 2,
        },
        {"path": "other", "client": "other", "reason": "unread", "requests": 1},
    ]


def test_each_reason_is_counted_as_one_or_the_other() -> None:
    counts = TrafficCounts()
    for reason in Reason:
        counts.on_answers([answer(reason)])

    assert counts.by_prompt == 4
    assert counts.by_load.total() == len(Reason) - 4


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (b"claude-cli/2.1.0 (external, cli)", "claude-code"),
        (b"codex_cli_rs/0.63.0 (Linux 6.1; x86_64) vscode", "codex"),
        (b"AsyncOpenAI/Python 1.99.0", "openai-sdk"),
        (b"Anthropic/JS 0.60.0", "anthropic-sdk"),
        (b"litellm/1.80 OpenAI/Python 1.9", "litellm"),
        (b"curl/8.5.0", "curl"),
        (b"x" * 300 + b"curl", "other"),
        (b"", "other"),
    ],
)
def test_a_user_agent_is_of_a_family(agent: bytes, name: str) -> None:
    assert family(agent) == name
    assert user_agent([(b"accept", b"curl"), (b"user-agent", agent)]) == agent


def test_who_does_not_say_who_it_is_has_no_user_agent() -> None:
    assert user_agent([]) == b""
