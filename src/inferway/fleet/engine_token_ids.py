"""Asks an engine which token ids it makes of a request.

return_token_ids in a request   vLLM's own answer, which generates a token (`ask`)
POST {path}/render              vLLM with --enable-scale-out: the code that renders its own requests
POST /tokenize                  every vLLM; knows fewer fields, and not the models' own renderers
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from inferway.errors import UpstreamError
from inferway.fleet.engine_client import EngineClient, StatusError
from inferway.model import Headers, TokenIds
from inferway.openai_api.requests import CHAT, PromptBody
from inferway.prompts.fidelity import NotRendered, Outcome
from inferway.prompts.remote_render_cache import RenderKey, as_ids
from inferway_structured.decoding import UNREADABLE

PROBE_SECONDS = 30.0  # an engine may have long prompts to compute first
# A rendering that takes longer is given up: its place is needed, and its prompt long computed.
RENDER_SECONDS = 10.0
# Reading a long answer takes milliseconds that others should not wait for.
MAX_BYTES_ON_LOOP = 256 * 1024

_MAX_REASON_CHARS = 200


class NoTokenIdsError(UpstreamError):
    """The engine answers, but never tells the ids of a prompt."""


async def ask(
    client: EngineClient,
    engine_url: str,
    headers: Headers,
    path: str,
    body: Mapping[str, Any],
) -> Outcome:
    """Return what the engine makes of `body`, which asks for `return_token_ids`. Raises
    UpstreamError for an answer that is no verdict, NoOracleError where there will never be one."""
    raw_body = msgspec.json.encode(body)
    status, raw = await client.post(engine_url, path, raw_body, headers, PROBE_SECONDS)
    if status in (400, 422):
        return NotRendered(_error_message(raw))
    if status in (404, 405):
        raise NoTokenIdsError(f"{path} answered {status}")
    if status != 200:
        raise StatusError(f"{path} answered {status}", status)
    return parse_answer(path, raw)


class _Choice(msgspec.Struct):
    index: int = 0
    prompt_token_ids: list[int] | None = None


class _ProbeAnswer(msgspec.Struct):
    choices: list[_Choice] = []
    prompt_token_ids: list[int] | None = None


def parse_answer(path: str, raw: bytes) -> Outcome:
    """Return the ids of each prompt. Raises NoOracleError if they are not there."""
    try:
        answer = msgspec.json.decode(raw, type=_ProbeAnswer)
        if path == CHAT:
            lists = [answer.prompt_token_ids]
        else:
            lists = [c.prompt_token_ids for c in sorted(answer.choices, key=lambda c: c.index)]
        found = [np.array(ids, dtype=np.uint32) for ids in lists if ids is not None]
    except (*UNREADABLE, OverflowError) as e:
        raise NoTokenIdsError(f"{path}: its answer cannot be read") from e
    if not found or len(found) != len(lists):
        raise NoTokenIdsError(f"{path}: no prompt_token_ids in its answer; is it an older vLLM?")
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


# without generating

_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class NoSuchServiceError(UpstreamError):
    """The engine does not render, or not so."""


class RefusedError(UpstreamError):
    """The engine refuses this request; its client will hear why from the engine itself."""


class _Rendered(msgspec.Struct):
    token_ids: list[_Id]


class _Tokenized(msgspec.Struct):
    tokens: list[_Id]


_Answer = TypeVar("_Answer")

_CHAT = msgspec.json.Decoder(_Rendered)
_COMPLETION = msgspec.json.Decoder(list[_Rendered])
_TOKENS = msgspec.json.Decoder(_Tokenized)

# What /tokenize takes into account. Another field in a request may make another prompt of it.
_KNOWN_TO_TOKENIZE = {
    *("messages", "prompt", "tools", "add_generation_prompt", "continue_final_message"),
    *("add_special_tokens", "chat_template", "chat_template_kwargs", "cache_salt"),
}
_MAX_TEXTS = 8  # of one completion request: /tokenize takes one at a time


class RenderClient:
    """Asks one engine to render prompts."""

    def __init__(self, client: EngineClient, url: str, headers: Headers) -> None:
        self._client = client
        self._url = url
        self._headers = headers

    async def render(self, asked: RenderKey, model: str) -> Sequence[TokenIds]:
        """Return the token ids of each prompt. Raises UpstreamError, which is NoSuchServiceError
        without --enable-scale-out."""
        raw = await self._post(f"{asked.path}/render", asked.raw(model))
        if asked.path == CHAT:
            return [as_ids((await _decoded(_CHAT, raw)).token_ids)]
        return [as_ids(rendered.token_ids) for rendered in await _decoded(_COMPLETION, raw)]

    async def tokenize(self, asked: RenderKey, model: str) -> Sequence[TokenIds]:
        """Return the same by /tokenize, for a request that is `known_to_tokenize`."""
        bodies = _for_tokenize(asked, model)
        answers = await asyncio.gather(*(self._post("/tokenize", body) for body in bodies))
        return [as_ids((await _decoded(_TOKENS, raw)).tokens) for raw in answers]

    async def _post(self, path: str, body: bytes) -> bytes:
        status, raw = await self._client.post(self._url, path, body, self._headers, RENDER_SECONDS)
        if status == 200:
            return raw
        # 403 is vLLM's answer without --enable-scale-out, 404 that of older ones.
        if status in (403, 404, 405, 501):
            raise NoSuchServiceError(f"{path} answered {status}")
        if status in (400, 413, 422):
            raise RefusedError(f"{path} answered {status}")
        raise StatusError(f"{path} answered {status}", status)


def known_to_tokenize(asked: RenderKey) -> bool:
    """Return whether /tokenize looks at all that shapes this request's prompt."""
    body = asked.body
    # Where there are tools, "auto" is what vLLM takes if no choice is given.
    unheard = {"tool_choice"} if body.tool_choice == "auto" else set()
    is_known = asked.fields - unheard <= _KNOWN_TO_TOKENIZE
    return is_known and (body.turns is not None or 0 < len(_texts(body)) <= _MAX_TEXTS)


def _texts(body: PromptBody) -> list[str]:
    """The texts of a completion; none if it is not of texts alone."""
    texts = [prompt for prompt in body.prompts if isinstance(prompt, str)]
    return texts if len(texts) == len(body.prompts) else []


def _for_tokenize(asked: RenderKey, model: str) -> list[bytes]:
    body = asked.body
    if body.turns is not None:
        return [asked.raw(model)]
    special = body.add_special_tokens is not False
    return [
        msgspec.json.encode({"model": model, "prompt": text, "add_special_tokens": special})
        for text in _texts(body)
    ]


async def _decoded(decoder: msgspec.json.Decoder[_Answer], raw: bytes) -> _Answer:
    try:
        if len(raw) <= MAX_BYTES_ON_LOOP:
            return decoder.decode(raw)
        return await asyncio.to_thread(decoder.decode, raw)
    except UNREADABLE as e:
        raise UpstreamError("its rendering cannot be read") from e
