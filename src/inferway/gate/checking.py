"""The extra `structured`, as the gate uses it."""

from __future__ import annotations

import logging
from typing import Any

from inferway.errors import HeavyError, SpecError, crash_report, panic_as_error
from inferway.gate.library import Verdict
from inferway_structured.backends import cascade
from inferway_structured.checker import Checker
from inferway_structured.cost import estimated_seconds, is_costly
from inferway_structured.explain import explain
from inferway_structured.helper.helper import Helper
from inferway_structured.limits import Limits
from inferway_structured.spec import Asked, Spec
from inferway_structured.valid import Validator

log = logging.getLogger("inferway.gate")


class Checking:
    """A `library.Library`."""

    def __init__(self) -> None:
        self._checker = Checker()
        self._validator = Validator(self._checker.helper)

    @property
    def helper(self) -> Helper:
        """What is large, or may hang, is checked there, and answers are held against it."""
        return self._checker.helper

    async def check(self, asked: Asked) -> None:
        await self._checker.check(asked)

    def is_known(self, spec: Spec) -> bool:
        return self._checker.is_known(spec)

    def close(self) -> None:
        self._checker.close()

    def is_costly(self, spec: Spec) -> bool:
        return is_costly(spec)

    def verdict(self, spec: Spec) -> Verdict:
        try:
            backend, unenforced = cascade.light_verdict(spec)
        except (SpecError, HeavyError):
            raise
        except BaseException as raised:
            e = panic_as_error(raised)
            log.error(
                "the grammar library failed on a request's shape: %s",
                crash_report(e),
            )
            raise SpecError(f"the grammar library fails on it: {type(e).__name__}") from None
        return Verdict(backend, unenforced, estimated_seconds(spec) * 1000)

    def explain(
        self,
        asked: Asked,
        refused: SpecError | None,
        found: Verdict | SpecError | None,
        refuse_unenforced: bool,
    ) -> dict[str, Any]:
        def check(_: Spec) -> None:
            if refused is not None:
                raise refused

        def verdict(_: Spec) -> Verdict:
            assert found is not None
            if isinstance(found, SpecError):
                raise found
            return found

        return explain(
            asked,
            check=check,
            verdict=verdict,
            limits=Limits(),
            refuse_unenforced=refuse_unenforced,
        )

    def keeps(self, spec: Spec, text: str) -> bool | None:
        try:
            return self._validator.verdict(spec, text).valid
        except BaseException as e:
            log.error(
                "an answer could not be judged by the shape that was asked for: %s",
                crash_report(panic_as_error(e)),
            )
            return None
