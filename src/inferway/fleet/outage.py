"""Why an engine gets no requests because of what it lets us hear, and since when."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class OutageKind(StrEnum):
    """What is heard of an engine that is out."""

    UNREACHABLE = "unreachable"  # the connection is refused, or lost
    SILENT = "silent"  # its API takes what it is asked, and does not answer
    STALLED = "stalled"  # its API answers, and its core computes nothing
    INVALID = "invalid"  # it answers, but not as an engine does


# What the kinds mean, as logs, /ready, the page and the doctor say it.
WORDS = {
    OutageKind.UNREACHABLE: "cannot be reached",
    OutageKind.SILENT: "does not answer",
    OutageKind.STALLED: "answers, but computes nothing",
    OutageKind.INVALID: "answers, but not as an engine does",
}


class Outage(msgspec.Struct, frozen=True):
    """An outage of one engine. Times in seconds, by `time.monotonic`, which is the loop's clock and
    the same in all processes of a machine."""

    kind: OutageKind
    since: float  # the first sign of it: when what is unanswered was asked, or it last computed
    heard: float | None  # when it last answered, or computed; None: it has not been heard yet
    error: str  # the last one, as who reads it needs it
    is_refused: bool = False  # its connections were: its process has ended, and its cache with it

    @property
    def is_silence(self) -> bool:
        """Whether what waits at the engine waits for nothing, although no connection breaks."""
        return self.kind in (OutageKind.SILENT, OutageKind.STALLED)

    def told(self, newer: Outage) -> Outage:
        """Return the same outage with what is heard of the engine now: it began when it began."""
        is_refused = self.is_refused or newer.is_refused
        return msgspec.structs.replace(
            self, kind=newer.kind, error=newer.error, is_refused=is_refused
        )

    def words(self, now: float) -> str:
        """Return what is wrong, and for how long, in one sentence without a name."""
        return f"{WORDS[self.kind]}, since {duration(now - self.since)}: {self.error}"


def duration(seconds: float) -> str:
    """Return a time span as people say it: `4 s`, `3 min 31 s`, `2 h 5 min`, `3 d 4 h`."""
    left = max(0, round(seconds))
    for unit, size, part, part_size in _UNITS:
        if left >= size:
            rest = left % size // part_size
            return f"{left // size} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{left} s"


_UNITS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
