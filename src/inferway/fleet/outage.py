"""Why an engine gets no requests because of what it lets us hear, and since when; and what people
are told of it: what is wrong, what that means for requests, and what to do first."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from inferway.routing.limits.outlier_detection import Affected


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


ALERTS = "https://github.com/inferway/inferway/blob/main/docs/alerts.md"
_PAGES = {
    OutageKind.UNREACHABLE: f"{ALERTS}#inferwayenginedown",
    OutageKind.SILENT: f"{ALERTS}#inferwayenginesilent",
    OutageKind.STALLED: f"{ALERTS}#inferwayenginestalled",
    OutageKind.INVALID: f"{ALERTS}#inferwayenginedown",
}
# What to do first: two steps for each kind, of which the first is a command where one helps.
_STEPS = {
    OutageKind.UNREACHABLE: (
        "see whether the process runs (kubectl get pod, systemctl status); if not, its log says"
        " why it ended: start it",
        "if it runs, try from this machine: curl -m 5 {url}/health; host, port or a firewall are"
        " wrong",
    ),
    OutageKind.SILENT: (
        "try from this machine: curl -m 5 {url}/health; if that hangs too, ask its node (ping,"
        " kubectl get node)",
        "if the node answers, the process stands still: see where (py-spy dump, dmesg), and"
        " restart it",
    ),
    OutageKind.STALLED: (
        "look at the GPUs (nvidia-smi; dmesg for Xid errors) and at the end of the engine's log",
        "restart it: its API answers, and nothing is computed behind it",
    ),
    OutageKind.INVALID: (
        "see what answers there: curl -m 5 {url}/v1/models",
        "correct the URL in the list of engines, or the engine's API key (api_key_env)",
    ),
}


def steps(kind: OutageKind, url: str) -> str:
    """Return the first two steps. `url`: the engine's, or that of one of them."""
    first, second = _STEPS[kind]
    return f"(1) {first}; (2) {second}".format(url=url)


def page_of(kind: OutageKind) -> str:
    """Return the address of the section that says more."""
    return _PAGES[kind]


def effect(affected: Affected) -> str:
    """Return what an outage means for requests, so far."""
    if not affected.failed and not affected.moved:
        return "no request has been hurt"
    failed = _counted(affected.failed, "request") + " failed"
    return f"{failed}, {affected.moved} moved to other engines"


def since_words(since: float, now: float) -> str:
    """Return since when, as a time of day and as a span. Both are Unix times."""
    at, today = datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(now, UTC)
    day = "" if at.date() == today.date() else f"{at:%Y-%m-%d} "
    return f"since {day}{at:%H:%M:%S} UTC ({duration(now - since)})"


def outage_words(outage: Outage, now: float, unix: float) -> str:
    """Return what is wrong and since when, without a name. `now`: by `time.monotonic`, at the Unix
    time `unix`."""
    since = since_words(unix - (now - outage.since), unix)
    return f"{WORDS[outage.kind]} {since}: {outage.error}"


def down_words(name: str, url: str, outage: Outage) -> str:
    """Return the line of the log for an engine that has just gone out."""
    return (
        f"engine {name} {WORDS[outage.kind]}: {outage.error}; it gets no requests, and those that"
        f" it has go to others; the gateway asks it again. What to do: {steps(outage.kind, url)}"
        f" ({page_of(outage.kind)})"
    )


def back_words(name: str, outage: Outage, now: float, cache: str) -> str:
    """Return the line of the log for an engine that answers again. `cache`: what is known of its
    cache, as `cache_words` has it."""
    return f"engine {name} answers again after {duration(now - outage.since)}{cache}"


def cache_words(num_blocks: int | None, *, is_certain: bool) -> str:
    """Return how the cache is of an engine that is back, as an end of a sentence. `num_blocks`:
    that it is believed to hold; None: its events are not followed."""
    if num_blocks is None:
        return ""
    if not is_certain:
        return "; what its cache holds is being found out"
    return f", its cache is as it was: {num_blocks:,} blocks" if num_blocks else ", cache empty"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
