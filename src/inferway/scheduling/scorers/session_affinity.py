"""Prefer the endpoint that the request's session is at."""

from __future__ import annotations

import numpy as np

from inferway.model import Candidates, Column
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.sessions import (
    NOT_IN_FORCE,
    SessionKeeping,
    SessionParameters,
    session,
)


class SessionAffinity(SessionKeeping):
    """1 for the session's endpoint, 0 for all others; 0 for all without a session."""

    __slots__ = ()

    def score(self, request: LLMRequest, candidates: Candidates) -> Column:
        scores = np.zeros(len(candidates.endpoints))
        row = self.row(request, candidates)
        if row is not None:
            scores[row] = 1.0
        return scores


def _build(parameters: SessionParameters, building: Building) -> SessionAffinity:
    return SessionAffinity(session(parameters))


TYPE = PluginType(
    "session-affinity-scorer",
    "scores 1 for the endpoint of the request's session (x-session-token or x-session-id), else 0",
    _build,
    SessionParameters,
    not_in_force=NOT_IN_FORCE,
)
