"""Inferway: a KV-cache-aware inference layer for vLLM fleets.

Names are loaded on first use (PEP 562) and this module imports nothing of its own: vLLM's
processes import us too, and must not pay for what they do not use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which would have to be imported
if TYPE_CHECKING:
    from inferway.fleet.scores import EngineScore as EngineScore
    from inferway.fleet.scores import Scores as Scores
    from inferway.indexer import Indexer as Indexer
    from inferway.prompts.render_requests import (
        GetOrCreateTokenizerKeyRequest as GetOrCreateTokenizerKeyRequest,
    )
    from inferway.prompts.render_requests import RenderChatRequest as RenderChatRequest
    from inferway.prompts.render_requests import RenderRequest as RenderRequest
    from inferway.prompts.render_requests import RenderResult as RenderResult
    from inferway.prompts.renderer import Renderer as Renderer
    from inferway.routing.director import Director as Director

__version__ = "0.1.0.dev0"

# public name -> module that defines it
_EXPORTS = {
    "Director": "inferway.routing.director",
    "EngineScore": "inferway.fleet.scores",
    "GetOrCreateTokenizerKeyRequest": "inferway.prompts.render_requests",
    "Indexer": "inferway.indexer",
    "RenderChatRequest": "inferway.prompts.render_requests",
    "RenderRequest": "inferway.prompts.render_requests",
    "RenderResult": "inferway.prompts.render_requests",
    "Renderer": "inferway.prompts.renderer",
    "Scores": "inferway.fleet.scores",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> object:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module 'inferway' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return list(__all__)
