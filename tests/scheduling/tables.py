"""A table of candidates and a request, as a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from inferway.model import Adapters, Candidates, Endpoint, Headers, Prompt, Target
from inferway.openai_api.llm_request import LLMRequest, Objectives
from inferway.openai_api.requests import Body, ChatRequest, CompletionRequest
from inferway.scheduling.adapter_rows import AdapterRows
from inferway.scheduling.by_role import ByRole
from inferway.scheduling.idle import idle
from inferway.scheduling.load import KV_AWARE, load_scheduling
from inferway.scheduling.plugin import ProfileHandler
from inferway.scheduling.profile import Profile
from inferway.scheduling.scheduling import Scheduling


def candidates(
    size: int = 3,
    *,
    labels: Sequence[Mapping[str, str]] = (),
    adapters: Sequence[Adapters] | None = None,
    block_size: int = 16,
    **columns: Any,
) -> Candidates:
    """Endpoints e0, e1, ... at http://10.0.0.<i>:8000, idle but for what `columns` says: a number
    for all rows, or one for each."""
    for values in (labels or None, adapters, *columns.values()):
        size = len(values) if isinstance(values, Sequence) else size
    endpoints = [
        Endpoint(f"e{i}", f"http://10.0.0.{i}:8000", i, labels=labels[i] if labels else {})
        for i in range(size)
    ]
    made = idle(endpoints, block_size)
    for name, values in columns.items():
        getattr(made, name)[:] = values
    if adapters is not None:
        made.adapters = AdapterRows(adapters)
    return made


def profile_of(scheduling: Scheduling) -> Profile:
    """Return the only profile of a configuration without a handler."""
    chooser = scheduling.chooser
    assert isinstance(chooser, ByRole)
    assert isinstance(chooser.profile, Profile)
    return chooser.profile


def kv_aware() -> ProfileHandler:
    """The policy of that name."""
    return load_scheduling(KV_AWARE).chooser


def request(
    *,
    headers: Headers = (),
    tokens: int | None = None,
    body: Body | None = None,
    model: str = "m",
    raw: bytes = b"",
    priority: int = 0,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
) -> LLMRequest:
    """One whose prompt has so many tokens; None: it is not known."""
    ids = np.zeros(tokens or 0, np.uint32)
    return LLMRequest(
        request_id="r",
        target_model=model,
        body=body or CompletionRequest(model=model, prompt=""),
        headers=headers,
        objectives=Objectives(priority, ttft_ms, tpot_ms),
        raw=raw,
        prompts={} if tokens is None else {16: [Prompt(ids, ())]},
    )


def chat(*messages: str, model: str = "m", **fields: Any) -> LLMRequest:
    """Alternating turns of user and assistant."""
    turns = [
        {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)
    ]
    return request(model=model, body=ChatRequest(model=model, messages=turns, **fields))


def target(table: Candidates, row: int) -> Target:
    return Target(
        table.endpoints[row],
        0.0,
        int(table.matched_blocks[row]),
        int(table.prompt_blocks[row]),
    )


def with_header(name: str, value: bytes) -> LLMRequest:
    return msgspec.structs.replace(request(), headers=((name.encode(), value),))
