"""Chat bodies -> the token ids an engine would see, for events, for /render and for the parts."""

from __future__ import annotations

from inferway.openai_api.requests import parse_chat
from inferway.prompts.render_requests import GetOrCreateTokenizerKeyRequest, RenderChatRequest
from inferway.prompts.renderer import Renderer


class EnginePrompts:
    """One model's prompts. Close it."""

    def __init__(self, root: str) -> None:
        self._renderer = Renderer(num_threads=1)
        wanted = GetOrCreateTokenizerKeyRequest(root, is_local=True)
        self._key = self._renderer.get_or_create_tokenizer_key(wanted)

    def token_ids(self, body: bytes) -> list[int]:
        """Raises InvalidRequestError or TemplateError."""
        return self._token_ids(body, add_generation_prompt=True)

    def cached_token_ids(self, body: bytes) -> list[int]:
        """As `token_ids`, for a chat that will go on: without the generation prompt."""
        return self._token_ids(body, add_generation_prompt=False)

    def _token_ids(self, body: bytes, *, add_generation_prompt: bool) -> list[int]:
        request = RenderChatRequest(
            self._key, parse_chat(body).messages, add_generation_prompt=add_generation_prompt
        )
        ids: list[int] = self._renderer.render_chat(request).input_ids.tolist()
        return ids

    def close(self) -> None:
        self._renderer.close()
