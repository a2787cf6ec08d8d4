"""A Jinja chat template -> text, exactly as transformers' `apply_chat_template` renders it.

A template is compiled once; rendering keeps no state, so any thread may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import msgspec
from jinja2 import meta
from jinja2.runtime import Context

from inferway.errors import HeavyError, InferwayError, RenderError, TemplateError
from inferway.model import Reason
from inferway.prompts.chat.bounded_compiler import why_heavy
from inferway.prompts.chat.bounded_templates import (
    BoundedContext,
    bare_environment,
    bounded_environment,
)
from inferway.prompts.chat.content_format import TemplateFacts, detect_content_format
from inferway.prompts.chat.template_environment import (
    CLOCK,
    GenerationSpans,
    RaisedByTemplateError,
    Span,
    names_read,
    note_generation,
    template_environment,
)

Message = dict[str, Any]

MAX_REASON_CHARS = 300

# Written behind the message to continue, and cut off with all that the template puts after it.
# The trailing space tells whether the template strips messages; transformers' very words, so
# that a template which looks at the end of a message sees the same.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "

# What a template gets besides the variables of a ChatInput.
_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

# What an engine tries a template with (`refuses_inline_system`).
_INLINE_SYSTEM = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]

# Names under which transformers hands on what is not for a variable to replace. vLLM keeps such a
# variable from a template that does not read it, and fails with one that does.
_GIVEN = _ARGUMENTS | {"conversations"}


class ChatInput(msgspec.Struct, frozen=True):
    """The variables that a template gets, named as the arguments of `apply_chat_template`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | str = False  # a name: of the field to continue
    variables: Mapping[str, Any] = {}  # special tokens, kwargs


class ChatTemplate(TemplateFacts):
    """A compiled chat template. Raises RenderError if the source is no template.

    `names` are the variables that it may read; only these are handed to it. `reads_clock` tells
    whether its text changes with time. If `bounded`, a rendering takes limited time and memory, or
    ends with HeavyError. `heavy` says why the template is not rendered in this process at all, and
    `given_up` why it is rendered nowhere; whoever finds that out writes them."""

    def __init__(
        self, source: str, *, now: Callable[[], datetime] = datetime.now, bounded: bool = True
    ) -> None:
        self._bounded = bounded
        environment = self._environment = (
            bounded_environment(now) if bounded else template_environment(now)
        )
        try:
            tree = environment.parse(source)
            older, newer = (detect_content_format(tree, in_namespaces=n) for n in (False, True))
            self.names = frozenset(names_read(tree))
            self.heavy = why_heavy(source, tree) if bounded else None
            self.given_up: str | None = None
            template = environment.from_string(tree)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as e:
            raise RenderError(
                f"the chat template does not compile: {e}", reason=Reason.BAD_TEMPLATE
            ) from e
        self._write, self._blocks = template.root_render_func, template.blocks
        self._globals = {n: v for n, v in environment.globals.items() if n in self.names}
        self._variables = tuple(self.names - _ARGUMENTS)
        # vLLM's own test; where it fails, developer messages become system messages.
        knows_developer = '"developer"' in source or "'developer'" in source
        super().__init__(source, older, newer, knows_developer)
        self.reads_clock = CLOCK in self.names

    @cached_property
    def refuses_inline_system(self) -> bool | None:
        """True if the template fails on a system message between the others; None if that cannot be
        told in this process, or if the engine cannot tell it either. It takes milliseconds.

        vLLM 0.32 finds that out when it starts (entrypoints/anthropic/serving.py,
        `_detect_merge_inline_system`): in Jinja's sandbox, without what transformers gives
        templates, so that also a template which calls `raise_exception` for another reason, or
        tells the time, counts as one that takes none."""
        if self.heavy is not None:
            return None
        environment = bare_environment()
        seen = {**environment.globals, "messages": _INLINE_SYSTEM, "add_generation_prompt": False}
        try:
            template = environment.from_string(self.source)
            context = BoundedContext(environment, seen, None, template.blocks)
            context.concat(template.root_render_func(context))
        except jinja2.TemplateError:
            return True
        except (
            Exception
        ):  # HeavyError; and a template may fail in any way, then vLLM does not start
            return None
        return False

    def variables(self) -> set[str]:
        """Return the names of arguments that the template may read: `messages`, `tools`, names in
        `chat_template_kwargs` and so on."""
        return meta.find_undeclared_variables(self._environment.parse(self.source))

    def render(self, chat: ChatInput) -> str:
        """Raises TemplateError if the template refuses this conversation, or HeavyError."""
        if chat.continue_final_message:
            return self._render_open_ended(chat)
        return self._render(self._seen(chat))

    def render_with_spans(self, chat: ChatInput) -> tuple[str, list[Span]]:
        """Return the text, and the spans of `{% generation %}` blocks in it."""
        spans = GenerationSpans()
        pieces = []
        context = self._context(self._seen(chat))
        note_generation(context, spans)
        try:
            for piece in self._write(context):
                pieces.append(piece)
                spans.written += len(piece)
            return self._joined(context, pieces), spans.spans
        except Exception as e:
            raise self._error(e) from e

    def _render(self, seen: dict[str, Any]) -> str:
        # A template is a program of the model's author: it may fail in any way.
        try:
            context = self._context(seen)
            return self._joined(context, self._write(context))
        except Exception as e:
            raise self._error(e) from e

    def _context(self, seen: dict[str, Any]) -> Context:
        if self.heavy is not None:
            raise HeavyError(self.heavy)
        return self._environment.context_class(self._environment, seen, None, self._blocks)

    def _joined(self, context: Context, pieces: Iterable[str]) -> str:
        return context.concat(pieces) if isinstance(context, BoundedContext) else "".join(pieces)

    def _error(self, e: Exception) -> InferwayError:
        if isinstance(e, HeavyError):
            return e
        if self._bounded and isinstance(e, RecursionError):
            return HeavyError("the chat template recurses deeply")  # in an engine a little deeper
        return _template_error(e)

    def _seen(self, chat: ChatInput) -> dict[str, Any]:
        """Every value that the template may look up, by name."""
        variables = chat.variables
        given = _GIVEN & variables.keys()
        if given and (read := given & self.variables()):
            name = min(read)
            raise TemplateError(
                f"chat_template_kwargs: {name!r} is given already",
                param=f"chat_template_kwargs.{name}",
            )
        seen = {
            **self._globals,
            "messages": chat.messages,
            "tools": chat.tools,
            "documents": chat.documents,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        for name in self._variables:
            if name in variables:
                seen[name] = variables[name]
        return seen

    def _render_open_ended(self, chat: ChatInput) -> str:
        if chat.add_generation_prompt:
            raise TemplateError(
                "continue_final_message: cannot be combined with add_generation_prompt (which is"
                " true unless given); send add_generation_prompt: false",
                param="continue_final_message",
            )
        given = chat.continue_final_message
        field = given if isinstance(given, str) else "content"
        if field not in self.source:
            raise _cannot_continue(f"the chat template does not show messages' {field}")
        tagged, final = _tag_final_message(chat.messages, field)
        text = self._render({**self._seen(chat), "messages": tagged})
        tag = _CONTINUE_TAG.strip()
        if final.strip() not in text or tag not in text:
            raise _cannot_continue("the chat template drops or changes the final message")
        end = text.rindex(tag)
        if text[end : end + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
            return text[:end]
        return text[:end].rstrip()


def _template_error(e: Exception) -> TemplateError:
    if isinstance(e, RaisedByTemplateError):
        reason = f"refuses these messages: {str(e)[:MAX_REASON_CHARS]}"
    else:
        # The error's own words may quote the conversation, so only its kind is told.
        reason = f"fails on these messages: {type(e).__name__}"
    return TemplateError(f"the model's chat template {reason}", param="messages")


def _tag_final_message(messages: Sequence[Message], field: str) -> tuple[list[Message], str]:
    """The messages with the tag behind the last text of the last one, and that text."""
    before, final = messages[:-1], messages[-1]
    content = final.get(field)
    if isinstance(content, str):
        return [*before, {**final, field: content + _CONTINUE_TAG}], content
    parts = list(content) if isinstance(content, list) else []
    for i in reversed(range(len(parts))):
        part = parts[i]
        if isinstance(part, dict | str) and "text" not in part:
            continue
        text = part["text"] if isinstance(part, dict) else None
        if not isinstance(text, str):
            break
        parts[i] = {**part, "text": text + _CONTINUE_TAG}
        return [*before, {**final, field: parts}], text
    raise _cannot_continue("the final message has no text to continue")


def _cannot_continue(why: str) -> TemplateError:
    return TemplateError(f"continue_final_message: {why}", param="continue_final_message")
