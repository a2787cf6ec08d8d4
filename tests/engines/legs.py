"""Requests that the gateway sends in two legs, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.engines import client
from tests.engines.chats import CHAT, COMPLETION
from tests.engines.client import Answer
from tests.engines.engine import RealEngine

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def counted(gateway: str, leg: str, outcome: str) -> float:
    """How many legs ("prefill" or "decode") have had that outcome."""
    return _total(gateway, f"inferway_{leg}_legs_total", f'outcome="{outcome}"')


def outcomes(gateway: str) -> list[str]:
    """The lines of /metrics that count legs: why one has not come that is waited for."""
    return [
        line
        for line in _metrics(gateway)
        if "_legs_total{" in line and not line.endswith((" 0", " 0.0"))
    ]


def in_flight(gateway: str, engine: RealEngine) -> float:
    """How many legs the engine has now."""
    return _total(gateway, "inferway_engine_in_flight", f'engine="{engine.name}"')


def _total(gateway: str, name: str, label: str) -> float:
    series = [line for line in _metrics(gateway) if line.startswith(f"{name}{{") and label in line]
    return sum([float(line.rpartition(" ")[2]) for line in series])


def _metrics(gateway: str) -> list[str]:
    return client.get(f"{gateway}/metrics").raw.decode().splitlines()


def events_of(answer: Answer) -> Iterator[Any]:
    """The data of a stream's events, without [DONE]."""
    for line in answer.raw.decode().splitlines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


def text_of(path: str, answer: Answer) -> str:
    """What the model says in an answer, whole or streamed."""
    if answer.headers.get_content_type() == "text/event-stream":
        return "".join(_pieces(path, answer))
    found: dict[str, Any] = answer.json
    if path == RESPONSES:
        return "".join(part["text"] for each in found["output"] for part in each["content"])
    if path == MESSAGES:
        return "".join(part["text"] for part in found["content"])
    choice = found["choices"][0]
    return str(choice["text"] if path == COMPLETION else choice["message"]["content"])


def _pieces(path: str, answer: Answer) -> Iterator[str]:
    for event in events_of(answer):
        if path in (CHAT, COMPLETION):
            for choice in event["choices"]:
                yield choice["text"] if path == COMPLETION else choice["delta"].get("content", "")
        elif event["type"] == "response.output_text.delta":
            yield event["delta"]
        elif event["type"] == "content_block_delta":
            yield event["delta"]["text"]


def log_probabilities(path: str, answer: Answer) -> list[float]:
    """Of a chat or a completion that asks for them, whole or streamed."""
    is_stream = answer.headers.get_content_type() == "text/event-stream"
    choices = [each["choices"] for each in (events_of(answer) if is_stream else (answer.json,))]
    told = [choice["logprobs"] for several in choices for choice in several if choice["logprobs"]]
    if path == COMPLETION:
        return [one for each in told for one in each["token_logprobs"]]
    return [one["logprob"] for each in told for one in each["content"]]
