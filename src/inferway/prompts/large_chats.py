"""Chats of a size whose rendering would keep the GIL from everybody else: a model's own template,
rendered in a helper process.

Jinja runs in Python, so in a thread it gets in the way of the event loop for as long as it runs.
Packing, sending and reading 2 MB takes less than a millisecond of ours; measured, the round trip
takes 3 ms, rendering 20,000 messages 10 to 200 ms.
"""

from __future__ import annotations

from inferway.errors import (
    HelperBusyError,
    HelperError,
    JobFailedError,
    JobKilledError,
    RenderError,
    TemplateError,
)
from inferway.helper.helper import Helper
from inferway.helper.process import Limits
from inferway.model import Reason
from inferway.prompts.template_jobs import RENDER, Refused, Written, unpack

# For bodies of the largest size that a client may send; a template that needs more is broken.
LIMITS = Limits(memory_bytes=2 << 30, cpu_seconds=20, wall_seconds=60, result_bytes=256 << 20)


class LargeChats:
    """Starts its process with the first of them. Close it."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.helper = Helper(
            "inferway.prompts.template_jobs",
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
            answer = unpack(await self.helper.call_async(RENDER, job))
        except HelperBusyError as e:
            raise RenderError(str(e), reason=Reason.HELPER_BUSY) from e
        except (JobKilledError, JobFailedError) as e:
            why = f"a large chat: the model's chat template {e}"
            raise RenderError(why, reason=Reason.HELPER_BUSY) from e
        except HelperError:
            return None
        if isinstance(answer, Refused):
            raise _error(answer)
        assert isinstance(answer, Written)
        return answer.text


def _error(refused: Refused) -> TemplateError | RenderError:
    """As if the template had failed in this process."""
    if refused.param is None:
        return RenderError(f"the chat template {refused.why}", reason=Reason.BAD_TEMPLATE)
    whose = "the model's chat template " if refused.param == "messages" else ""
    return TemplateError(f"{whose}{refused.why}", param=refused.param)
