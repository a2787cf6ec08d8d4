"""The paths of engines that requests go to: one row for each, with what is the same for all its
requests. What depends on a body, the body says itself (requests.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferway.openai_api.requests import (
    CHAT,
    COMPLETION,
    EMBEDDINGS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    Body,
    parse_chat,
    parse_classify,
    parse_completion,
    parse_embeddings,
    parse_generate,
    parse_messages,
    parse_pooling,
    parse_rerank,
    parse_responses,
    parse_score,
)

Parse = Callable[[bytes], Body]

COUNT_TOKENS = "/v1/messages/count_tokens"

# Whether prompts of a path can be kept apart by tenant: SALTED by their `cache_salt`; CACHELESS
# need not be; of UNSALTED ones engines know no salt.
SALTED, CACHELESS, UNSALTED = "salted", "cacheless", "unsalted"


@dataclass(frozen=True, slots=True)
class PathKind:
    """The properties that all requests to one path of engines share."""

    path: str
    parse: Parse | None = None  # None: nobody here makes a prompt of its bodies
    salt: str = SALTED
    generates: bool = False  # its answers are made token by token
    operation: str | None = None  # gen_ai.operation.name, of OpenTelemetry's conventions


# What engines answer (vLLM 0.32, entrypoints/*/api_router.py; speech: vLLM-Omni). All else that
# they answer, such as /sleep, /collective_rpc, /update_weights, is their operator's.
_ROWS = (
    PathKind(CHAT, parse_chat, generates=True, operation="chat"),
    PathKind(COMPLETION, parse_completion, generates=True, operation="text_completion"),
    PathKind(RESPONSES, parse_responses, generates=True, operation="chat"),
    PathKind(MESSAGES, parse_messages, generates=True, operation="chat"),
    PathKind(EMBEDDINGS, parse_embeddings, operation="embeddings"),
    *(PathKind(path, parse_rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(PathKind(path, parse_score) for path in ("/score", "/v1/score")),
    PathKind("/pooling", parse_pooling),
    PathKind("/classify", parse_classify),
    PathKind(GENERATE, parse_generate, generates=True, operation="text_completion"),
    PathKind(COUNT_TOKENS, salt=CACHELESS),
    PathKind("/v1/chat/completions/batch", generates=True, operation="chat"),
    PathKind("/tokenize", salt=CACHELESS),
    PathKind("/detokenize", salt=CACHELESS),
    PathKind("/v2/embed", salt=UNSALTED),
    PathKind("/v1/audio/transcriptions", salt=UNSALTED),
    PathKind("/v1/audio/translations", salt=UNSALTED),
    PathKind("/v1/audio/speech", salt=UNSALTED),
)
KINDS: Mapping[str, PathKind] = {kind.path: kind for kind in _ROWS}

PARSERS: Mapping[str, Parse] = {kind.path: kind.parse for kind in _ROWS if kind.parse is not None}
UNREAD: Mapping[str, str] = {kind.path: kind.salt for kind in _ROWS if kind.parse is None}
GENERATING = frozenset(kind.path for kind in _ROWS if kind.generates)

# An engine's path may have a prefix, and then its version is the engine's matter. The chat's
# suffix is the longer one, so it comes first.
_SUFFIXES = tuple((path.removeprefix("/v1"), parse) for path, parse in PARSERS.items())


def parser_by_suffix(path: str) -> Parse | None:
    """Return the parser for a path behind a proxy that rewrites paths, as llm-d does: the end of
    the path decides, without its query. Without a path (NGINX sends none) the request is a
    completion, as in llm-d. A path with an unknown end carries no prompt that we could read:
    None."""
    bare = path.partition("?")[0].rstrip("/")
    if not bare:
        return parse_completion
    return next((parse for suffix, parse in _SUFFIXES if bare.endswith(suffix)), None)
