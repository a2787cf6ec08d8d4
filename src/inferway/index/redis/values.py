"""What a Redis index is told at the start, and what can be read of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferway.index.redis.writer import WriterStats


@dataclass(frozen=True, slots=True)
class RedisLimits:
    """Seconds, but for the last."""

    match: float = 0.02  # a request waits so long for the server at most
    lease: float = 6.0  # without news from a writer, another takes over
    forget: float = 60.0  # what nobody confirms any more is gone
    retry: float = 0.5  # between two attempts to mend a connection
    rest: float = 5.0  # before we write a holder again whose batch the server refused
    pending: int = 100_000  # changed keys of a holder; if more wait, it is written from scratch


# What a writer may tell (events.stream.StreamState); other words in the server mean "stale".
STATES = frozenset({"exact", "partial", "repairing", "stale", "blind"})


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a holder's picture is to be trusted, as of the last `keep`."""

    state: str  # what its writer told of it; "stale" while nobody confirms it
    gateway: str | None  # who writes it
    epoch: int  # another number: another picture
    seq: int | None  # of the last event batch in it
    digest: str  # of that batch's bytes
    num_blocks: int  # that a prompt can reach


@dataclass(slots=True)
class RedisStats:
    """Plain integers, read when somebody scrapes."""

    matches: int = 0
    answered: int = 0  # of them
    answer_seconds: float = 0.0  # that those took, all together
    late: int = 0  # matches that took longer than `RedisLimits.match`
    refused: int = 0  # matches that failed, or were not tried, because the server was away
    outages: int = 0  # times that it went away
    written: WriterStats = field(default_factory=WriterStats)


def milliseconds(seconds: float) -> int:
    """As Redis takes times."""
    return int(seconds * 1000)
