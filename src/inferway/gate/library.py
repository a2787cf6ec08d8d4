"""What the gate needs of the extra `structured`, loaded when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from inferway.errors import SpecError
from inferway_structured.grammar import Unenforced
from inferway_structured.helper.helper import Helper
from inferway_structured.spec import Asked, Spec


class Verdict(msgspec.Struct, frozen=True):
    """What engines with our plugin make of a spec."""

    backend: str
    unenforced: Sequence[Unenforced] = ()
    compile_ms: float = 0.0  # about, before anybody has done it


class Library(Protocol):
    """Every method may take milliseconds; but for `check`, each is called in a thread."""

    @property
    def helper(self) -> Helper | None:
        """Where what is large is done, if there is such a process."""

    async def check(self, asked: Asked) -> None:
        """Whether it is valid and within limits. Raises SpecError, whose `param` is its place in
        the request, or ChecksBusyError."""

    def is_known(self, spec: Spec) -> bool:
        """Whether `check` says at once what there is to say. At once."""

    def close(self) -> None: ...

    def is_costly(self, spec: Spec) -> bool:
        """Whether its verdict may take more than some milliseconds, or memory. At once."""

    def verdict(self, spec: Spec) -> Verdict:
        """Raises SpecError if no backend takes it; HeavyError if only a trial may find that out."""

    def keeps(self, spec: Spec, text: str) -> bool | None:
        """Whether a finished text has the shape; None if that cannot be told."""

    def explain(
        self,
        asked: Asked,
        refused: SpecError | None,
        found: Verdict | SpecError | None,
        refuse_unenforced: bool,
    ) -> dict[str, Any]:
        """In JSON's words. `refused`: by `check`; if it was not, what `verdict` has found.
        `refuse_unenforced`: of what is strict."""


class Trial(Protocol):
    """Works verdicts out where that can be killed (`trial.TrialCompile`)."""

    @property
    def helper(self) -> Helper: ...

    async def verdict(self, spec: Spec) -> Verdict:
        """Raises SpecError, JobKilledError, or another HelperError if it cannot be tried now."""

    def close(self) -> None: ...
