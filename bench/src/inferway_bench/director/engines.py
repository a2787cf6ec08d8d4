"""Engines for a director that is measured: nothing is sent to them."""

from __future__ import annotations

from inferway.fleet.columns import EndpointColumns, ModelRows
from inferway.model import EXACT, Candidates, Endpoint, HolderId
from inferway.prompts.served import ServedModel


class IdleEngines:
    """The fleet: engines that are idle and hold what the index says; its tables are real."""

    def __init__(self, model: ServedModel, engines: int, block_size: int) -> None:
        self._model = model
        self._block_size = block_size
        endpoints = [Endpoint(f"e{i}", f"http://e{i}", i) for i in range(engines)]
        self._rows = ModelRows(endpoints)
        self.columns = EndpointColumns(engines)
        self.columns.states[:], self.columns.block_sizes[:] = EXACT, block_size

    def model(self, name: str) -> ServedModel:  # noqa: ARG002
        return self._model

    def sole_model(self) -> str:
        return self._model.name

    def candidates(self, model: str) -> Candidates:  # noqa: ARG002
        return self._rows.candidates(self.columns)

    def block_size(self, holder: HolderId) -> int | None:  # noqa: ARG002
        return self._block_size

    def book(self, endpoint: Endpoint, new_tokens: int) -> None:
        """No attempt is made."""

    def release(self, endpoint: Endpoint) -> None:
        """Nor ends one."""

    def heal(self, endpoint: Endpoint) -> bool:  # noqa: ARG002
        return False

    def healed(self, endpoint: Endpoint) -> None:
        """None is asked to."""

    def reports(self, endpoint: Endpoint) -> None:
        """None does."""

    def suspect(self, endpoint: Endpoint) -> None:
        """None is."""
