"""The whole content of the page at one moment, made once for all readers, and what has changed
since the moment before. It is made in slices, so that no request waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from inferway import __version__
from inferway.model import Alarm
from inferway.tasks import TimeSlice
from inferway.telemetry.alarms import fleet_alarms
from inferway.telemetry.engine_rows import EngineRow, EngineRows
from inferway_console.page.engine_times import EngineTimes, Times
from inferway_console.page.timeline import Timeline
from inferway_console.records.record import Miss, RequestRecord
from inferway_console.records.ring import RecordRing

MOST_REQUESTS = 60  # that are shown
_AT_ONCE = 20  # records that are unpacked before others get a turn
_JUDGE_SECONDS = 5.0

Judge = Callable[[], Sequence[Alarm]]


class PageRow(EngineRow, frozen=True, kw_only=True):
    """An engine's row, and what its answers of late took."""

    times: Times | None  # None: it has had none


class RequestRow(msgspec.Struct, frozen=True):
    """A request that has ended, in one line. `seq` is the number of its record."""

    seq: int
    id: str
    at: float
    model: str
    chosen: str
    streamed: bool
    prompt_tokens: int
    prompt_blocks: int
    block_size: int
    reachable_blocks: int
    chosen_blocks: int
    delivered_tokens: int
    missed: Sequence[Miss]
    expected_ttft_ms: float
    ttft_ms: float
    total_ms: float
    status: int
    outcome: str
    reason: str


def page_row(row: EngineRow, times: Times | None) -> PageRow:
    """Return the engine's row with the times of its answers."""
    fields = {name: getattr(row, name) for name in EngineRow.__struct_fields__}
    return PageRow(**fields, times=times)


def request_row(seq: int, record: RequestRecord) -> RequestRow:
    """Return the line of a record."""
    told = {name: getattr(record, name) for name in RequestRow.__struct_fields__ if name != "seq"}
    return RequestRow(seq=seq, **told)


class Picture:
    """The state of the page at one moment. `whole` is for who has seen nothing yet, `changes` for
    who has seen the picture before; both are events of a stream, encoded once however many look."""

    def __init__(self, everything: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        self._everything = everything
        self._changed = changed

    @cached_property
    def whole(self) -> bytes:
        return b"event: whole\ndata: %b\n\n" % msgspec.json.encode(self._everything)

    @cached_property
    def changes(self) -> bytes:
        return b"event: changes\ndata: %b\n\n" % msgspec.json.encode(self._changed)


class Pictures:
    """Makes pictures, one at a time. `judge`: what else should not be so. `clock` counts seconds,
    `now` is Unix time. Without a ring no requests are shown. `queued`: how many requests wait for
    their turn in the gateway."""

    def __init__(
        self,
        engines: EngineRows,
        ring: RecordRing | None,
        judge: Judge,
        clock: Callable[[], float],
        now: Callable[[], float],
        queued: Callable[[], int] = int,
    ) -> None:
        self._engines = engines
        self._ring = ring
        self._judge = judge
        self._clock = clock
        self._now = now
        self._queued = queued
        self._rows: dict[str, PageRow] = {}
        self._requests: deque[RequestRow] = deque(maxlen=MOST_REQUESTS)
        self._timeline = Timeline()
        self._times = EngineTimes()
        self._seq = 0  # of the last record that was read
        self._judged: Sequence[Alarm] = ()
        self._judged_at: float | None = None
        self._alarms: list[Alarm] = []

    async def take(self) -> Picture:
        """Return what there is to see now."""
        turn = TimeSlice(self._clock)
        await turn.rest()
        came = await self._read_ring(turn)
        rows = await self._read_fleet(turn)
        changed = [row for row in rows.values() if self._rows.get(row.name) != row]
        gone = [name for name in self._rows if name not in rows]
        alarms = [*fleet_alarms([*rows.values()]), *self._found()]
        now = self._now()
        common: dict[str, Any] = {"now": now, "records": self._records(), "queued": self._queued()}
        common["first_token"] = self._timeline.minute(now)
        changes: dict[str, Any] = {**common, "engines": changed, "gone": gone}
        changes |= {"timeline": self._timeline.changes(), "requests": came}
        if alarms != self._alarms:
            changes["alarms"] = alarms
        self._rows, self._alarms = rows, alarms
        everything = {
            **common,
            "version": __version__,
            "engines": [*rows.values()],
            "timeline": self._timeline.whole(),
            "requests": [*self._requests],
            "alarms": alarms,
        }
        return Picture(everything, changes)

    async def _read_ring(self, turn: TimeSlice) -> list[RequestRow]:
        """Read what has come since the last picture; return the newest of it."""
        if self._ring is None:
            return []
        came: deque[RequestRow] = deque(maxlen=MOST_REQUESTS)
        engines = {
            endpoint.name: engine
            for engine in self._engines.fleet.engines
            for endpoint in engine.endpoints
        }
        while True:
            last, records = self._ring.since(self._seq, _AT_ONCE)
            if not records:
                break
            first = last - len(records) + 1
            for seq, record in enumerate(records, first):
                engine = engines.get(record.chosen)
                is_unseen = engine is not None and not engine.streams
                self._timeline.add(record, is_unseen=is_unseen)
                if engine is not None:
                    self._times.add(record, engine.name)
                came.append(request_row(seq, record))
            self._seq = last
            if turn.is_over:
                await turn.rest()
        self._requests.extend(came)
        return [*came]

    async def _read_fleet(self, turn: TimeSlice) -> dict[str, PageRow]:
        rows: dict[str, PageRow] = {}
        lower = self._engines.index.lower_tiers()
        for engine in list(self._engines.fleet.engines):
            row = self._engines.row(engine, lower)
            rows[engine.name] = page_row(row, self._times.of(engine.name))
            if turn.is_over:
                await turn.rest()
        self._times.forget_others(rows)
        return rows

    def _found(self) -> Sequence[Alarm]:
        now = self._clock()
        if self._judged_at is None or now - self._judged_at >= _JUDGE_SECONDS:
            self._judged, self._judged_at = self._judge(), now
        return self._judged

    def _records(self) -> Mapping[str, int] | None:
        ring = self._ring
        return None if ring is None else {"kept": len(ring), "most": ring.capacity}
