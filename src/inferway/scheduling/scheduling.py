"""The whole choice of a request's endpoints, as a configuration asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from inferway.errors import SaturatedError
from inferway.metrics import Family
from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.admitters import UtilizationDetector
from inferway.scheduling.flow_control.flow import FlowControl
from inferway.scheduling.plugin import (
    AdmitsInTime,
    Admitter,
    DataProducer,
    Measured,
    ProfileHandler,
    RequestListenerFactory,
)
from inferway.scheduling.session_admission import SessionAdmission
from inferway.scheduling.session_id import NamesSession

# The admitters that look after full engines where no other is asked for.
DEFAULT_ADMITTERS: Sequence[Admitter] = (UtilizationDetector(),)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The chooser, and the plugins that join the request path beside it."""

    chooser: ProfileHandler
    producers: Sequence[DataProducer] = ()
    admitters: Sequence[Admitter] = DEFAULT_ADMITTERS
    following: Sequence[RequestListenerFactory] = ()
    measured: Sequence[Measured] = ()
    notes: Sequence[str] = ()  # what of the configuration is not in force, and why
    late_admitters: Sequence[Admitter] = ()  # those that read columns
    flow_control: FlowControl | None = None  # None: requests wait as the settings have it
    agents: NamesSession | None = None  # reads which agent a request is of
    sessions: SessionAdmission | None = None  # lets new sessions wait; None: they do not wait
    in_time: AdmitsInTime | None = None  # lets requests wait for an engine; None: none waits

    def admit(self, request: LLMRequest, candidates: Candidates) -> None:
        """Ask the admitters that need no columns. Raises SaturatedError if one refuses."""
        _ask(self.admitters, request, candidates)

    def admit_late(self, request: LLMRequest, candidates: Candidates) -> None:
        """Ask the others, once the producers have run. Raises SaturatedError if one refuses."""
        _ask(self.late_admitters, request, candidates)

    def without_queue(self) -> Scheduling:
        """Return the same for a gateway where no request waits: who would wait for a place is
        refused if it is sheddable."""
        said = "the endpoint picker has no queue; nothing waits"
        flow, notes, admitters = self.flow_control, [*self.notes], [*self.admitters]
        if self.in_time is not None:
            notes.append(f"goodput-admission: {said}")
        if flow is not None:
            notes.append(f"flowControl: {said}")
            admitters.append(flow.detector)
        return replace(self, flow_control=None, in_time=None, admitters=admitters, notes=notes)

    def without_sessions(self, why: str, *, knows_all: bool) -> Scheduling:
        """Return the same where no session waits, and why, for the log. `knows_all`: all turns of a
        session come by here, so that it can be kept at one endpoint."""
        if self.sessions is None:
            return self
        self.sessions.abstains = not knows_all
        following = [each for each in self.following if knows_all or each is not self.sessions]
        said = "no session waits" if knows_all else "it has no effect"
        notes = (*self.notes, f"session-admission: {why}; {said}")
        return replace(self, sessions=None, following=following, notes=notes)

    def named(self, request: LLMRequest) -> LLMRequest:
        """Return the request with the name of its session, if a plugin finds that out."""
        for plugin in self.following:
            if isinstance(plugin, SessionAdmission):
                return plugin.named(request)
        return request

    def families(self) -> Iterator[Family]:
        """Yield the plugins' own metric families."""
        for plugin in self.measured:
            yield from plugin.families()


def _ask(admitters: Sequence[Admitter], request: LLMRequest, candidates: Candidates) -> None:
    for admitter in admitters:
        refusal = admitter.refusal(request, candidates)
        if refusal is not None:
            raise SaturatedError(refusal)
