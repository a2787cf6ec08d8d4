"""A trial compile where it can be killed: a spec -> its verdict, or what it was killed for."""

from __future__ import annotations

from inferway.gate.library import Verdict
from inferway_structured import trial
from inferway_structured.helper.helper import Helper
from inferway_structured.helper.process import Limits
from inferway_structured.spec import Spec


class TrialCompile:
    """Close it."""

    def __init__(self, limits: Limits = trial.LIMITS, *, keep_spare: bool = True) -> None:
        self.helper = Helper(
            trial.__name__,
            limits=limits,
            max_waiting=trial.MAX_WAITING,
            patience_seconds=trial.PATIENCE_SECONDS,
            keep_spare=keep_spare,
            prepare=(trial.PREPARE, b"-"),
        )

    async def verdict(self, spec: Spec) -> Verdict:
        """Raises SpecError, JobKilledError, or another HelperError if it cannot be tried now."""
        said = await self.helper.call_async(trial.JUDGE, trial.argument(spec))
        found = trial.judged(said)
        return Verdict(found.backend, found.unenforced, found.compile_seconds * 1000)

    def close(self) -> None:
        self.helper.close()
