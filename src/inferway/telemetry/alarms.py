"""Alarms of the fleet: the same list for the page, `inferway status` and the doctor.

Engines with the same trouble are one alarm. Times are moments, so that an alarm stays equal while
nothing changes: who shows it says how long ago that is (`said`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from inferway.fleet.outage import ALERTS, WORDS, EngineStanding, OutageKind, effect, page_of, steps
from inferway.model import Alarm
from inferway.routing.limits.outlier_detection import Affected
from inferway.telemetry.engine_rows import EngineRow

MOST_ALARMS = 40
_MOST_NAMED = 3  # engines, one by one
_PLURAL = {
    OutageKind.UNREACHABLE: "cannot be reached",
    OutageKind.SILENT: "do not answer",
    OutageKind.STALLED: "answer, but compute nothing",
    OutageKind.INVALID: "answer, but not as engines do",
}
_NUMBER = re.compile(r"(\d+)(\D*)$")


def fleet_alarms(rows: Sequence[EngineRow]) -> Iterator[Alarm]:
    """Yield what is wrong with engines, the worst first; nothing of one that is drained and away on
    purpose."""
    if not rows:
        cure = "give one (inferway serve http://HOST:PORT), or see whether discovery finds any"
        effects, see = "every request gets 503", f"{ALERTS}#inferwaynoengine"
        yield Alarm(
            "fail", "fleet", "no engine is known", cure, effect=effects, see=see, is_total=True
        )
        return
    found = [*_outages(rows), *_faults(rows), *_late(rows), *_slow(rows)]
    yield from found[:MOST_ALARMS]
    if len(found) > MOST_ALARMS:
        left = len(found) - MOST_ALARMS
        yield Alarm("warn", "fleet", f"there are {left} more alarms: GET /admin/engines")


def named(names: Sequence[str]) -> str:
    """Return the engines as the subject of a sentence: by name if they are few, else how many, and
    which."""
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    first = _NUMBER.search(names[0])
    if first is not None:
        stem, tail = names[0][: first.start()], first[2]
        low, digits = int(first[1]), len(first[1])
        numbers = range(low, low + len(names))
        if [*names] == [f"{stem}{number:0{digits}}{tail}" for number in numbers]:
            return f"{len(names)} engines ({names[0]} to {names[-1]})"
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{len(names)} engines ({shown} and {len(names) - _MOST_NAMED} more)"


def _outages(rows: Sequence[EngineRow]) -> Iterator[Alarm]:
    """Yield an alarm for each kind of outage, or one for all if no engine is left."""
    out: dict[str, list[EngineRow]] = {}
    for row in rows:
        if not row.up and not row.drained:
            out.setdefault(row.state, []).append(row)
    if out and not any(row.up for row in rows):
        yield _total([row for each in out.values() for row in each])
    for state, those in sorted(out.items(), key=lambda item: -len(item[1])):
        those = sorted(those, key=lambda row: _natural(row.name))
        names = [row.name for row in those]
        if state == EngineStanding.UNHEARD:
            words = "has not answered yet" if len(names) == 1 else "have not answered yet"
            cure = "see whether it runs, and whether its URL is right; it is asked again and again"
            yield Alarm("fail", named(names), words, cure, see=f"{ALERTS}#inferwayenginedown")
            continue
        kind = OutageKind(state)
        yield Alarm(
            "fail",
            named(names),
            (WORDS if len(names) == 1 else _PLURAL)[kind],
            steps(kind, those[0].url),
            since=min([row.since for row in those if row.since is not None], default=None),
            detail=_errors(those),
            effect=_effect(those),
            see=page_of(kind),
        )


def _total(rows: Sequence[EngineRow]) -> Alarm:
    """No engine answers."""
    return Alarm(
        "fail",
        "fleet",
        "no engine answers",
        "engines that end at once have a cause in common: network, node, driver, or a change",
        since=max([row.since for row in rows if row.since is not None], default=None),
        effect="every request gets 503",
        see=f"{ALERTS}#inferwaynoengine",
        is_total=True,
    )


def _errors(rows: Sequence[EngineRow]) -> str:
    """Return the error that was heard last: of several that differ, the first engine's."""
    errors = [row.outage.error for row in rows if row.outage is not None]
    if len({*errors}) <= 1:
        return "".join(errors[:1])
    return f"{errors[0]}, for one"


def _effect(rows: Sequence[EngineRow]) -> str:
    moved, failed = sum(row.moved for row in rows), sum(row.lost for row in rows)
    return effect(Affected(moved, failed))


def _faults(rows: Sequence[EngineRow]) -> Iterator[Alarm]:
    """Yield alarms for engines that have failed too often, and for what engines tell that cannot be
    used. Those that say the same are one alarm."""
    ejected = [row for row in rows if row.state == EngineStanding.EJECTED]
    if ejected:
        cure = "its own log says why it fails; it gets requests again by itself once it answers"
        words = "failed too often and gets no requests for now"
        if len(ejected) > 1:
            words = words.replace("gets", "get")
        yield Alarm(
            *("warn", named([row.name for row in ejected]), words, cure),
            since=min([row.since for row in ejected if row.since is not None], default=None),
            see=f"{ALERTS}#inferwayengineejected",
        )
    same: dict[str, list[str]] = {}
    for row in rows:
        if row.up or not row.drained:
            for problem in row.problems:
                same.setdefault(problem, []).append(row.name)
    for problem, names in same.items():
        if len(names) == 1:
            yield Alarm("warn", names[0], problem)
        else:
            yield Alarm("warn", named(sorted(names, key=_natural)), f"each: {problem}")


def _late(rows: Sequence[EngineRow]) -> Iterator[Alarm]:
    """Yield alarms for engines whose requests ought to have begun to answer long ago."""
    for row in rows:
        late = row.late
        if late is None or not row.up:
            continue
        requests = "1 request waits" if late.requests == 1 else f"{late.requests} requests wait"
        yield Alarm(
            *("warn", row.name, f"{requests} for the first token"),
            "if it goes on, look at the end of its log and at its GPUs (nvidia-smi); meanwhile new"
            " requests go to others",
            since=late.since,
            detail=f"{late.expected_seconds:.2g} s expected",
            see=f"{ALERTS}#inferwayenginestalled",
        )


def _slow(rows: Sequence[EngineRow]) -> Iterator[Alarm]:
    """Yield alarms for engines that take many times as long as their fellows."""
    for row in rows:
        slow = row.slow
        if slow is None or not row.up:
            continue
        times = f"{slow.times:.0f} times slower than its fellows"
        yield Alarm(
            "info" if slow.is_other_hardware else "warn",
            row.name,
            f"is {times}: {slow.ms:.2g} ms a {slow.of} beside {slow.fellows_ms:.2g}",
            "the labels say that it is other hardware: nothing is to be done"
            if slow.is_other_hardware
            else "compare its GPUs' clocks (nvidia-smi -q -d CLOCK,PERFORMANCE), its flags, and who"
            " else uses its node; it gets fewer requests by itself",
            see=f"{ALERTS}#inferwayengineslow",
        )


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers count as numbers: 9 comes before 10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]
