"""What the doctor's rules say of the gateway in this very process, for its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic

import msgspec

from inferway.doctor.facts import BreakersReport, GatewayReport, TrafficReport
from inferway.doctor.rules import Level
from inferway.doctor.traffic_rules import judge_gateway
from inferway.page.alarms import Alarm
from inferway.records.breakers import CacheBreakers
from inferway.records.records import Records
from inferway.telemetry.traffic_counts import TrafficCounts

# Of a model's prompt tokens. A twentieth is more than most policies differ by, and worth a change
# of a prompt; what costs less stands in the list of cache breakers all the same.
LEAST_SHARE = 0.05
# A cause that was mended is in the sums still; if it has not come for so long, it is over.
RECENT_SECONDS = 3600.0
_MOST_BREAKERS = 32  # that are looked through


def alarms_of(
    traffic: TrafficCounts, records: Records, clock: Callable[[], float] = monotonic
) -> Sequence[Alarm]:
    """Return what is not well: with the record, and in the traffic. `clock` is the director's."""
    breakers = _expensive(records.watch.breakers, clock())
    told = msgspec.convert(traffic.told(), TrafficReport)
    report = GatewayReport("", told, breakers=breakers)
    return [
        *_of_files(records),
        *(
            Alarm(found.level, "traffic", found.evidence, found.cure)
            for found in judge_gateway(report)
            if found.level is not Level.OK
        ),
    ]


def _expensive(found: CacheBreakers, now: float) -> BreakersReport:
    """Return the cache breakers that are worth an alarm."""
    report = msgspec.convert(found.told(now, _MOST_BREAKERS), BreakersReport)
    breakers = [
        each
        for each in report.breakers
        if each.share >= LEAST_SHARE and each.last_seconds_ago <= RECENT_SECONDS
    ]
    return msgspec.structs.replace(report, breakers=breakers)


def _of_files(records: Records) -> Iterator[Alarm]:
    writer = records.writer
    if writer is not None and writer.failed:
        evidence = f"requests are no longer recorded in {writer.directory}: {writer.failed}"
        cure = "fix that, as by making room there, and restart the gateway"
        yield Alarm("warn", "record", evidence, cure)
