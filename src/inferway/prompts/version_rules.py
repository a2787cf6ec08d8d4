"""The rules for prompts that differ between versions of vLLM.

Read in 0.32 and 0.33, and recorded of both (tests/golden/prompts):

* 0.33 detects the form of content (`chat_template_content_format: auto`) through namespaces, too
  (renderers/hf.py: `namespace(rest=messages)`, `set ns.rest = messages`).
* 0.33 truncates a chat or a response that says nothing of its answer's length to one token less
  than the context, so that an answer has room; before, it kept as many as the context has, and then
  refused them (renderers/params.py, `max_truncation_tokens`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inferway.config import ModelSettings
from inferway.errors import RenderError
from inferway.model import Reason
from inferway.prompts.chat.content_format import ContentFormat, TemplateFacts

Version = tuple[int, int]

_CHANGED = (0, 33)


@dataclass(frozen=True, slots=True)
class VersionRules:
    """`since_0_33`: whether the engines have the rules of 0.33; None: some have, and some have not,
    so that what depends on these rules has no one prompt."""

    since_0_33: bool | None = False

    @classmethod
    def of(cls, versions: Iterable[Version | None]) -> VersionRules:
        """Return those of engines with these versions. An engine that has told none follows the
        others; if none has told, they have the rules before 0.33."""
        kinds = {version >= _CHANGED for version in versions if version is not None}
        return cls(None if len(kinds) > 1 else True in kinds)

    def content_format(self, flags: ModelSettings, template: TemplateFacts | None) -> ContentFormat:
        """Return the form of content that the template gets with these flags; of no template, that
        is text. Raises RenderError if the engines do not agree."""
        given = flags.chat_template_content_format
        if given != "auto":
            return given
        if template is None:
            return "string"
        is_same = template.newer_format == template.content_format
        if is_same or self.since_0_33 is False:
            return template.content_format
        if self.since_0_33 is None:
            raise RenderError(
                "the model's engines have vLLM before 0.33 and since, which give this chat template"
                " another form of content each; give it as chat_template_content_format",
                reason=Reason.UNFAITHFUL,
            )
        return template.newer_format

    def leaves_room(self, max_tokens: int | None) -> bool:
        """Return whether truncation to the whole context leaves one token of it for the answer, of
        which a request says `max_tokens`. Raises RenderError if the engines do not agree."""
        if max_tokens is not None:
            return max_tokens > 0
        if self.since_0_33 is None:
            raise RenderError(
                "truncate_prompt_tokens: the model's engines have vLLM before 0.33 and since, which"
                " keep another number of tokens each",
                reason=Reason.UNKNOWN_CONTEXT_LENGTH,
            )
        return self.since_0_33


OLDER_RULES = VersionRules()
