"""Jobs of the helper process with templates, and the messages to it and back.

Everything that a template can make Jinja do happens in these functions: parsing, folding of
constants, finding out what it wants, rendering. They answer even when the template fails; the
process ends only if it exceeds its limit of memory or time.
"""

from __future__ import annotations

import codecs
import html  # noqa: F401
import json
import pprint  # noqa: F401
import textwrap  # noqa: F401
import time
from functools import lru_cache, partial

import jinja2.constants
import jinja2.debug  # noqa: F401
import msgspec

from inferway.errors import InferwayError, RenderError, TemplateError
from inferway.model import Reason
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.content_format import ContentFormat

INSPECT = f"{__name__}:inspect"
RENDER = f"{__name__}:render"

# What templates make Jinja import, and the time zone, are files: here they can still be opened,
# in the helper process later not.
codecs.lookup("unicode_escape")
time.tzset()

_JSON = b"["  # how a job begins that has no form in msgpack, and none in msgpack does

# Compiled templates that are kept: a client sends the same one again and again.
_MAX_KEPT, _MAX_KEPT_CHARS = 16, 64 << 10

_MAX_WHY_CHARS = 400


class TemplateRefused(msgspec.Struct, frozen=True):
    """The reason why there is no text. `param` is the field of the request, or None if the template
    does not compile."""

    why: str
    param: str | None = None


# What a TemplateFacts has besides the source; or the text that was written.
Facts = tuple[ContentFormat, ContentFormat, bool]
Answer = Facts | str | TemplateRefused

_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def pack(source: str, chat: ChatInput) -> bytes:
    """Return the argument of `render`: a template and what it gets to see; nothing is checked on
    the way. Raises RenderError for what cannot be sent."""
    job = (source, *msgspec.structs.astuple(chat))
    try:
        return msgspec.msgpack.encode(job)
    except (OverflowError, UnicodeEncodeError):
        pass  # integers above 64 bits and lone surrogates, for which msgpack has no form
    except (RecursionError, TypeError) as e:
        raise _unsendable(e) from e
    try:
        return json.dumps(job).encode()
    except (RecursionError, TypeError, ValueError) as e:
        raise _unsendable(e) from e


def _unsendable(e: Exception) -> RenderError:
    return RenderError(
        f"the chat cannot be sent to the helper process: {type(e).__name__}",
        reason=Reason.OUR_FAULT,
    )


def unpack(answer: bytes) -> Answer:
    """Return the answer of `inspect` or `render` from its bytes."""
    return _ANSWERS.decode(answer)


def inspect(source: bytearray) -> bytes:
    """Return the facts of a template."""
    try:
        found = _compiled(source.decode())
    except InferwayError as e:
        return _encode(_refused(e))
    return _encode((found.content_format, found.newer_format, found.knows_developer))


def render(argument: bytearray) -> bytes:
    """Render what `pack` has packed, and return what the template has written, packed as bytes."""
    is_json = argument.startswith(_JSON)
    source, *seen = json.loads(argument) if is_json else msgspec.msgpack.decode(argument)
    try:
        return _encode(_compiled(source).render(ChatInput(*seen)))
    except UnicodeEncodeError:
        return _encode(
            TemplateRefused("writes a lone surrogate, which no encoder accepts", "messages")
        )
    except InferwayError as e:
        if isinstance(e.__cause__, MemoryError):
            raise MemoryError from None
        return _encode(_refused(e))


def _compiled(source: str) -> ChatTemplate:
    try:
        if len(source) > _MAX_KEPT_CHARS:
            return ChatTemplate(source, bounded=False)
        return _kept(source)
    except (InferwayError, MemoryError):
        raise
    # A template can make Jinja fail in ways that Jinja does not foresee.
    except Exception as e:
        raise RenderError(
            f"does not compile: {type(e).__name__}", reason=Reason.BAD_TEMPLATE
        ) from e


_kept = lru_cache(_MAX_KEPT)(partial(ChatTemplate, bounded=False))


def _encode(answer: Answer) -> bytes:
    return msgspec.msgpack.encode(answer)


def _refused(e: InferwayError) -> TemplateRefused:
    """Without the words that say whose template it is."""
    why = str(e).removeprefix("the model's ").removeprefix("the ").removeprefix("chat template ")
    return TemplateRefused(why[:_MAX_WHY_CHARS], e.param if isinstance(e, TemplateError) else None)
