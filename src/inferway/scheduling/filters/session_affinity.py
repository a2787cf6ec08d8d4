"""Keep a session at its endpoint, as long as that is there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.registry import Building, PluginType
from inferway.scheduling.sessions import (
    NOT_IN_FORCE,
    SessionKeeping,
    SessionParameters,
    session,
)


class SessionAffinityFilter(SessionKeeping):
    """The session's endpoint alone; all, where it has none or that is not a candidate."""

    __slots__ = ()

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        row = self.row(request, candidates)
        if row is None:
            return np.ones(len(candidates.endpoints), np.bool_)
        kept = np.zeros(len(candidates.endpoints), np.bool_)
        kept[row] = True
        return kept


def _build(parameters: SessionParameters, building: Building) -> SessionAffinityFilter:
    return SessionAffinityFilter(session(parameters))


TYPE = PluginType(
    "session-affinity-filter",
    "keeps the endpoint of the request's session; all endpoints if it has no session, or its "
    "endpoint is gone",
    _build,
    SessionParameters,
    not_in_force=NOT_IN_FORCE,
)
