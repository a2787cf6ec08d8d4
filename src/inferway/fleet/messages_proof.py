"""Proves that an engine counts as many tokens in messages as we do, by asking it
(prompts/fidelity/messages_probe.py: what, why)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from inferway.errors import UpstreamError
from inferway.fleet.engine import Engine, ProofState
from inferway.fleet.engine_token_ids import PROBE_SECONDS
from inferway.fleet.http_client import post
from inferway.openai_api.kinds import COUNT_TOKENS
from inferway.openai_api.requests import CountsMessages
from inferway.prompts.fidelity.messages_probe import (
    BODIES,
    our_count,
)
from inferway_structured.decoding import UNREADABLE

ATTEMPTS = 3  # a template that shows the time may have been rendered on both sides of a tick


class _Count(msgspec.Struct):
    input_tokens: int


async def prove_messages(
    session: aiohttp.ClientSession, engine: Engine, model: str, prompts: CountsMessages
) -> tuple[ProofState, str]:
    """Return whether all counts are the same, and if not, the first difference. An engine that does
    not count, or refuses what is asked, proves nothing."""
    found = ProofState.UNPROVEN
    for i, fields in enumerate(BODIES):
        body = {"model": model, **fields}
        try:
            ours, theirs = await _counts(session, engine, prompts, body)
        except UpstreamError:
            return ProofState.UNPROVEN, ""
        if ours is None or theirs is None:
            continue
        if ours != theirs:
            return ProofState.DIFFERS, f"in probe {i + 1} it counts {theirs} tokens, and we {ours}"
        found = ProofState.AGREES
    return found, ""


async def _counts(
    session: aiohttp.ClientSession,
    engine: Engine,
    prompts: CountsMessages,
    body: Mapping[str, Any],
) -> tuple[int | None, int | None]:
    """Ours and the engine's, asked again if they differ."""
    for _ in range(ATTEMPTS):
        ours = await our_count(prompts, body)
        theirs = None if ours is None else await _asked(session, engine, body)
        if ours is None or theirs is None or ours == theirs:
            break
    return ours, theirs


async def _asked(
    session: aiohttp.ClientSession, engine: Engine, body: Mapping[str, Any]
) -> int | None:
    """None if the engine refuses it. Raises UpstreamError."""
    raw_body, headers = msgspec.json.encode(body), engine.http_headers
    status, raw = await post(
        session, engine.url, COUNT_TOKENS, raw_body, headers=headers, seconds=PROBE_SECONDS
    )
    if status in (400, 422):
        return None
    if status != 200:
        raise UpstreamError(f"{COUNT_TOKENS} answered {status}")
    try:
        return msgspec.json.decode(raw, type=_Count).input_tokens
    except UNREADABLE as e:
        raise UpstreamError(f"{COUNT_TOKENS}: its answer cannot be read") from e
