"""Alarms of the console: cache breakers that cost much, and a recording that has stopped."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferway.doctor.facts import BreakersReport
from inferway.doctor.rules import Level
from inferway.doctor.traffic_rules import judge_breakers
from inferway.model import Alarm
from inferway_console.records.breakers import CacheBreakers
from inferway_console.records.writer import RecordWriter

# Of a model's prompt tokens. A twentieth is more than most policies differ by, and worth a change
# of a prompt; what costs less stands in the list of cache breakers all the same.
LEAST_SHARE = 0.05
# A cause that was mended is in the sums still; if it has not come for so long, it is over.
RECENT_SECONDS = 3600.0
_MOST_BREAKERS = 32  # that are looked through


def breaker_alarms(found: CacheBreakers, now: float) -> Iterator[Alarm]:
    """Yield an alarm for each cache breaker that is worth one. `now` is by the director's clock."""
    report = msgspec.convert(found.told(now, _MOST_BREAKERS), BreakersReport)
    breakers = [
        each
        for each in report.breakers
        if each.share >= LEAST_SHARE and each.last_seconds_ago <= RECENT_SECONDS
    ]
    for each in judge_breakers("gateway", msgspec.structs.replace(report, breakers=breakers)):
        if each.level is not Level.OK:
            yield Alarm(each.level, "traffic", each.evidence, each.cure)


def file_alarms(writer: RecordWriter | None) -> Iterator[Alarm]:
    """Yield an alarm if requests were to be recorded in files, and are no longer."""
    if writer is not None and writer.failed:
        evidence = f"requests are no longer recorded in {writer.directory}: {writer.failed}"
        cure = "fix that, as by making room there, and restart the gateway"
        yield Alarm("warn", "record", evidence, cure)
