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
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from inferway.errors import (
    JobFailedError,
    JobKilledError,
    RenderError,
    SandboxBusyError,
    SandboxError,
    TemplateError,
)
from inferway.model import Reason
from inferway.prompts.chat.chat_template import ChatTemplate
from inferway.prompts.chat.content_format import TemplateFacts
from inferway.prompts.chat.template_jobs import (
    INSPECT,
    RENDER,
    Answer,
    Facts,
    TemplateRefused,
    unpack,
)
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox

log = logging.getLogger("inferway")

_JOBS = "inferway.prompts.chat.template_jobs"

# For bodies of the largest size that a client may send; a template that needs more is broken.
_LARGE = Limits(memory_bytes=2 << 30, cpu_seconds=20, wall_seconds=60, result_bytes=256 << 20)


class LargeChats:
    """Renders chats with a model's own templates. Starts its process with the first of them. Close
    it."""

    def __init__(self, limits: Limits = _LARGE) -> None:
        self.helper = Sandbox(
            _JOBS, limits=limits, max_waiting=32, patience_seconds=5.0, keep_spare=False
        )

    def close(self) -> None:
        self.helper.close()

    async def render(self, job: bytes, blamed: ChatTemplate | None = None) -> str:
        """Return the text of a chat that `pack` has packed. Raises TemplateError, or RenderError:
        `helper-busy` if it takes too much or too many are waiting, `our-fault` if there can be no
        process. `blamed`: the template of a small chat, which is given up if the process is
        killed."""
        with _errors(blamed):
            return _text(await self.helper.call_async(RENDER, job))

    def render_now(self, job: bytes, blamed: ChatTemplate) -> str:
        """Return what `render` does; the calling thread waits."""
        with _errors(blamed):
            return _text(self.helper.call(RENDER, job))


@contextmanager
def _errors(blamed: ChatTemplate | None) -> Iterator[None]:
    try:
        yield
    except (JobKilledError, JobFailedError) as e:
        why = f"a {'large ' if blamed is None else ''}chat: the model's chat template {e}"
        if blamed is not None and isinstance(e, JobKilledError) and not e.lacked_cpu:
            if blamed.given_up is None:
                log.error("%s; no chat is rendered with it any more: they go by load", why)
            blamed.given_up = why
        raise RenderError(why, reason=Reason.HELPER_BUSY) from e
    except SandboxError as e:
        raise _unserved(e) from e


def _unserved(e: SandboxError) -> RenderError:
    """The error of a job that was not begun."""
    is_busy = isinstance(e, SandboxBusyError)
    return RenderError(str(e), reason=Reason.HELPER_BUSY if is_busy else Reason.OUR_FAULT)


def _text(answer: bytes) -> str:
    """Return what was written. Raises as if the template had failed in this process."""
    made = unpack(answer)
    if not isinstance(made, TemplateRefused):
        return str(made)
    if made.param is None:
        raise RenderError(f"the chat template {made.why}", reason=Reason.BAD_TEMPLATE)
    whose = "the model's chat template " if made.param == "messages" else ""
    raise TemplateError(f"{whose}{made.why}", param=made.param)


# The largest of 347 real templates has 19,000 characters.
MAX_TEMPLATE_CHARS = 1 << 20

_UNTRUSTED = Limits(memory_bytes=256 << 20, cpu_seconds=2, wall_seconds=5, result_bytes=32 << 20)

MAX_KNOWN_TEMPLATES = 256


class RequestTemplates:
    """Renders chats with the templates that requests bring, for all models. Close it."""

    def __init__(self, limits: Limits = _UNTRUSTED) -> None:
        self.helper = Sandbox(_JOBS, limits=limits)
        self._known: OrderedDict[bytes, Facts] = OrderedDict()

    async def start(self) -> None:
        """Raises SandboxError if there can be no helper process."""
        await self.helper.call_async(INSPECT, b"")

    def close(self) -> None:
        self.helper.close()

    async def template(self, source: str) -> TemplateFacts:
        """Raises TemplateError if it does not compile, RenderError if we cannot tell."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise _bad(f"has {len(source)} characters, allowed are {MAX_TEMPLATE_CHARS}")
        try:
            argument = source.encode()
        except UnicodeEncodeError as e:
            raise _bad("has a lone surrogate") from e
        key = hashlib.sha256(argument).digest()
        facts = self._known.get(key)
        if facts is None:
            answer = await self._ask(INSPECT, argument)
            assert isinstance(answer, tuple)
            facts = self._known[key] = answer
            if len(self._known) > MAX_KNOWN_TEMPLATES:
                self._known.popitem(last=False)
        return TemplateFacts(source, *facts)

    async def render(self, job: bytes) -> str:
        """Return the text of a chat that `pack` has packed. Raises TemplateError or RenderError."""
        return str(await self._ask(RENDER, job))

    async def _ask(self, function: str, argument: bytes) -> Answer:
        try:
            answer = unpack(await self.helper.call_async(function, argument))
        except JobKilledError as e:
            if e.lacked_cpu:
                why = f"the request's template {e}"
                raise RenderError(why, reason=Reason.HELPER_BUSY) from e
            raise _bad(str(e)) from e
        except JobFailedError as e:
            raise _bad(f"fails: {e}") from e
        except SandboxError as e:
            raise _unserved(e) from e
        if not isinstance(answer, TemplateRefused):
            return answer
        if answer.param in (None, "messages"):
            raise _bad(answer.why)
        raise TemplateError(answer.why, param=answer.param)


def _bad(why: str) -> TemplateError:
    return TemplateError(f"chat_template: the request's template {why}", param="chat_template")
