"""A parsed request -> the token ids that the engine will see.

Names are loaded on first use (PEP 562): the helper process needs some modules of this room, and
none of the tokenizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway.prompts.model_prompts import ModelPrompts
    from inferway.prompts.render_requests import (
        GetOrCreateTokenizerKeyRequest,
        RenderChatRequest,
        RenderRequest,
        RenderResult,
    )
    from inferway.prompts.renderer import Renderer

__all__ = [
    "GetOrCreateTokenizerKeyRequest",
    "ModelPrompts",
    "RenderChatRequest",
    "RenderRequest",
    "RenderResult",
    "Renderer",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    homes = {"ModelPrompts": "model_prompts", "Renderer": "renderer"}
    home = homes.get(name, "render_requests")
    return getattr(import_module(f"{__name__}.{home}"), name)
