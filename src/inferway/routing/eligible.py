"""A model's endpoints -> those that one request may go to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from inferway.errors import EnginesSuspendedError, NoEndpointError, SaturatedError
from inferway.model import Candidates, Endpoint
from inferway.prompts.served import ServedModel
from inferway.routing.limits.outlier_detection import OutlierDetection
from inferway.routing.limits.slot import Slot
from inferway.routing.limits.suspension import told
from inferway.scheduling.profile import RowSelector

Within = Callable[[Endpoint], bool]


class Eligible:
    """Remembers the lists of endpoints that were left, for all requests."""

    def __init__(self) -> None:
        self._narrowing = RowSelector()

    def kept(self, candidates: Candidates, within: Within) -> Candidates:
        """Return the candidates that `within` is true for, maybe none."""
        endpoints = candidates.endpoints
        keep = np.fromiter(
            (within(each) for each in endpoints), dtype=np.bool_, count=len(endpoints)
        )
        return self._narrowing.kept(candidates, keep)

    def allowed(self, candidates: Candidates, within: Within) -> Candidates:
        """Return the candidates that `within` is true for. Raises NoEndpointError, in llm-d's
        words, if there is none."""
        left = self.kept(candidates, within)
        if not left.endpoints:
            raise NoEndpointError("failed to find endpoint candidates for serving the request")
        return left

    def standing(
        self, candidates: Candidates, model: str, standing: OutlierDetection, now: float
    ) -> Candidates:
        """Return the candidates that get new requests now. Raises EnginesSuspendedError if some are
        suspended and no other one is left, NoEndpointError if all are drained."""
        names = {endpoint.engine for endpoint in candidates.endpoints}
        left = standing.allowed(names, now)
        if not left:
            waited_for = names - standing.drained
            if waited_for:
                words = told(waited_for, standing.suspended)
                raise EnginesSuspendedError(
                    f"model {model!r}: its engines take no requests now: {words}", model=model
                )
            drained = ", ".join(sorted(names))
            raise NoEndpointError(f"model {model!r}: its engines are drained: {drained}")
        return self.kept(candidates, lambda endpoint: endpoint.engine in left)

    def fitting(self, candidates: Candidates, model: ServedModel, num_tokens: int) -> Candidates:
        """Return the candidates whose engines take a request of this length. One that none takes,
        as far as we know, may go to any: its engine says why. Raises NoEndpointError."""
        contexts = model.contexts
        if contexts.most is not None and num_tokens > contexts.most:
            return candidates
        left = self.kept(candidates, lambda each: contexts.take(each.engine, num_tokens))
        if not left.endpoints:
            there = ", ".join(sorted({endpoint.engine for endpoint in candidates.endpoints}))
            raise NoEndpointError(
                f"model {model.name!r}: the engines that take {num_tokens} tokens get no requests"
                f" now; those that do take fewer: {there}"
            )
        return left

    def with_room(self, candidates: Candidates, slot: Slot) -> Candidates:
        """Return the candidates whose engines have room for the request. Raises SaturatedError if
        none has."""
        left = self.kept(candidates, lambda endpoint: slot.takes(endpoint.engine))
        if not left.endpoints:  # where it had a place is gone
            raise SaturatedError("all engines are full; try again")
        return left
