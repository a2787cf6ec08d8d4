"""The columns of all endpoints, and a model's endpoints as rows of them. Written by
`table.EndpointTable` alone, when something changes: a request reads slices of them, however many
endpoints there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inferway.kv.events.stream import StreamState
from inferway.model import (
    BLIND,
    FIGURES,
    STALE,
    Adapters,
    Candidates,
    Column,
    Cut,
    Endpoint,
    HolderId,
    Rows,
    block_size_of,
)
from inferway.scheduling.adapter_rows import AdapterRows
from inferway.scheduling.per_endpoint import as_rows

# By their numbers, EXACT to BLIND of model.py.
STATES = tuple(StreamState)


class EndpointColumns(Candidates):
    """The table of all endpoints there have ever been: row i is holder i's. What of a row is no
    column stands in `ModelRows`."""

    is_alone = True  # no other process counts what it has sent

    def __init__(self, size: int = 0) -> None:
        columns: list[Any] = [np.zeros(0, figure.kind) for figure in FIGURES.values()]
        super().__init__((), {}, (), *columns)
        self.scraped: Column = np.zeros(0)  # when, in seconds
        # of `in_flight` and of `recent_prefill_tokens`, what other gateways have sent
        self._elsewhere = np.zeros((2, 0))
        self.grow(size)

    def __len__(self) -> int:
        return len(self.scraped)

    def grow(self, size: int) -> None:
        """Have so many rows. Nothing is known yet of the endpoints of new ones."""
        new = size - len(self)
        for name, figure in FIGURES.items():
            missing = np.full(new, figure.unknown, figure.kind)
            column = np.concatenate([getattr(self, name), missing])
            column.setflags(write=not figure.is_matched)  # requests that match make their own
            setattr(self, name, column)
        self.scraped = np.concatenate([self.scraped, np.zeros(new)])
        self._elsewhere = np.concatenate([self._elsewhere, np.zeros((2, new))], axis=1)

    def book(self, holder: HolderId, new_tokens: int) -> None:
        """Count a request on its way to the holder, of which so many tokens must be computed."""
        self.in_flight[holder] += 1
        self.recent_prefill_tokens[holder] += new_tokens

    def num_booked(self, candidates: Candidates) -> float:
        """Return how many requests on their way to the candidates this process counts."""
        return float(candidates.in_flight.sum())

    def release(self, holder: HolderId) -> None:
        """Count a request no more, which has ended."""
        self.in_flight[holder] -= 1

    def count_elsewhere(self, holder: HolderId, requests: float, tokens: float) -> None:
        """Count so many more of the requests and recent tokens that other gateways have sent to the
        holder."""
        self.in_flight[holder] += requests
        self.recent_prefill_tokens[holder] += tokens
        self._elsewhere[0, holder] += requests
        self._elsewhere[1, holder] += tokens

    def forget_elsewhere(self, holder: HolderId) -> None:
        """Count nothing of other gateways for the holder any more."""
        requests, tokens = self._elsewhere[:, holder].tolist()
        self.count_elsewhere(holder, -requests, -tokens)
        self._elsewhere[:, holder] = 0.0

    def own(self) -> tuple[Column, Column]:
        """Return the requests in flight, and the recent tokens, that this gateway itself has
        sent."""
        return (
            self.in_flight - self._elsewhere[0],
            self.recent_prefill_tokens - self._elsewhere[1],
        )

    def note_cut(self, holder: HolderId, cut: Cut) -> None:
        """Take over how prompts are cut for the holder's engine; 0: it is not known."""
        self.cuts[holder] = cut
        self.block_sizes[holder] = block_size_of(cut)

    def nobody_follows(self) -> None:
        """Take the states of all pictures for stale that somebody followed."""
        self.states[self.states != BLIND] = STALE

    def add_up(self) -> None:
        """Let `in_flight` and `recent_prefill_tokens` be what all processes count by now. This one
        is alone."""

    def fade(self, share: float) -> None:
        """Leave this share of the recent tokens that this process counts."""
        self.recent_prefill_tokens *= share
        self._elsewhere[1] *= share

    def clear(self, holder: HolderId) -> None:
        """Forget what is known of a holder whose number is another endpoint's now."""
        for name, figure in FIGURES.items():
            if not figure.is_matched:
                getattr(self, name)[holder] = figure.unknown
        self.scraped[holder] = 0.0
        self._elsewhere[:, holder : holder + 1] = 0.0  # of processes that share it stands elsewhere

    def toward_the_mean(self, rows: Rows, before: float, share: float) -> None:
        """Move what was scraped of these rows `before` or never by `share` toward the mean of the
        other rows. Nobody knows how busy those endpoints are by now, and they must not look idle.
        Nothing happens while all rows are fresh, or none is."""
        stale = self.scraped[rows] < before
        if not stale.any() or stale.all():
            return
        for name, figure in FIGURES.items():
            if figure.fades:
                column = getattr(self, name)
                values = column[rows]
                mean = values[~stale].mean()
                column[rows] = np.where(stale, values + share * (mean - values), values)


class ModelRows:
    """A model's live endpoints, at least one, as rows of the columns; made anew when those
    change."""

    __slots__ = ("_adapters", "_endpoints", "_row_of", "_viewed", "_views", "engines", "rows")

    def __init__(
        self, endpoints: Sequence[Endpoint], adapters: Sequence[Adapters] | None = None
    ) -> None:
        """`adapters`: one for each endpoint; None: they have none."""
        self._endpoints = endpoints
        self.engines = frozenset(endpoint.engine for endpoint in endpoints)  # their names
        self.rows = as_rows([endpoint.holder for endpoint in endpoints])
        self._row_of = {endpoint.holder: row for row, endpoint in enumerate(endpoints)}
        self._adapters = AdapterRows(adapters or [Adapters()] * len(endpoints))
        self._viewed: object = None  # the array that the first of `_views` looks into
        self._views: Sequence[Any] = ()

    @property
    def num_endpoints(self) -> int:
        return len(self._endpoints)

    @property
    def holders(self) -> tuple[HolderId, ...]:
        return tuple(self._row_of)

    def tell_adapters(self, holder: HolderId, adapters: Adapters) -> None:
        """Take over the endpoint's adapters, which have changed; those of other models' endpoints
        are ignored."""
        row = self._row_of.get(holder)
        if row is not None:
            self._adapters.tell(row, adapters)

    def candidates(self, columns: EndpointColumns) -> Candidates:
        """Return the table of these endpoints; its matched columns are empty."""
        columns.add_up()
        if not isinstance(self.rows, slice):
            return columns.narrowed(self.rows, self._endpoints, self._row_of, self._adapters)
        if self._viewed is not columns.block_sizes:  # the columns have grown: other arrays
            self._viewed = columns.block_sizes
            self._views = [getattr(columns, name)[self.rows] for name in FIGURES]
        return Candidates(self._endpoints, self._row_of, self._adapters, *self._views)
