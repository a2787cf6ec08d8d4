"""Asks an engine which token ids it makes of a request: `return_token_ids`, vLLM's own answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import numpy as np

from inferway.errors import UpstreamError
from inferway.fleet.discovery import StatusError
from inferway.fleet.http_client import post
from inferway.prompts.probe import CHAT, Outcome, Refused
from inferway_structured.decoding import UNREADABLE

ASK_SECONDS = 30.0  # an engine may have long prompts to compute first

_MAX_REASON_CHARS = 200


class NoOracleError(UpstreamError):
    """The engine answers, but never tells the ids of a prompt."""


async def ask(
    session: aiohttp.ClientSession,
    engine_url: str,
    headers: Mapping[str, str],
    path: str,
    body: Mapping[str, Any],
) -> Outcome:
    """What the engine makes of `body`, which asks for `return_token_ids`. Raises UpstreamError
    for an answer that is no verdict, NoOracleError where there will never be one."""
    raw_body = msgspec.json.encode(body)
    status, raw = await post(
        session, engine_url, path, raw_body, headers=headers, seconds=ASK_SECONDS
    )
    if status in (400, 422):
        return Refused(_error_message(raw))
    if status in (404, 405):
        raise NoOracleError(f"{path} answered {status}")
    if status != 200:
        raise StatusError(f"{path} answered {status}", status)
    return parse_answer(path, raw)


class _Choice(msgspec.Struct):
    index: int = 0
    prompt_token_ids: list[int] | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None


def parse_answer(path: str, raw: bytes) -> Outcome:
    """The ids of each prompt. Raises NoOracleError if they are not there."""
    try:
        answer = msgspec.json.decode(raw, type=_Answer)
        if path == CHAT:
            lists = [answer.prompt_token_ids]
        else:
            lists = [c.prompt_token_ids for c in sorted(answer.choices, key=lambda c: c.index)]
        found = [np.array(ids, dtype=np.uint32) for ids in lists if ids is not None]
    except (*UNREADABLE, OverflowError) as e:
        raise NoOracleError(f"{path}: its answer cannot be read") from e
    if not found or len(found) != len(lists):
        raise NoOracleError(f"{path}: no prompt_token_ids in its answer; is it an older vLLM?")
    return found


class _Message(msgspec.Struct, frozen=True):
    message: str = ""


class _Error(msgspec.Struct):
    error: _Message = _Message()
    message: str = ""  # older engines


def _error_message(raw: bytes) -> str:
    try:
        error = msgspec.json.decode(raw, type=_Error)
    except UNREADABLE:
        return "no reason given"
    return (error.error.message or error.message)[:_MAX_REASON_CHARS] or "no reason given"
