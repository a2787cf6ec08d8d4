"""GET /v1/realtime: a client's WebSocket connection is carried to an engine, by load.

The engine is that of the model in the query (`?model=NAME`). Once it has answered 101, what both
sides say is passed on as it is, until one of them ends. Nothing of it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inferway.errors import (
    BadHttpError,
    FleetError,
    ForbiddenError,
    InferwayError,
    NoEndpointError,
    OurFaultError,
    UpstreamError,
)
from inferway.extension import outcome_of
from inferway.http.auth import Auth
from inferway.http.connection import ClientConnection
from inferway.http.errors import withheld
from inferway.http.headers import not_ours_alone, request_lines
from inferway.http.message import REALTIME, Request
from inferway.http.responder import Responder
from inferway.model import Headers, Target
from inferway.openai_api.unread import UnreadBody, read_query
from inferway.routing.director import Director
from inferway.routing.journey import Journey
from inferway.routing.limits.failover import Failover
from inferway.upstream.connection import EngineConnection
from inferway.upstream.exchange import UpstreamRequest
from inferway.upstream.headers import header_block
from inferway.upstream.pool import Pool


class TunnelRoute:
    """The handler of REALTIME."""

    def __init__(self, director: Director, auth: Auth, pool: Pool) -> None:
        self._director = director
        self._auth = auth
        self._pool = pool

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Raises what goes wrong before an engine has answered."""
        auth, director = self._auth, self._director
        caller = auth.caller(request)
        if b"origin" in request.fields and not responder.extra:
            # browsers let any page open a WebSocket, and ask nobody before
            raise ForbiddenError("origin: not among those that may ask here (cors_origins)")
        if not request.upgrade:
            raise BadHttpError(f"{REALTIME}: expected a WebSocket (upgrade: websocket)", status=426)
        tenant = auth.tenant(caller, request)
        share = auth.share(tenant, request)

        async def read() -> UnreadBody:
            return read_query(request.query)

        journey = director.open_unread(
            request.head, b"", read, priority=caller.priority, tenant=share
        )
        responder.record = journey.record
        slot = auth.ticket(responder, share)
        try:
            decision = await journey.decide(slot)
            if not decision.targets:
                raise NoEndpointError("the decision has no target")
        except BaseException as e:
            journey.close(outcome_of(e))
            if slot is not None:
                slot.leave()
            if isinstance(e, FleetError) and not caller.admin:
                raise withheld(e, request.id) from None
            raise
        tunnel = Tunnel(
            *(request, responder, journey, self._pool),
            attempts=Failover(decision.targets, auth.failover, slot),
            explain=caller.admin,
        )
        responder.attach(tunnel)
        tunnel.attempt(decision.targets[0])


class Tunnel:
    """Sink of an engine's answer, and source of the client's."""

    def __init__(
        self,
        request: Request,
        responder: Responder,
        journey: Journey,
        pool: Pool,
        *,
        attempts: Failover,
        explain: bool,
    ) -> None:
        self._request = request
        self._responder = responder
        self._journey = journey
        self._pool = pool
        self._attempts = attempts
        self._explain = explain
        self._exchange: UpstreamRequest | None = None
        self._engine: EngineConnection | None = None  # once it has switched
        self._is_over = False

    def attempt(self, target: Target) -> None:
        """Ask the engine of `target` for the connection."""
        request, journey = self._request, self._journey
        extra = journey.attempt(target)
        lines = request_lines(request, {name for name, _ in extra}) + header_block(extra)
        lines += b"connection: upgrade\r\nupgrade: %b\r\n" % request.upgrade
        path = b"%b?%b" % (request.path.encode(), journey.body)
        self._exchange = self._pool.send(
            *(target.endpoint.url, request.method, path, lines, b"", self)
        )
        self._exchange.switch = self._switch

    def _switch(self, engine: EngineConnection, headers: Headers, said: bytes) -> asyncio.Protocol:
        self._exchange, self._engine = None, engine
        self._attempts.succeeded()
        client = self._responder.connection
        told = self._responder.switch(
            (*headers, *self._decided(101)), _End(engine.transport, client, lambda: None)
        )
        engine.transport.write(told)
        client.transport.write(said)
        return _End(client.transport, engine, self._engine_ended)

    def _decided(self, status: int) -> Headers:
        decided = self._journey.on_head(status)
        return decided if self._explain else not_ours_alone(decided)

    # an answer that is no switch

    def on_head(self, status: int, headers: Headers, length: int | None) -> None:
        self._responder.start(status, (*headers, *self._decided(status)), length)

    def on_chunk(self, chunk: bytes) -> None:
        self._responder.write(chunk)

    def on_end(self, chunk: bytes) -> None:
        self._exchange = None
        self._over("ok")
        self._responder.end(chunk)

    def on_error(self, error: UpstreamError) -> None:
        self._exchange = None
        responder = self._responder
        if not isinstance(error, OurFaultError):
            self._attempts.failed()
            if not responder.started and (target := self._attempts.another()) is not None:
                self.attempt(target)
                return
        self._over("upstream_error")
        if responder.started:
            responder.abort()
        else:
            told: InferwayError = error
            if not self._explain:
                told = withheld(error, self._request.id)
            responder.send_error(told)

    # the client

    def pause(self) -> None:
        """The client does not read."""
        if self._engine is not None:
            self._engine.transport.pause_reading()
        elif self._exchange is not None:
            self._exchange.pause()

    def resume(self) -> None:
        if self._engine is not None:
            self._engine.transport.resume_reading()
        elif self._exchange is not None:
            self._exchange.resume()

    def client_gone(self) -> None:
        if self._exchange is not None:
            self._exchange.abort()
        if self._engine is not None:
            self._engine.transport.close()
        self._over("ok" if self._engine is not None else "client_gone")

    def _engine_ended(self) -> None:
        self._over("ok")
        self._responder.end()

    def _over(self, outcome: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._attempts.over()
            self._journey.close(outcome)


class _End(asyncio.Protocol):
    """One end of a carried connection: what comes here goes to the other one."""

    def __init__(
        self,
        other: asyncio.Transport,
        owner: ClientConnection | EngineConnection,
        ended: Callable[[], None],
    ) -> None:
        """`owner` keeps the books of the connection, and hears when it is lost; `ended` then."""
        self._other = other
        self._owner = owner
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._other.write(data)

    def eof_received(self) -> bool:
        """A WebSocket ends with both directions."""
        self._other.close()
        return False

    def pause_writing(self) -> None:
        self._owner.pause_writing()
        self._other.pause_reading()

    def resume_writing(self) -> None:
        self._owner.resume_writing()
        self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._ended()
        finally:
            self._other.close()
            self._owner.connection_lost(exc)
