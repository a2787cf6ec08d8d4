"""Inferway: a KV-cache-aware inference layer for vLLM fleets.

Names are loaded on first use (PEP 562) and this module imports nothing of its own: vLLM's
processes import us too, and must not pay for what they do not use.
"""

from __future__ import annotations

__version__ = "0.1.0.dev0"

# public name -> module that defines it
_EXPORTS = {
    "Director": "inferway.director",
    "GetOrCreateTokenizerKeyRequest": "inferway.prompts.renderer",
    "RenderChatRequest": "inferway.prompts.renderer",
    "RenderRequest": "inferway.prompts.renderer",
    "RenderResult": "inferway.prompts.renderer",
    "Renderer": "inferway.prompts.renderer",
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
