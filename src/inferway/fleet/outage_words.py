"""What people are told of an outage: what is wrong and since when, what that means for requests,
and what to do first. Sentences only; time is given."""

from __future__ import annotations

from datetime import UTC, datetime

from inferway.fleet.outage import WORDS, Outage, OutageKind, duration
from inferway.routing.limits.outlier_detection import Affected

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
