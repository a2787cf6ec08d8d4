"""Chat templates that are rendered in helper processes, which can be killed: those that requests
bring, untrusted programs that are never compiled here; and a model's own, for chats that it makes
much of, or that are so large that rendering would keep the GIL from everybody else.

Jinja runs in Python, so in a thread it gets in the way of the event loop for as long as it runs.
Packing, sending and reading 2 MB takes less than a millisecond of ours; measured, the round trip
takes 3 ms.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from inferway.errors import (
    InferwayError,
    JobFailedError,
    JobKilledError,
    RenderError,
    SandboxBusyError,
    SandboxError,
    TemplateError,
)
from inferway.model import Reason
from inferway.prompts.chat.chat_template import ChatInput, ChatTemplate
from inferway.prompts.chat.content_format import ContentFormat
from inferway.prompts.chat.template_environment import CLOCK
from inferway.prompts.chat.template_jobs import (
    INSPECT,
    RENDER,
    Facts,
    TemplateRefused,
    Written,
    pack,
    unpack,
)
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox

log = logging.getLogger("inferway")

# For bodies of the largest size that a client may send; a template that needs more is broken.
_LARGE = Limits(memory_bytes=2 << 30, cpu_seconds=20, wall_seconds=60, result_bytes=256 << 20)


class LargeChats:
    """Renders chats with a model's own templates. Starts its process with the first of them. Close
    it."""

    def __init__(self, limits: Limits = _LARGE) -> None:
        self.helper = Sandbox(
            "inferway.prompts.chat.template_jobs",
            limits=limits,
            max_waiting=32,
            patience_seconds=5.0,
            keep_spare=False,
        )

    def close(self) -> None:
        self.helper.close()

    async def render(self, job: bytes, blamed: ChatTemplate | None = None) -> str:
        """Return the text. Raises TemplateError, or RenderError: `helper-busy` if it takes too much
        or too many are waiting, `our-fault` if there can be no process. `blamed`: the template of a
        small chat, which is given up if the process is killed."""
        with _errors(blamed):
            return _text(await self.helper.call_async(RENDER, job))

    def render_now(self, job: bytes, blamed: ChatTemplate) -> str:
        """The same, and the thread waits."""
        with _errors(blamed):
            return _text(self.helper.call(RENDER, job))


@contextmanager
def _errors(blamed: ChatTemplate | None) -> Iterator[None]:
    try:
        yield
    except SandboxBusyError as e:
        raise RenderError(str(e), reason=Reason.HELPER_BUSY) from e
    except (JobKilledError, JobFailedError) as e:
        why = f"a {'large ' if blamed is None else ''}chat: the model's chat template {e}"
        if blamed is not None and isinstance(e, JobKilledError) and not e.lacked_cpu:
            if blamed.given_up is None:
                log.error("%s; no chat is rendered with it any more: they go by load", why)
            blamed.given_up = why
        raise RenderError(why, reason=Reason.HELPER_BUSY) from e
    except SandboxError as e:
        raise RenderError(str(e), reason=Reason.OUR_FAULT) from e


def _text(answer: bytes) -> str:
    made = unpack(answer)
    if isinstance(made, TemplateRefused):
        raise _error(made)
    assert isinstance(made, Written)
    return made.text


def _error(refused: TemplateRefused) -> TemplateError | RenderError:
    """As if the template had failed in this process."""
    if refused.param is None:
        return RenderError(f"the chat template {refused.why}", reason=Reason.BAD_TEMPLATE)
    whose = "the model's chat template " if refused.param == "messages" else ""
    return TemplateError(f"{whose}{refused.why}", param=refused.param)


# The largest of 347 real templates has 19,000 characters.
MAX_TEMPLATE_CHARS = 1 << 20

_UNTRUSTED = Limits(memory_bytes=256 << 20, cpu_seconds=2, wall_seconds=5, result_bytes=32 << 20)

CACHE_BYTES = 32 << 20
_BYTES_PER_ENTRY = 200  # its key, and its place in the dict
MAX_KNOWN_TEMPLATES = 256


_Wanted = TypeVar("_Wanted", Facts, Written)


class RequestTemplate(msgspec.Struct, frozen=True):
    """A template that is never compiled here, and what the rules for conversations go by."""

    source: str
    content_format: ContentFormat
    newer_format: ContentFormat
    knows_developer: bool


class TemplateRendering(msgspec.Struct, frozen=True):
    """A rendering, packed. `key` is what its text is kept by; None: it is not kept."""

    packed: bytes
    key: bytes | None


class RequestTemplates:
    """Renders them for all models. Close it."""

    def __init__(self, limits: Limits = _UNTRUSTED, cache_bytes: int = CACHE_BYTES) -> None:
        self.helper = Sandbox("inferway.prompts.chat.template_jobs", limits=limits)
        self.num_cache_hits = 0
        self._texts = _Texts(cache_bytes)
        self._facts: OrderedDict[bytes, Facts] = OrderedDict()

    async def start(self) -> None:
        """Raises HelperError if there can be no helper process."""
        await self.helper.call_async(INSPECT, b"")

    def close(self) -> None:
        self.helper.close()

    async def template(self, source: str) -> RequestTemplate:
        """Raises TemplateError if it does not compile, RenderError if we cannot tell."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise _bad(f"has {len(source)} characters, allowed are {MAX_TEMPLATE_CHARS}")
        key = hashlib.sha256(source.encode("utf-8", "surrogatepass")).digest()
        facts = self._facts.get(key)
        if facts is None:
            facts = await self._ask(INSPECT, _utf8(source), Facts)
            self._facts[key] = facts
            if len(self._facts) > MAX_KNOWN_TEMPLATES:
                self._facts.popitem(last=False)
        formats = facts.content_format, facts.newer_format
        return RequestTemplate(source, *formats, facts.knows_developer)

    async def render(self, job: TemplateRendering) -> str:
        """The job's text. Raises TemplateError or RenderError."""
        text = None if job.key is None else self._texts.get(job.key)
        if text is not None:
            self.num_cache_hits += 1
            return text
        text = (await self._ask(RENDER, job.packed, Written)).text
        if job.key is not None:
            self._texts.put(job.key, text)
        return text

    async def _ask(self, function: str, argument: bytes, wanted: type[_Wanted]) -> _Wanted:
        try:
            answer = unpack(await self.helper.call_async(function, argument))
        except SandboxError as e:
            raise _failed(e) from e
        if isinstance(answer, TemplateRefused):
            if answer.param in (None, "messages"):
                raise _bad(answer.why)
            raise TemplateError(answer.why, param=answer.param)
        assert isinstance(answer, wanted)
        return answer


def prepare(source: str, chat: ChatInput) -> TemplateRendering:
    """Packs a rendering; takes a while for large chats. Raises RenderError for what cannot be
    packed."""
    packed = pack(source, chat)
    # Jinja looks up a global by a name that stands in the source as it is, and in no other way.
    reads_clock = CLOCK in source
    return TemplateRendering(packed, None if reads_clock else hashlib.sha256(packed).digest())


def _utf8(source: str) -> bytes:
    try:
        return source.encode()
    except UnicodeEncodeError as e:
        raise _bad("has a lone surrogate") from e


def _failed(e: SandboxError) -> InferwayError:
    """What the client is told, or why the request goes by load only."""
    if isinstance(e, JobKilledError):
        if e.lacked_cpu:
            return RenderError(f"the request's template {e}", reason=Reason.HELPER_BUSY)
        return _bad(str(e))
    if isinstance(e, JobFailedError):
        return _bad(f"fails: {e}")
    if isinstance(e, SandboxBusyError):
        return RenderError(str(e), reason=Reason.HELPER_BUSY)
    return RenderError(str(e), reason=Reason.OUR_FAULT)


def _bad(why: str) -> TemplateError:
    return TemplateError(f"chat_template: the request's template {why}", param="chat_template")


class _Texts:
    """What was written, least recently used first; at most `max_bytes` of it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def get(self, key: bytes) -> str | None:
        text = self._texts.get(key)
        if text is not None:
            self._texts.move_to_end(key)
        return text

    def put(self, key: bytes, text: str) -> None:
        size = _bytes(text)
        if key in self._texts or size > self._max_bytes // 4:
            return  # one text is not worth all the others
        self._texts[key] = text
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, oldest = self._texts.popitem(last=False)
            self.num_bytes -= _bytes(oldest)


def _bytes(text: str) -> int:
    return sys.getsizeof(text) + _BYTES_PER_ENTRY
