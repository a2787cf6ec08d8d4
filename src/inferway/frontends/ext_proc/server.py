"""Drives exchanges over gRPC: one stream a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from inferway.errors import ConfigError, InferwayError, crash_report
from inferway.frontends.ext_proc.counts import PickerCounts
from inferway.frontends.ext_proc.exchange import Ask, Exchange, Rules
from inferway.frontends.ext_proc.health import Health
from inferway.frontends.ext_proc.messages import (
    METHOD,
    SERVICE,
    ProcessingRequest,
    ProcessingResponse,
)
from inferway.frontends.ext_proc.picker import Picker

log = logging.getLogger("inferway.picker")

# A body may come in one message (NGINX), beside its envelope; its own limit is the exchange's.
_ENVELOPE_BYTES = 1 << 20


class PickerServer:
    """`start`, then `port`; `stop` ends it. `credentials` None: in the clear."""

    def __init__(
        self,
        picker: Picker,
        rules: Rules,
        health: Health,
        *,
        host: str,
        port: int,
        health_port: int | None,
        credentials: grpc.ServerCredentials | None,
        health_beside: bool = False,
    ) -> None:
        self.port = port
        self.health_port = health_port
        self.picker = picker  # who is asked from now on
        self._rules = rules
        self._health = health
        self.host = host
        self._credentials = credentials
        self._health_beside = health_beside
        self._servers: list[grpc.aio.Server] = []

    @property
    def counts(self) -> PickerCounts:
        """What it has done so far."""
        return self._rules.counts

    async def start(self) -> None:
        """Listens. Raises ConfigError when a port cannot be had."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._rules.max_body_bytes + _ENVELOPE_BYTES),
                ("grpc.so_reuseport", 0),
            ]
        )
        process = grpc.stream_stream_rpc_method_handler(
            self._process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
        )
        handlers = [grpc.method_handlers_generic_handler(SERVICE, {METHOD: process})]
        server.add_generic_rpc_handlers(
            [*handlers, *([self._health] if self._health_beside else [])]
        )
        self.port = _listen(server, self.host, self.port, self._credentials)
        self._servers.append(server)
        if self.health_port is not None:
            beside = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
            beside.add_generic_rpc_handlers([self._health])
            self.health_port = _listen(beside, self.host, self.health_port, None)
            self._servers.append(beside)
        for each in self._servers:
            await each.start()

    async def stop(self, drain_seconds: float) -> None:
        """Takes no more streams; those under way have so long."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(drain_seconds) for server in servers))

    async def _process(self, messages: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        """One request. However the stream ends, nothing of it is left."""
        exchange, counts = Exchange(self._rules), self._rules.counts
        counts.streams += 1
        counts.open += 1
        try:
            async for message in messages:
                counts.messages += 1
                for answer in exchange.receive(message):
                    yield answer
                if exchange.ask is not None:
                    for answer in await self._found_out(exchange, exchange.ask):
                        yield answer
                if exchange.over:
                    return
        finally:
            counts.open -= 1
            exchange.close()

    async def _found_out(self, exchange: Exchange, ask: Ask) -> Sequence[Any]:
        try:
            return exchange.decided(await self.picker.pick(ask))
        except InferwayError as e:
            return exchange.refused(e)
        except Exception as e:
            log.error("request %s: %s", ask.request_id, crash_report(e))
            error = InferwayError("internal error; the picker's log has the reason")
            return exchange.refused(error)


def _listen(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None
) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as e:
        raise ConfigError(
            f"cannot listen on {address}; stop what listens there or choose another port"
        ) from e
