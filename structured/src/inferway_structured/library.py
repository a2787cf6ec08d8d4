"""What shapes and answers are held against: the libraries of the extra `backends`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from inferway_structured.backends import cascade
from inferway_structured.checker import HELPER_LIMITS, Checker
from inferway_structured.cost import is_costly
from inferway_structured.errors import HeavyError, SpecError, crash_report, panic_as_error
from inferway_structured.grammar import Verdict
from inferway_structured.helper.helper import Helper
from inferway_structured.helper.process import Limits as HelperLimits
from inferway_structured.spec import Asked, Spec
from inferway_structured.trial import Trial
from inferway_structured.valid import Validator

log = logging.getLogger("inferway.structured")


class GrammarLibrary:
    """A `verdicts.Library`. Any thread may use it. Close it."""

    def __init__(
        self, helper_limits: HelperLimits = HELPER_LIMITS, *, trial: Trial | None = None
    ) -> None:
        """Loads the libraries, which takes tens of milliseconds. `helper_limits` bound a check."""
        self._checker = Checker(helper_limits=helper_limits)
        self._validator = Validator(self._checker.helper)
        self._trial = trial or Trial()

    @property
    def helpers(self) -> Mapping[str, Helper]:
        """The process that checks what is large and judges answers, and that of trials."""
        return {"structured-trial": self._trial.helper, "structured": self._checker.helper}

    async def check(self, asked: Asked) -> None:
        """Raises SpecError for what is invalid or over a limit, or ChecksBusyError."""
        await self._checker.check(asked)

    def is_known(self, spec: Spec) -> bool:
        """Whether `check` has its answer at once."""
        return self._checker.is_known(spec)

    def is_costly(self, spec: Spec) -> bool:
        """Whether the verdict may take more than some milliseconds, or memory."""
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
        JobKilledError, or another HelperError if it cannot be tried now."""
        return await self._trial.verdict(spec)

    def keeps(self, spec: Spec, text: str) -> bool | None:
        """Whether a finished text has the shape; None if that cannot be told."""
        try:
            return self._validator.verdict(spec, text).valid
        except BaseException as e:
            log.error(
                "an answer could not be judged by the shape that was asked for: %s",
                crash_report(panic_as_error(e)),
            )
            return None

    def close(self) -> None:
        """End the processes."""
        self._checker.close()
        self._trial.close()
