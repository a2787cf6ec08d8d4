"""A Jinja chat template -> text, exactly as transformers' `apply_chat_template` renders it.

The environment's rules (transformers utils/chat_template_utils.py): immutable sandbox,
`trim_blocks` and `lstrip_blocks`, loop controls, `tojson` that escapes no HTML and keeps
non-ASCII text, `raise_exception`, `strftime_now`, and `{% generation %}` around what the
assistant wrote. A template is compiled once; rendering keeps no state, so any thread may.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inferway.errors import RenderError, TemplateError
from inferway.model import Reason
from inferway.prompts.content_format import ContentFormat, detect_content_format

Message = dict[str, Any]

# [start, end) in characters of the rendered text.
Span = tuple[int, int]

MAX_REASON_CHARS = 300

# Written behind the message to continue, and cut off with all that the template puts after it.
# The trailing space tells whether the template strips messages; transformers' very words, so
# that a template which looks at the end of a message sees the same.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "

_SPANS = "_inferway_generation_spans"


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What a template gets to see, in the words of `apply_chat_template`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)  # special tokens, kwargs

    def context(self) -> dict[str, Any]:
        named = {
            "messages": self.messages,
            "tools": self.tools,
            "documents": self.documents,
            "add_generation_prompt": self.add_generation_prompt,
        }
        clash = sorted(named.keys() & self.variables.keys())
        if clash:
            raise TemplateError(
                f"chat_template_kwargs: {clash[0]!r} is given already",
                param=f"chat_template_kwargs.{clash[0]}",
            )
        return {**self.variables, **named}


class ChatTemplate:
    """One compiled template. Raises RenderError if the source is no template."""

    def __init__(self, source: str, *, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as e:
            raise RenderError(
                f"the chat template does not compile: {e}", reason=Reason.BAD_TEMPLATE
            ) from e
        self.content_format: ContentFormat = detect_content_format(tree)
        # vLLM's own test; where it fails, developer messages become system messages.
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self.reads_clock = "strftime_now" in source

    def render(self, chat: ChatInput) -> str:
        """Raises TemplateError if the template refuses this conversation."""
        if chat.continue_final_message:
            return self._render_open_ended(chat)
        return self._render(chat.context())

    def render_with_spans(self, chat: ChatInput) -> tuple[str, list[Span]]:
        """The text, and where `{% generation %}` blocks stand in it."""
        spans = _GenerationSpans()
        pieces = []
        try:
            for piece in self._template.generate({**chat.context(), _SPANS: spans}):
                pieces.append(piece)
                spans.written += len(piece)
        except Exception as e:
            raise _template_error(e) from e
        return "".join(pieces), spans.spans

    def _render(self, context: dict[str, Any]) -> str:
        # A template is a program of the model's author: it may fail in any way.
        try:
            return self._template.render(context)
        except Exception as e:
            raise _template_error(e) from e

    def _render_open_ended(self, chat: ChatInput) -> str:
        if chat.add_generation_prompt:
            raise TemplateError(
                "continue_final_message: cannot be combined with add_generation_prompt (which is"
                " true unless given); send add_generation_prompt: false",
                param="continue_final_message",
            )
        if "content" not in self.source:
            raise _cannot_continue("the chat template does not show messages' content")
        tagged, final = _tag_final_message(chat.messages)
        context = {**chat.context(), "messages": tagged}
        text = self._render(context)
        tag = _CONTINUE_TAG.strip()
        if final.strip() not in text or tag not in text:
            raise _cannot_continue("the chat template drops or changes the final message")
        end = text.rindex(tag)
        if text[end : end + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
            return text[:end]
        return text[:end].rstrip()


def _template_error(e: Exception) -> TemplateError:
    if isinstance(e, _RaisedByTemplateError):
        reason = f"refuses these messages: {str(e)[:MAX_REASON_CHARS]}"
    else:
        # The error's own words may quote the conversation, so only its kind is told.
        reason = f"fails on these messages: {type(e).__name__}"
    return TemplateError(f"the model's chat template {reason}", param="messages")


class _RaisedByTemplateError(jinja2.TemplateError):
    """The template called `raise_exception`."""


def _raise_exception(message: object) -> None:
    raise _RaisedByTemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


# What `loop` shows. The sandbox checks each access anew, which is most of a long chat's
# rendering; these are safe for every template.
_LOOP_NAMES = frozenset(
    name
    for name in vars(LoopContext)
    if isinstance(vars(LoopContext)[name], property) and not name.startswith("_")
) | {"index0"}


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a short way to `loop.first` and its like."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    return environment


@dataclass(slots=True)
class _GenerationSpans:
    """Written by one rendering: how much text is out, and the generation blocks in it."""

    written: int = 0
    spans: list[Span] = field(default_factory=list)


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: renders its body, and notes where it stands."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    @jinja2.pass_context
    def _note(self, context: Context, caller: Macro) -> str:
        text: str = caller()
        spans = context.get(_SPANS)
        if isinstance(spans, _GenerationSpans):
            spans.spans.append((spans.written, spans.written + len(text)))
        return text


def _tag_final_message(messages: Sequence[Message]) -> tuple[list[Message], str]:
    """The messages with the tag behind the last text of the last one, and that text."""
    final = dict(messages[-1])
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _CONTINUE_TAG
        return [*messages[:-1], final], content
    parts = list(content) if isinstance(content, list) else []
    for i in reversed(range(len(parts))):
        if "text" in parts[i]:
            text: str = parts[i]["text"]
            parts[i] = {**parts[i], "text": text + _CONTINUE_TAG}
            final["content"] = parts
            return [*messages[:-1], final], text
    raise _cannot_continue("the final message has no text to continue")


def _cannot_continue(why: str) -> TemplateError:
    return TemplateError(f"continue_final_message: {why}", param="continue_final_message")
