"""The path a request came to -> what parses its body; and paths whose bodies nobody here makes a
prompt of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferway.openai_api.requests import (
    Body,
    parse_chat,
    parse_completion,
    parse_embeddings,
    parse_messages,
    parse_responses,
)

Parse = Callable[[bytes], Body]

PARSERS: Mapping[str, Parse] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
    "/v1/responses": parse_responses,
    "/v1/messages": parse_messages,
    "/v1/embeddings": parse_embeddings,
}

# What engines answer beside those (vLLM 0.32, entrypoints/*/api_router.py; speech: vLLM-Omni). All
# else that they answer, such as /sleep, /collective_rpc, /update_weights, is their operator's.
# Whether prompts there can be kept apart by tenant: SALTED by their `cache_salt`; CACHELESS need
# not be; of UNSALTED ones engines know no salt.
SALTED, CACHELESS, UNSALTED = "salted", "cacheless", "unsalted"
UNREAD: Mapping[str, str] = {
    "/v1/messages/count_tokens": CACHELESS,
    "/v1/chat/completions/batch": SALTED,
    "/tokenize": CACHELESS,
    "/detokenize": CACHELESS,
    "/rerank": SALTED,
    "/v1/rerank": SALTED,
    "/v2/rerank": SALTED,
    "/score": SALTED,
    "/v1/score": SALTED,
    "/pooling": SALTED,
    "/classify": SALTED,
    "/v2/embed": UNSALTED,
    "/v1/audio/transcriptions": UNSALTED,
    "/v1/audio/translations": UNSALTED,
    "/v1/audio/speech": UNSALTED,
}

# Whose answers are made token by token.
GENERATING = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses"),
        *("/v1/messages", "/v1/chat/completions/batch"),
    }
)

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
