"""A gateway between a client and scripted engines: our server, pool and forwarding, no director."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.http.clients import serving
from tests.upstream.engines import LAST_CHUNK, SSE_HEAD, Script, chunk, raw

from inferway.config import TimeoutSettings
from inferway.http.forward import forward
from inferway.http.message import Request
from inferway.http.request_queue import RequestQueue, Ticket
from inferway.http.responder import Responder
from inferway.http.server import HttpServer
from inferway.model import Decision, Endpoint, Headers, Reason, Target
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.limits.failover import FailoverPolicy
from inferway.routing.limits.request_quarantine import EngineLosses
from inferway.routing.prefill_leg import PrefillLeg
from inferway.routing.record import Record
from inferway.upstream.pool import IDLE_KEEP_ALIVE_SECONDS, Pool

EVENTS = [b'data: {"choices":[{"delta":{"content":"%d"}}]}\n\n' % i for i in range(5)]
DONE = b"data: [DONE]\n\n"


def events(*pieces: bytes) -> Script:
    """An SSE answer in these chunks, each sent on its own."""
    return raw(SSE_HEAD, *(chunk(piece) for piece in pieces), LAST_CHUNK)


@dataclass
class Trip:
    """A journey that notes what it is told."""

    attempts: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    body: bytes = b""
    changes_length: bool = False
    is_moved: bool = False
    is_cut_off: bool = False
    is_encoded: bool = False
    last: bytes = b""  # what it kept back
    losses: EngineLosses = field(default_factory=EngineLosses)
    record: Record = field(default_factory=lambda: Record(0.0))

    def split(self) -> PrefillLeg:
        raise AssertionError("its decision has no prefill engine")

    def attempt(self, target: Target) -> Headers:
        self.attempts.append(target.endpoint.engine)
        return target.endpoint.headers

    def on_head(self, status: int) -> Headers:
        self.statuses.append(status)
        return ((b"x-inferway-engine", self.attempts[-1].encode()),)

    def pass_encoded(self) -> None:
        self.is_encoded = True

    def give_up(self) -> bytes:
        return b""

    def on_chunk(self, chunk: bytes) -> bytes:
        self.chunks.append(chunk)
        return chunk

    def further_pieces(self) -> None:
        return None

    def on_end(self) -> bytes:
        return self.last

    def close(self, outcome: str) -> None:
        self.outcomes.append(outcome)


@dataclass
class Gateway:
    """`trips` has one entry for each request, in order."""

    server: HttpServer
    pool: Pool
    trips: list[Trip]


@asynccontextmanager
async def gateway(
    *urls: str,
    timeouts: TimeoutSettings | None = None,
    engine_headers: Headers = (),
    trip: Callable[[], Trip] = Trip,
    policy: FailoverPolicy | None = None,
    control: RequestQueue | None = None,
    explain: bool = True,
    idle_keep_alive: float = IDLE_KEEP_ALIVE_SECONDS,
) -> AsyncIterator[Gateway]:
    """Tries the engines in the given order; they are called e0, e1, ..."""
    pool = Pool(timeouts, idle_keep_alive=idle_keep_alive)
    shared = policy or FailoverPolicy(pool.time)
    trips: list[Trip] = []
    decision = Decision(
        tuple(
            Target(Endpoint(f"e{i}", url, i, headers=engine_headers), 1.0, 0, 0)
            for i, url in enumerate(urls)
        ),
        Reason.KV_AWARE,
    )

    async def handler(request: Request, responder: Responder) -> None:
        place = None
        if control is not None:
            fields = request.fields
            place = Ticket(control, responder, fields.get(b"x-tenant", b"").decode())
            await place.enter("m", request.headers, int(fields.get(b"x-priority", b"0")))
        trips.append(trip())
        trips[-1].body = trips[-1].body or request.body
        plan = AnswerPlan(trips[-1], decision, shared, slot=place, explain=explain)
        forward(request, responder, plan, pool)

    async with serving(handler, timeouts=timeouts) as server:
        try:
            yield Gateway(server, pool, trips)
        finally:
            await pool.close()
            await asyncio.sleep(0)
