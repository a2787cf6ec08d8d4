"""A gateway without sockets: our server, pool and forwarding, and both ends in the test's hand.

Nothing waits and no time passes, so that a million inputs take minutes. Transports behave as
uvloop's: what was closed is lost in a later call (`settle`), never at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from copy import copy
from typing import cast

from inferway.config import LimitSettings, TimeoutSettings
from inferway.http.connection import ClientConnection
from inferway.http.forward import forward
from inferway.http.message import Request
from inferway.http.responder import Responder
from inferway.http.server import HttpServer
from inferway.loop_turns import LoopTurns
from inferway.model import Decision, Endpoint, Headers, Reason, Target
from inferway.routing.answer_plan import AnswerPlan
from inferway.routing.limits.failover import FailoverPolicy
from inferway.routing.limits.request_quarantine import EngineLosses
from inferway.routing.prefill_leg import PrefillLeg
from inferway.routing.record import Record
from inferway.upstream.connection import EngineConnection
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.pool import Origin, Pool

URL = "http://engine:1"
DECISION = Decision((Target(Endpoint("e0", URL, 0), 1.0, 0, 0),), Reason.KV_AWARE)


class Turns(LoopTurns):
    """What waits for the next turn of the loop, which `take` is."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: deque[Callable[[], object]] = deque()

    @property
    def are_short(self) -> bool:
        return False

    def ask(self, call: Callable[[], object]) -> None:
        self._asked.append(call)

    def take(self) -> None:
        """Until nothing waits any more."""
        while self._asked:
            self._asked.popleft()()


class Line:
    """A transport, and what the other side of it sees."""

    def __init__(self, protocol: asyncio.Protocol, turns: Turns) -> None:
        self.protocol = protocol
        self.turns = turns
        self.written: list[bytes] = []
        self.closing = False
        self.lost = False
        self.reset = False
        self.ended = False  # our side sends no more
        self.reading = True
        protocol.connection_made(cast(asyncio.Transport, self))

    def feed(self, data: bytes) -> None:
        """The other side says `data`, as one read."""
        if not self.closing:
            self.protocol.data_received(data)
        self.turns.take()

    def hang_up(self, error: Exception | None = None) -> None:
        """The other side closes, or resets."""
        if not self.closing and error is None:
            self.protocol.eof_received()
        self.closing = True
        self.settle(error)

    def settle(self, error: Exception | None = None) -> None:
        """A close takes effect."""
        if self.closing and not self.lost:
            self.lost = True
            self.protocol.connection_lost(error)

    @property
    def said(self) -> bytes:
        """All that was written to the other side."""
        return b"".join(self.written)

    # ------------------------------------------------------------------ asyncio.Transport

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.written.append(data)

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        if not self.closing:
            self.written.extend(pieces)

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True
        self.reset = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class UnwiredOrigin(Origin):
    """Connects at once; `lines` are all connections there ever were."""

    lines: list[Line]
    turns: Turns
    is_unused = False  # another could not take its place

    def connect(self, exchange: UpstreamRequest) -> None:
        self.pool.stats.connected += 1
        connection = EngineConnection(self)
        self.lines.append(Line(connection, self.turns))
        connection.send(exchange)


class Trip:
    """A journey that changes nothing; `outcomes` must have one entry in the end."""

    changes_length = False
    is_moved = False
    is_cut_off = False
    is_encoded = False

    def __init__(self, request: Request) -> None:
        self.request = copy(request)  # as it came: a body that is answered is forgotten
        self.body = request.body
        self.outcomes: list[str] = []
        self.losses = EngineLosses()
        self.record = Record(0.0)

    def split(self) -> PrefillLeg:
        raise AssertionError("its decision has no prefill engine")

    def attempt(self, target: Target) -> Headers:
        return target.endpoint.headers

    def pass_encoded(self) -> None:
        self.is_encoded = True

    def give_up(self) -> bytes:
        return b""

    def on_head(self, status: int) -> Headers:
        del status
        return ()

    def on_chunk(self, chunk: bytes) -> bytes:
        return chunk

    def further_pieces(self) -> None:
        return None

    def on_end(self) -> bytes:
        return b""

    def close(self, outcome: str) -> None:
        self.outcomes.append(outcome)


class Unwired:
    """One client's line, as many to the engine as are opened, and a `Trip` for each request.
    Make it in a running loop."""

    def __init__(
        self, limits: LimitSettings | None = None, timeouts: TimeoutSettings | None = None
    ) -> None:
        self.now = 0.0
        self.pool = Pool(timeouts)
        self.pool.time = lambda: self.now
        self.origin = UnwiredOrigin(self.pool, URL)
        self.origin.lines = []
        self.origin.turns = self.pool.turns = self.turns = Turns()
        self.pool._origins[URL] = self.origin
        self.server = HttpServer(self.handle, limits=limits, timeouts=timeouts)
        self.server.time = lambda: self.now
        self.server.turns = self.turns
        self.trips: list[Trip] = []
        self.client = Line(ClientConnection(self.server), self.turns)

    async def handle(self, request: Request, responder: Responder) -> None:
        self.trips.append(Trip(request))
        plan = AnswerPlan(self.trips[-1], DECISION, FailoverPolicy(self.pool.time))
        forward(request, responder, plan, self.pool)

    def new_client(self) -> None:
        """Another client takes the place of the one before, who leaves."""
        self.client.hang_up()
        self.client = Line(ClientConnection(self.server), self.turns)

    def settle(self) -> None:
        """Every close takes effect."""
        for line in (self.client, *self.origin.lines):
            line.settle()

    def leave(self) -> None:
        """Everybody hangs up."""
        for line in (self.client, *self.origin.lines):
            line.hang_up()

    def stop(self) -> None:
        """No timer is left."""
        self.pool._timer.cancel()
