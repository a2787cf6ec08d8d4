"""What an engine finds out of a model's templates before it makes a chat of messages: as vLLM 0.32
does (entrypoints/anthropic/serving.py), once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferway.errors import RenderError, TemplateError
from inferway.model import Reason
from inferway.openai_api.requests import ChatRequest
from inferway.prompts.chat.chat_template import ChatTemplate

EFFORTS = ("low", "medium", "high", "xhigh", "max")

_HI = [{"role": "user", "content": "Hi"}]


class MessageRules:
    """Of one model with the flags of its engines. `templates` are those for chats without tools and
    with tools, none if the model has none; `render` writes a chat with them."""

    def __init__(
        self, templates: Sequence[ChatTemplate], render: Callable[[ChatRequest], str]
    ) -> None:
        self._templates = templates
        self._render = render
        self.no_thinking_effort: str | None = None  # once it is found out

    def merges_inline_system(self) -> bool:
        """Return whether system messages between the others are merged into the first one: one of
        the templates refuses them, or there is none. Raises RenderError if it cannot be told."""
        found = [template.refuses_inline_system for template in self._templates] or [True]
        if True in found:
            return True
        if None in found:
            raise RenderError(
                "whether the chat template takes system messages between the others is not known",
                reason=Reason.MESSAGE_BLOCKS,
            )
        return False

    def find_no_thinking_effort(self) -> str:
        """Return the effort that stands for no thinking: "low" where the template refuses "none",
        or writes the same for it as for one with thinking. It renders six short chats. Raises
        RenderError."""
        if self.no_thinking_effort is None:
            none = self._written("none")
            ignores = none is None or any(self._written(effort) == none for effort in EFFORTS)
            self.no_thinking_effort = "low" if ignores else "none"
        return self.no_thinking_effort

    def _written(self, effort: str) -> str | None:
        try:
            return self._render(ChatRequest(messages=_HI, reasoning_effort=effort))
        except TemplateError:
            return None
