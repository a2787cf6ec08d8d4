"""How a request's endpoints are chosen, whole: what a configuration comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from inferway.errors import SaturatedError
from inferway.metrics import Family
from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.admitters import UtilizationDetector
from inferway.scheduling.plugin import (
    Admitter,
    DataProducer,
    Measured,
    ProfileHandler,
    RequestListenerFactory,
)

# Who looks after full engines where no other is asked for.
DEFAULT_ADMITTERS: Sequence[Admitter] = (UtilizationDetector(),)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The chooser, and who joins the request path beside it."""

    chooser: ProfileHandler
    producers: Sequence[DataProducer] = ()
    admitters: Sequence[Admitter] = DEFAULT_ADMITTERS
    following: Sequence[RequestListenerFactory] = ()
    measured: Sequence[Measured] = ()
    notes: Sequence[str] = ()  # what of the configuration is not in force, and why

    def admit(self, request: LLMRequest, candidates: Candidates) -> None:
        """Ask all admitters. Raises SaturatedError if one refuses."""
        for admitter in self.admitters:
            refusal = admitter.refusal(request, candidates)
            if refusal is not None:
                raise SaturatedError(refusal)

    def families(self) -> Iterator[Family]:
        """Yield the plugins' own metric families."""
        for plugin in self.measured:
            yield from plugin.families()
