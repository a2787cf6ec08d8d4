"""Chats of a size whose rendering would keep the GIL from everybody else, and those that a template
makes much of: a model's own template, rendered in a helper process.

Jinja runs in Python, so in a thread it gets in the way of the event loop for as long as it runs.
Packing, sending and reading 2 MB takes less than a millisecond of ours; measured, the round trip
takes 3 ms, rendering 20,000 messages 10 to 200 ms.
"""

from __future__ import annotations

import logging
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
from inferway.prompts.chat.template_jobs import RENDER, TemplateRefused, Written, unpack
from inferway_structured.sandbox.process import Limits
from inferway_structured.sandbox.sandbox import Sandbox

log = logging.getLogger("inferway")

# For bodies of the largest size that a client may send; a template that needs more is broken.
LIMITS = Limits(memory_bytes=2 << 30, cpu_seconds=20, wall_seconds=60, result_bytes=256 << 20)


class LargeChats:
    """Starts its process with the first of them. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.helper = Sandbox(
            "inferway.prompts.chat.template_jobs",
            limits=limits,
            max_waiting=32,
            patience_seconds=5.0,
            keep_spare=False,
        )

    def close(self) -> None:
        self.helper.close()

    async def render(self, job: bytes) -> str | None:
        """The text; None if there can be no helper process. Raises TemplateError, or RenderError
        (`helper-busy`) if it takes too much or too many are waiting."""
        try:
            with _as_render_errors("a large chat"):
                return _text(await self.helper.call_async(RENDER, job))
        except SandboxError:
            return None

    async def render_heavy(self, template: ChatTemplate, job: bytes) -> str:
        """Render a small chat with a heavy template in the helper process. Raises what `render`
        raises, and RenderError if there can be no process. A template for which the process was
        killed is given up."""
        with _giving_up(template), _as_render_errors("a chat"):
            return _text(await self.helper.call_async(RENDER, job))

    def render_heavy_now(self, template: ChatTemplate, job: bytes) -> str:
        """The same, and the thread waits."""
        with _giving_up(template), _as_render_errors("a chat"):
            return _text(self.helper.call(RENDER, job))


@contextmanager
def _as_render_errors(what: str) -> Iterator[None]:
    try:
        yield
    except SandboxBusyError as e:
        raise RenderError(str(e), reason=Reason.HELPER_BUSY) from e
    except (JobKilledError, JobFailedError) as e:
        why = f"{what}: the model's chat template {e}"
        raise RenderError(why, reason=Reason.HELPER_BUSY) from e


@contextmanager
def _giving_up(template: ChatTemplate) -> Iterator[None]:
    try:
        yield
    except RenderError as e:
        killed = e.__cause__
        if isinstance(killed, JobKilledError) and not killed.lacked_cpu:
            if template.given_up is None:
                log.error("%s; no chat is rendered with it any more: they go by load", e)
            template.given_up = str(e)
        raise
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
