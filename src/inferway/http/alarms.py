"""GET /admin/alarms: what should not be so, with its cure, as the page shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from inferway.fleet.engine import Engine
from inferway.http.message import Request
from inferway.http.responder import JSON, Responder
from inferway.http.server import Handler
from inferway.model import Alarm
from inferway.telemetry.alarms import fleet_alarms
from inferway.telemetry.engine_rows import EngineRows

ALARMS = "/admin/alarms"


@dataclass(frozen=True, slots=True)
class AlarmPages:
    """`judge`: what should not be so beside the engines."""

    rows: EngineRows
    judge: Callable[[], Sequence[Alarm]]

    @property
    def for_admins(self) -> Mapping[str, Mapping[str, Handler]]:
        return {ALARMS: {"GET": self.answer}}

    def all(self) -> Sequence[Alarm]:
        return [*fleet_alarms(self.rows.rows()), *self.judge()]

    async def answer(self, _: Request, responder: Responder) -> None:
        """Answer with all alarms, the worst first."""
        responder.send(200, JSON, msgspec.json.encode({"alarms": self.all()}))

    def of_engine(self, engine: Engine) -> dict[str, Any]:
        """Return what /admin/engines shows of the engine's state, and how it does."""
        row = self.rows.row(engine, {})
        return {
            "state": row.state,
            "since": row.since,
            "outage": row.outage,
            "moved": row.moved,
            "lost": row.lost,
            "slow": row.slow,
            "late": row.late,
            "speed": row.speed,
        }
