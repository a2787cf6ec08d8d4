"""The arguments of a handle call -> the OpenAI request in them.

    handle.answer.remote("/v1/chat/completions", headers, body)   an ingress that keeps the bytes
    handle.chat.remote(request, ...)                              Ray's LLM ingress: a parsed body
    handle.choose_replica(namespace, request_token_ids=[...])     its direct streaming
    handle.anything.remote({"messages": [...]})                   a body as a dict, text or bytes

Whatever else a call carries has no prompt that could be read, and its replica is chosen by Ray's
default. That is no error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from inferway.model import Headers
from inferway.openai_api.kinds import PARSERS
from inferway.openai_api.requests import CHAT, COMPLETION, EMBEDDINGS, MESSAGES, RESPONSES
from inferway_structured.decoding import UNREADABLE

TOKEN_IDS = "request_token_ids"  # the keyword by which Ray's LLMRouter hands prompts on

# Of a parsed body that is known to come to no path: the field that says what it is.
_BY_FIELD = {"messages": CHAT, "prompt": COMPLETION}
# Methods of handles whose bodies their fields do not tell apart (ray.llm's LLMServer).
_BY_METHOD = {
    "chat": CHAT,
    "completions": COMPLETION,
    "embeddings": EMBEDDINGS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}
# Of a body whose prompt's ids are known: what else of it decides where it goes.
_KEPT = ("model", "cache_salt", "max_tokens", "max_completion_tokens")


class AskedRequest(msgspec.Struct, frozen=True):
    """An OpenAI request, as a client would have sent it."""

    path: str
    body: bytes
    headers: Headers = ()


def asked_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], method: str = ""
) -> AskedRequest | None:
    """Return the request that a handle call carries; None if there is none that could be read."""
    if not args:
        return None
    first = args[0]
    if _has_headers(args):
        return AskedRequest(first, args[2], tuple(args[1])) if first in PARSERS else None
    if isinstance(first, bytes | str):
        return _raw(first, method)
    fields = _fields(first)
    if fields is None:
        return None
    ids = kwargs.get(TOKEN_IDS)
    if isinstance(ids, list) and ids:
        kept = {name: fields[name] for name in _KEPT if fields.get(name) is not None}
        # As one that does not stream: its first token does not pass by here.
        return _request(COMPLETION, {**kept, "prompt": ids})
    path = _path(fields, method)
    if path is None:
        return None
    dump = getattr(first, "model_dump_json", None)
    if dump is not None:
        return AskedRequest(path, dump(exclude_unset=True).encode())
    return _request(path, fields)


def put_headers(args: list[Any], headers: Headers) -> None:
    """Put headers into the arguments of a call that carries some, in place of those of the same
    names: a request that was refused is chosen for anew."""
    if not _has_headers(args):
        return
    names = {name for name, _ in headers}
    args[1] = [*[each for each in args[1] if each[0] not in names], *headers]


def _has_headers(args: Sequence[Any]) -> bool:
    return len(args) >= 3 and isinstance(args[0], str) and isinstance(args[2], bytes)


def _raw(body: bytes | str, method: str) -> AskedRequest | None:
    """Of a body in one piece: JSON, or no request."""
    raw = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None
    path = _path(fields, method)
    return None if path is None else AskedRequest(path, raw)


def _fields(body: object) -> Mapping[str, Any] | None:
    if isinstance(body, Mapping):
        return body
    if isinstance(body, SimpleNamespace):
        return vars(body)
    if hasattr(body, "model_dump_json"):  # a parsed body of Ray's LLM ingress, by pydantic
        return body.__dict__
    return None


def _path(fields: Mapping[str, Any], method: str) -> str | None:
    path = _BY_METHOD.get(method)
    if path is not None:
        return path
    return next((path for field, path in _BY_FIELD.items() if fields.get(field)), None)


def _request(path: str, fields: Mapping[str, Any]) -> AskedRequest | None:
    try:
        return AskedRequest(path, msgspec.json.encode(fields))
    except (TypeError, ValueError):
        return None
