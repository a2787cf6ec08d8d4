"""Requests of other gateways in flight to our endpoints, and the counts of our own that they get.

A peer's claims are its own counts: a new count replaces the old one, and when the peer ends, its
claims are dropped. The table adds up the claims of all peers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from inferway.fleet.table import RECENT_SECONDS, EndpointTable
from inferway.model import Column, HolderId


class Count(NamedTuple):
    """The requests and tokens in flight to the endpoint of that name."""

    endpoint: str
    requests: float
    tokens: float  # to be computed, that were sent of late


@dataclass(slots=True)
class _Claim:
    holder: HolderId
    requests: float
    tokens: float
    faded: float  # the tokens are as of then


@dataclass(slots=True)
class Claims:
    """The counts that one peer claims, by endpoint."""

    table: EndpointTable
    _claims: dict[str, _Claim] = field(default_factory=dict)

    @property
    def requests(self) -> float:
        """The number of requests that the peer has in flight."""
        return sum([claim.requests for claim in self._claims.values()])

    def set(self, count: Count) -> None:
        """Take the count for what the peer has on its way there now. The endpoint is known."""
        table = self.table
        holder = table.holder_of(count.endpoint)
        if holder is None:
            return
        self.drop(count.endpoint)
        if count.requests or count.tokens:
            table.count_elsewhere(holder, count.requests, count.tokens)
            claim = _Claim(holder, count.requests, count.tokens, table.faded)
            self._claims[count.endpoint] = claim

    def drop(self, endpoint: str) -> None:
        """Take it that nothing is on its way there. Of an endpoint that has left, or has another
        number by now, the table has forgotten it already."""
        claim, table = self._claims.pop(endpoint, None), self.table
        if claim is not None and table.holder_of(endpoint) == claim.holder:
            left = claim.tokens * math.exp((claim.faded - table.faded) / RECENT_SECONDS)
            table.count_elsewhere(claim.holder, -claim.requests, -left)

    def clear(self) -> None:
        """Take it that nothing is on its way anywhere."""
        for endpoint in list(self._claims):
            self.drop(endpoint)


class OwnCounts:
    """The counts of this gateway's requests in flight, in all its processes."""

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._told: Column = np.zeros(0)
        self._all: set[str] = set()  # names that were told last

    def changed(self) -> list[Count]:
        """Return the counts of endpoints that have other requests in flight than when this was last
        called."""
        names, requests, tokens = self._table.own_counts()
        told = self._told
        if len(told) != len(requests):
            told = np.concatenate([told, np.zeros(len(requests))])[: len(requests)]
        rows = np.nonzero(requests != told)[0].tolist()
        self._told = requests
        return _counts(names, rows, requests, tokens)

    def all(self) -> list[Count]:
        """Return the counts of all endpoints that something is on its way to, by their names; and
        of those that it has told last, and nothing is on its way to any more."""
        names, requests, tokens = self._table.own_counts()
        rows = np.nonzero((requests > 0.0) | (tokens >= 1.0))[0].tolist()
        counts = _counts(names, rows, requests, tokens)
        before, self._all = self._all, {each.endpoint for each in counts}
        return sorted(counts + [Count(name, 0.0, 0.0) for name in before - self._all])


def _counts(
    names: Mapping[HolderId, str], rows: Iterable[HolderId], requests: Column, tokens: Column
) -> list[Count]:
    return [
        Count(names[row], max(requests.item(row), 0.0), max(tokens.item(row), 0.0))
        for row in rows
        if row in names
    ]
