"""The path a request came to -> what parses its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from inferway.openai_api.requests import (
    Body,
    parse_chat,
    parse_completion,
    parse_conversations,
    parse_embeddings,
    parse_responses,
)

Parse = Callable[[bytes], Body]

PARSERS: Mapping[str, Parse] = {
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
    "/v1/responses": parse_responses,
    "/v1/conversations": parse_conversations,
    "/v1/embeddings": parse_embeddings,
}

# An engine's path may have a prefix, and then its version is the engine's matter. The chat's
# suffix is the longer one, so it comes first.
_SUFFIXES = tuple((path.removeprefix("/v1"), parse) for path, parse in PARSERS.items())


def parser_by_suffix(path: str) -> Parse:
    """For who sits behind a proxy that rewrites paths, as llm-d: what a path ends with, its query
    aside, decides; what ends with nothing we know is a completion."""
    bare = path.partition("?")[0].rstrip("/")
    return next((parse for suffix, parse in _SUFFIXES if bare.endswith(suffix)), parse_completion)
