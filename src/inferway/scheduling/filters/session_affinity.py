"""Keep a session at its endpoint, as long as that is there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Choice
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.of_endpoints import OfEndpoints
from inferway.scheduling.plugin import Follower
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.sessions import Session, SessionParameters, rows_by_name, session


@dataclass(slots=True)
class SessionAffinityFilter:
    """The session's endpoint alone; all, where it has none or that is not a candidate."""

    session: Session
    _rows: OfEndpoints[dict[str, int]] = field(default_factory=lambda: OfEndpoints(rows_by_name))

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        name = self.session.endpoint(request)
        row = None if name is None else self._rows(candidates.endpoints).get(name)
        if row is None:
            return np.ones(len(candidates.endpoints), np.bool_)
        kept = np.zeros(len(candidates.endpoints), np.bool_)
        kept[row] = True
        return kept

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: Choice
    ) -> Follower | None:
        return self.session.follow(request, candidates, choice)


def _build(parameters: SessionParameters, building: Building) -> SessionAffinityFilter:
    return SessionAffinityFilter(session(parameters))


TYPE = PluginType(
    "session-affinity-filter",
    "only the endpoint that the request's session is at; all, if it has none or that is gone",
    _build,
    SessionParameters,
)
