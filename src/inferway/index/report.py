"""What an index has to say of itself, for /metrics: plain numbers, read when somebody scrapes.
Counters are since the start."""

from __future__ import annotations

import msgspec


class SharedReport(msgspec.Struct, frozen=True):
    """Of an index that gateways share: how its server does, and what we do there."""

    is_away: bool  # matches fail without being tried
    outages: int  # times that it went away
    matches: int  # asked for, answered or not
    answered: int  # of them
    answer_seconds: float  # that those answered have taken, all together
    late: int  # not answered in time
    refused: int  # failed, or were not tried, because the server was away
    leases: int  # holders that we write now
    pending_keys: int  # that wait to be written now
    written_keys: int
    pictures: int  # of a holder, written from scratch
    fenced: int  # batches refused because another gateway had taken over
    repairs: int  # pictures begun because the server had not what it should


class IndexReport(msgspec.Struct, frozen=True):
    """Of any index."""

    num_bytes: int  # about what it takes in this process
    evicted: int = 0  # blocks dropped for want of room, once for each holder
    shared: SharedReport | None = None  # None: nobody else looks at it
