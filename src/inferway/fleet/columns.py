"""What scheduling gets of all endpoints, as columns; row i belongs to holder i. Written by
`table.EndpointTable` alone, when something changes: a request reads slices of them, however many
endpoints there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.events.stream import StreamState
from inferway.model import BLIND, Adapters, Candidates, Column, Endpoint, HolderId
from inferway.scheduling.adapter_rows import AdapterRows

_SCRAPED = ("others", "running", "waiting", "kv_usage")
_COLUMNS = ("in_flight", *_SCRAPED, "unbegun", "recent_tokens", "scraped")

# By their numbers, EXACT to BLIND of model.py.
STATES = tuple(StreamState)


# Rows of the columns. A slice, where it is one, gives views and costs a tenth.
Rows = slice | NDArray[np.intp]


@dataclass(slots=True)
class EndpointColumns:
    """See `model.Candidates` for what each says."""

    in_flight: Column = field(default_factory=lambda: np.zeros(0))
    others: Column = field(default_factory=lambda: np.zeros(0))
    running: Column = field(default_factory=lambda: np.zeros(0))
    waiting: Column = field(default_factory=lambda: np.zeros(0))
    kv_usage: Column = field(default_factory=lambda: np.zeros(0))
    unbegun: Column = field(default_factory=lambda: np.zeros(0))
    recent_tokens: Column = field(default_factory=lambda: np.zeros(0))
    scraped: Column = field(default_factory=lambda: np.zeros(0))  # when, in seconds
    states: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))

    def grow(self, rows: int) -> None:
        """New endpoints are idle, and blind."""
        for name in _COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(rows - len(column))]))
        new = np.full(rows - len(self.states), BLIND, np.int8)
        self.states = np.concatenate([self.states, new])

    def clear(self, holder: HolderId) -> None:
        """Its number is another endpoint's now."""
        for name in _COLUMNS:
            getattr(self, name)[holder] = 0.0
        self.states[holder] = BLIND

    def toward_the_mean(self, rows: Rows, before: float, share: float) -> None:
        """Of these rows, those that were scraped `before` or never: what was scraped of them moves
        by `share` toward the mean of the others. Nobody knows how busy they are by now, and they
        must not look idle. Nothing happens while all are fresh, or none is."""
        stale = self.scraped[rows] < before
        if not stale.any() or stale.all():
            return
        for name in _SCRAPED:
            column = getattr(self, name)
            values = column[rows]
            mean = values[~stale].mean()
            column[rows] = np.where(stale, values + share * (mean - values), values)


class ModelRows:
    """A model's live endpoints, at least one, as rows of the columns; made anew when those
    change."""

    __slots__ = (
        *("_adapters", "_block_sizes", "_endpoints", "_nothing", "_row_of", "engines", "rows"),
    )

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        block_sizes: Sequence[int | None],
        adapters: Sequence[Adapters] | None = None,
    ) -> None:
        """`block_sizes`, `adapters`: one for each endpoint."""
        self._endpoints = endpoints
        self.engines = frozenset(endpoint.engine for endpoint in endpoints)  # their names
        self.rows = rows_of([endpoint.holder for endpoint in endpoints])
        self._row_of: Mapping[HolderId, int] = {e.holder: row for row, e in enumerate(endpoints)}
        self._adapters = AdapterRows(adapters or [Adapters()] * len(endpoints))
        self._block_sizes = np.array([size or 0 for size in block_sizes], np.int64)
        self._nothing = np.zeros(len(endpoints))  # shared: a request that matches makes its own
        self._nothing.setflags(write=False)

    @property
    def num_endpoints(self) -> int:
        return len(self._endpoints)

    @property
    def holders(self) -> tuple[HolderId, ...]:
        return tuple(self._row_of)

    def tell_adapters(self, holder: HolderId, adapters: Adapters) -> None:
        """They have changed; told of endpoints of other models too."""
        row = self._row_of.get(holder)
        if row is not None:
            self._adapters.tell(row, adapters)

    def candidates(self, columns: EndpointColumns) -> Candidates:
        """Matched columns are empty."""
        rows, nothing = self.rows, self._nothing
        return Candidates(
            endpoints=self._endpoints,
            rows=self._row_of,
            adapters=self._adapters,
            block_sizes=self._block_sizes,
            states=columns.states[rows],
            in_flight=columns.in_flight[rows],
            others=columns.others[rows],
            running=columns.running[rows],
            waiting=columns.waiting[rows],
            kv_usage=columns.kv_usage[rows],
            unbegun=columns.unbegun[rows],
            recent_tokens=columns.recent_tokens[rows],
            matched_blocks=nothing,
            matched_value=nothing,
            prompt_blocks=nothing,
        )


def rows_of(holders: Sequence[int]) -> Rows:
    first, last = holders[0], holders[-1]
    if list(holders) == list(range(first, last + 1)):
        return slice(first, last + 1)
    return np.array(holders, dtype=np.intp)
