"""The roles of endpoints in a request with two legs: which of them may answer, and which can hand
their blocks to which others. It follows from the endpoints alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.model import DECODE_ROLES, PREFILL_ROLES, ROLE, Endpoint, KvConnector

_ANY_ROLE = "both"  # of an endpoint without the label


class Group(NamedTuple):
    """Endpoints of which each that gives can hand its blocks to each that takes, unless both are
    one engine. Rows of the candidates."""

    gives: NDArray[np.intp]
    takes: NDArray[np.intp]


class Roles(msgspec.Struct, frozen=True):
    """The roles of a list of endpoints."""

    decodes: NDArray[np.bool_] | None  # by row: it answers requests; None: all do
    groups: tuple[Group, ...]  # those where there is a pair of engines
    engines: NDArray[np.intp]  # by row: equal numbers are ranks of one engine


def roles_of(endpoints: Sequence[Endpoint]) -> Roles | None:
    """Return the roles; None if each endpoint answers requests, and none takes others' blocks."""
    decodes = np.array([_decodes(each) for each in endpoints], np.bool_)
    if not decodes.any():  # an operator's label is an order; what an engine tells of itself is not
        decodes = np.array([_may_decode(each) for each in endpoints], np.bool_)
    numbers: dict[str, int] = {}
    engines = np.array([numbers.setdefault(e.engine, len(numbers)) for e in endpoints], np.intp)
    found: dict[tuple[KvConnector, str], tuple[list[int], list[int]]] = {}
    for row, endpoint in enumerate(endpoints):
        transfer = endpoint.kv_transfer
        if transfer is None:
            continue
        gives, takes = found.setdefault((transfer.connector, transfer.group), ([], []))
        if transfer.gives and endpoint.labels.get(ROLE, _ANY_ROLE) in PREFILL_ROLES:
            gives.append(row)
        if transfer.takes and decodes[row]:
            takes.append(row)
    groups = tuple(
        Group(np.array(gives, np.intp), np.array(takes, np.intp))
        for gives, takes in found.values()
        if gives and takes and len({*engines[[*gives, *takes]].tolist()}) > 1
    )
    all_decode = bool(decodes.all())
    if all_decode and not groups:
        return None
    return Roles(None if all_decode else decodes, groups, engines)


def _decodes(endpoint: Endpoint) -> bool:
    transfer = endpoint.kv_transfer
    return (transfer is None or transfer.takes) and _may_decode(endpoint)


def _may_decode(endpoint: Endpoint) -> bool:
    return endpoint.labels.get(ROLE, _ANY_ROLE) in DECODE_ROLES
