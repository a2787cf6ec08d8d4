"""A parsed request -> the token ids that the engine will see."""

from inferway.prompts.model_prompts import ModelPrompts
from inferway.prompts.renderer import (
    GetOrCreateTokenizerKeyRequest,
    RenderChatRequest,
    Renderer,
    RenderRequest,
    RenderResult,
)

__all__ = [
    "GetOrCreateTokenizerKeyRequest",
    "ModelPrompts",
    "RenderChatRequest",
    "RenderRequest",
    "RenderResult",
    "Renderer",
]
