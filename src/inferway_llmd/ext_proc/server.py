"""Drives exchanges over gRPC: one call a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Any

from google.protobuf.message import DecodeError

from inferway.errors import InferwayError, crash_report, panic_as_error
from inferway.extension import is_probe
from inferway.http.eager import run_until_suspended
from inferway.openai_api.kinds import KINDS
from inferway.telemetry.tracing import TRACEPARENT, Tracing
from inferway_llmd.ext_proc.counts import PickerCounts
from inferway_llmd.ext_proc.exchange import ProcessingStream
from inferway_llmd.ext_proc.health import Health
from inferway_llmd.ext_proc.messages import METHOD, SERVICE, ProcessingRequest
from inferway_llmd.ext_proc.noted import Noted
from inferway_llmd.ext_proc.picker import EndpointPicker
from inferway_llmd.ext_proc.questions import Ask, Rules
from inferway_llmd.ext_proc.wire.call import Call
from inferway_llmd.ext_proc.wire.frames import Status
from inferway_llmd.ext_proc.wire.listening import Credentials, GrpcServer

log = logging.getLogger("inferway.picker")

# A body may come in one message (NGINX), beside its envelope; its own limit is the exchange's.
_ENVELOPE_BYTES = 1 << 20

# gRPC's statuses, as Go writes them: the reference's label.
_WORDS = {
    Status.OK: "OK",
    Status.INVALID_ARGUMENT: "InvalidArgument",
    Status.INTERNAL: "Internal",
}


class PickerServer:
    """`start`, then `port`; `stop` ends it. `credentials` None: in the clear."""

    def __init__(
        self,
        picker: EndpointPicker,
        rules: Rules,
        health: Health,
        *,
        host: str,
        port: int,
        health_port: int | None,
        credentials: Credentials | None,
        health_beside: bool = False,
        reuse_port: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        """`tracing`, if it is given, is one of the logs in `rules`."""
        self.picker = picker  # the picker that is asked from now on
        self.rules = rules
        self.tracing = tracing
        self.host = host
        process = {f"/{SERVICE}/{METHOD}".encode(): lambda call: _Driver(call, self)}
        self._server = GrpcServer(
            {**process, **(health.methods if health_beside else {})},
            host=host,
            port=port,
            credentials=credentials,
            max_message=rules.max_body_bytes + _ENVELOPE_BYTES,
            reuse_port=reuse_port,
        )
        self._beside = (
            None
            if health_port is None
            else GrpcServer(health.methods, host=host, port=health_port, reuse_port=reuse_port)
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def health_port(self) -> int | None:
        return None if self._beside is None else self._beside.port

    @property
    def counts(self) -> PickerCounts:
        """The picker's counts since the start."""
        return self.rules.counts

    async def start(self) -> None:
        """Listen at all ports. Raises ConfigError when a port cannot be had."""
        await self._server.start()
        if self._beside is not None:
            await self._beside.start()

    async def stop(self, drain_seconds: float) -> None:
        """Take no more streams; those under way have so many seconds."""
        servers = [each for each in (self._server, self._beside) if each is not None]
        await asyncio.gather(*(server.stop(drain_seconds) for server in servers))


class _Driver:
    """One call. However it ends, nothing of it is left."""

    __slots__ = (*("_call", "_counts", "_exchange", "_is_open", "_kept", "_server", "_task"),)

    def __init__(self, call: Call, server: PickerServer) -> None:
        self._call = call
        self._server = server
        self._counts = counts = server.rules.counts
        self._exchange = ProcessingStream(server.rules)
        self._is_open = True
        self._task: asyncio.Task[None] | None = None  # that decides
        self._kept: deque[bytes | None] = deque()  # messages that came meanwhile; None: the end
        counts.streams += 1
        counts.open += 1

    # -------------------------------------------------------------------- wire.call.CallReceiver

    def on_message(self, message: bytes) -> None:
        if self._task is not None:
            self._kept.append(message)
            return
        try:
            self._take(message)
        except BaseException as e:
            self._crashed(panic_as_error(e))

    def on_end(self) -> None:
        if self._task is not None:
            self._kept.append(None)
        else:
            self._over()

    def on_gone(self) -> None:
        self._kept.clear()
        if self._task is not None:
            self._task.cancel()
        self._end("Canceled")

    # -----------------------------------------------------------------------------------------

    def _take(self, message: bytes) -> None:
        self._counts.messages += 1
        try:
            parsed = ProcessingRequest.FromString(message)
        except DecodeError:
            self._over(Status.INVALID_ARGUMENT, "this is no ProcessingRequest")
            return
        exchange, send = self._exchange, self._call.send
        for answer in exchange.receive(parsed):
            send(answer)
        if exchange.ask is not None:
            self._begin(exchange.noted)
            rest = run_until_suspended(self._find_out(exchange.ask))
            if rest is not None:
                self._call.hold()
                self._task = asyncio.get_running_loop().create_task(self._finish(rest))
        elif exchange.over:
            self._over()

    def _begin(self, noted: Noted) -> None:
        """Note when the request was complete, and begin its span."""
        noted.asked_at = time.perf_counter()
        tracing = self._server.tracing
        if tracing is None:
            return
        path, fields = noted.head.path, noted.fields
        if not is_probe(path, fields.get(b"user-agent", b"")):
            noted.span = tracing.begin(
                *(noted.head.method, path, noted.request_id, fields.get(TRACEPARENT), 0.0),
                is_known=path in KINDS,
            )

    async def _find_out(self, ask: Ask) -> None:
        exchange = self._exchange
        try:
            answered = exchange.decided(await self._server.picker.pick(ask))
        except InferwayError as e:
            answered = exchange.refused(e)
        except BaseException as e:
            log.error(
                "request %s failed by a fault of the picker: %s",
                ask.noted.request_id,
                crash_report(panic_as_error(e)),
            )
            error = InferwayError("internal error; the picker's log has the reason")
            answered = exchange.refused(error)
        for answer in answered:
            self._call.send(answer)
        if exchange.over:
            self._over()

    async def _finish(self, rest: Any) -> None:
        """Decides, and reads what came meanwhile."""
        await rest
        self._task = None
        while self._kept and self._task is None:
            message = self._kept.popleft()
            if message is None:
                self._over()
            else:
                self.on_message(message)
        if self._task is None:
            self._call.release()

    def _crashed(self, error: Exception) -> None:
        log.error(
            "a proxy's message could not be answered, by a fault of the picker: %s",
            crash_report(error),
        )
        self._over(Status.INTERNAL, "the picker's log has the reason")

    def _over(self, status: Status = Status.OK, words: str = "") -> None:
        self._end(_WORDS[status])
        self._call.finish(status, words)

    def _end(self, code: str) -> None:
        if self._is_open:
            self._is_open = False
            self._counts.open -= 1
            self._counts.closed[code] += 1
            try:
                self._exchange.close()
            except BaseException as e:  # other calls of the connection go on
                log.error(
                    "a proxy's stream could not be ended cleanly, by a fault of the picker: %s",
                    crash_report(panic_as_error(e)),
                )
