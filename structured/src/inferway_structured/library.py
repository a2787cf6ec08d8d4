"""The library that shapes and answers are held against: it needs the extra `backends`.

A thread checks what is small and plain; what is large, or is a grammar, or spells out many repeats
goes to a helper process, which ends with the job that passes its limits: that spec is refused then.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import NoReturn

from inferway_structured.backends import cascade
from inferway_structured.compile.compile_trial import Trial
from inferway_structured.compile.cost import is_costly
from inferway_structured.errors import (
    ChecksBusyError,
    HeavyError,
    JobFailedError,
    JobKilledError,
    SandboxBusyError,
    SandboxError,
    SpecError,
    crash_report,
    is_panic,
    panic_as_error,
)
from inferway_structured.grammar import Verdict
from inferway_structured.sandbox.process import Limits as HelperLimits
from inferway_structured.sandbox.sandbox import Sandbox
from inferway_structured.spec import Spec, packed
from inferway_structured.turns import MAX_WAITING, WAIT_SECONDS
from inferway_structured.validate.check import CHECK, DEFAULT, check
from inferway_structured.validate.limits import SpecLimits
from inferway_structured.validate.validator import is_valid_within

log = logging.getLogger("inferway.structured")

HELPER_LIMITS = HelperLimits(memory_bytes=512 << 20, cpu_seconds=1, wall_seconds=1.9, niceness=19)

# A helper imports nothing once its limits hold.
_MODULES = (
    *(
        "inferway_structured.validate.check",
        "inferway_structured.validate.validator",
        "jsonschema_rs",
    ),
    *("llguidance", "llguidance.gbnf_to_lark"),
)
_KILLED = {
    "cpu": "takes more processor time than a check may use",
    "memory": "takes more memory than a check may use",
}
_CRASHED = "brings down the library that reads it"


class GrammarLibrary:
    """A `verdicts.Library`. Any thread and any event loop may use it. Close it."""

    def __init__(
        self,
        helper_limits: HelperLimits = HELPER_LIMITS,
        *,
        limits: SpecLimits = DEFAULT,
        trial: Trial | None = None,
    ) -> None:
        """Loads the libraries now, for tens of milliseconds: later, the event loop would wait.
        `helper_limits` bound a check, `limits` are those that a spec is checked for."""
        import jsonschema_rs  # noqa: F401
        import llguidance  # noqa: F401

        self._limits = limits
        self._helper = Sandbox(
            *_MODULES,
            limits=helper_limits,
            max_waiting=MAX_WAITING,
            patience_seconds=WAIT_SECONDS,
            keep_spare=False,
        )
        # One that checks: of two, one would go on where the event loop waits for its turn.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="check")
        self._trial = trial or Trial()

    @property
    def helpers(self) -> Mapping[str, Sandbox]:
        """The process of trials, and the one that checks what is large and judges answers."""
        return {"structured-trial": self._trial.helper, "structured": self._helper}

    async def check(self, spec: Spec) -> None:
        """Raises SpecError for what is invalid or over a limit, or ChecksBusyError."""
        if is_costly(spec):
            await self._check_apart(spec)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self._check_here, spec)

    def _check_here(self, spec: Spec) -> None:
        try:
            check(spec, self._limits)
        except SpecError as e:
            _refuse(str(e), e.place, e.keyword)
        except BaseException as e:
            if not is_panic(e):
                raise
            _refuse(_CRASHED)

    async def _check_apart(self, spec: Spec) -> None:
        try:
            said = await self._helper.call_async(CHECK, packed(spec, limits=asdict(self._limits)))
        except JobKilledError as e:
            if e.lacked_cpu:
                words = f"the check {e}, for lack of CPU; try again in a moment"
                raise ChecksBusyError(words) from None
            _refuse(f"{_KILLED.get(e.limit, _CRASHED)}; simplify it")
        except SandboxBusyError as e:
            raise ChecksBusyError(str(e)) from None
        except SandboxError as e:
            if isinstance(e, JobFailedError) and "PanicException" in str(e):
                _refuse(_CRASHED)
            raise ChecksBusyError(f"shapes cannot be checked now: {e}") from None
        if said:
            _refuse(*json.loads(said))

    def is_costly(self, spec: Spec) -> bool:
        """Return whether the verdict may take more than some milliseconds, or memory."""
        return is_costly(spec)

    def verdict(self, spec: Spec) -> Verdict:
        """Return the verdict. Raises SpecError if no backend takes the spec, HeavyError if only a
        trial may find that out."""
        try:
            return cascade.light_verdict(spec)
        except (SpecError, HeavyError):
            raise
        except BaseException as raised:
            e = panic_as_error(raised)
            log.error("the grammar library failed on a request's shape: %s", crash_report(e))
            raise SpecError(f"the grammar library fails on it: {type(e).__name__}") from None

    async def trial(self, spec: Spec) -> Verdict:
        """Return the verdict, worked out where that can be killed. Raises SpecError,
        JobKilledError, or another SandboxError if it cannot be tried now."""
        return await self._trial.verdict(spec)

    def is_valid(self, spec: Spec, text: str) -> bool | None:
        """Return whether a finished text has the shape; None if that cannot be told."""
        try:
            return is_valid_within(spec, text, self._helper)
        except BaseException as e:
            log.error(
                "an answer could not be judged by the shape that was asked for: %s",
                crash_report(panic_as_error(e)),
            )
            return None

    def close(self) -> None:
        """End the processes. Checks that wait end with an error."""
        self._helper.close()
        self._trial.close()
        self._thread.shutdown(wait=True, cancel_futures=True)


def _refuse(words: str, place: str = "", keyword: str | None = None) -> NoReturn:
    """Raises SpecError, cut where names are so long that many refusals would fill the memory."""
    raise SpecError(words[:600], place=place[:600], keyword=keyword and keyword[:200]) from None
