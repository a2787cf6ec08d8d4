"""Prefer the endpoint that the request's session is at."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from inferway.model import Candidates, Choice, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.of_endpoints import OfEndpoints
from inferway.scheduling.plugin import Follower
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.sessions import Session, SessionParameters, rows_by_name, session


@dataclass(slots=True)
class SessionAffinity:
    """1 for the session's endpoint, 0 for all others; 0 for all without a session."""

    session: Session
    _rows: OfEndpoints[dict[str, int]] = field(default_factory=lambda: OfEndpoints(rows_by_name))

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        scores = np.zeros(len(candidates.endpoints))
        name = self.session.endpoint(request)
        row = None if name is None else self._rows(candidates.endpoints).get(name)
        if row is not None:
            scores[row] = 1.0
        return scores

    def follow(
        self, request: LLMRequest, candidates: Candidates, choice: Choice
    ) -> Follower | None:
        return self.session.follow(request, candidates, choice)


def _build(parameters: SessionParameters, building: Building) -> SessionAffinity:
    return SessionAffinity(session(parameters))


TYPE = PluginType(
    "session-affinity-scorer",
    "1 for the endpoint that the request's x-session-token (or x-session-id) names, else 0",
    _build,
    SessionParameters,
)
