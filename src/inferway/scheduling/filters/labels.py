"""Keep the endpoints with certain labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from inferway.model import Candidates, Endpoint
from inferway.openai_api.llm_request import LLMRequest
from inferway.scheduling.of_endpoints import OfEndpoints

Labels = Mapping[str, str]


class LabelFilter:
    """Those whose labels `fits` says yes to. `name`: for who asks why none is left."""

    __slots__ = ("_kept", "name")

    def __init__(self, fits: Callable[[Labels], bool], name: str) -> None:
        self.name = name

        def kept(endpoints: Sequence[Endpoint]) -> NDArray[np.bool_]:
            return np.array([fits(endpoint.labels) for endpoint in endpoints], np.bool_)

        self._kept = OfEndpoints(kept)

    def keep(self, request: LLMRequest, candidates: Candidates) -> NDArray[np.bool_]:
        return self._kept(candidates.endpoints)
